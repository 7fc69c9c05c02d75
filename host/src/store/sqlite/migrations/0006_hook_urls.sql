-- Hooks that take requests at a URL of their own: the URL, and who answers, as JSON.
ALTER TABLE hooks ADD COLUMN webhook TEXT;
