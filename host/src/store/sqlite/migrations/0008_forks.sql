-- JSON: where the run comes from, unless somebody just started it. Of a fork, entry 0 tells of the run that it was
-- copied from.
ALTER TABLE runs ADD COLUMN lineage TEXT;
UPDATE runs SET lineage =
    (SELECT json_extract(event, '$.started.lineage') FROM entries WHERE run = key AND seq = 0);
