-- The runs that a run started, in the order of lists, also those that have ended.
CREATE INDEX runs_of_parent ON runs (parent, created_at, key) WHERE parent IS NOT NULL;
