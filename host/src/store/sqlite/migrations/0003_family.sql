-- JSON: why the run was asked to cancel.
ALTER TABLE runs ADD COLUMN cancel_requested TEXT;

-- The run that started this one, by which of its calls, and what becomes of this one when that ends first.
ALTER TABLE runs ADD COLUMN parent INTEGER REFERENCES runs (key);
ALTER TABLE runs ADD COLUMN parent_call INTEGER;
ALTER TABLE runs ADD COLUMN on_parent_end TEXT;
CREATE INDEX runs_children ON runs (parent) WHERE parent IS NOT NULL AND ended_at IS NULL;
