-- JSON: why the run was asked to cancel.
ALTER TABLE runs ADD COLUMN cancel_requested TEXT;
