-- Which runs a run is counted with, and how many of them were to be at work at once when it was admitted.
ALTER TABLE runs ADD COLUMN concurrency_group TEXT;
ALTER TABLE runs ADD COLUMN concurrency_limit INTEGER;
