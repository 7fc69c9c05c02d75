-- Why a run that was admitted has not begun (JSON), and how often it was started again.
ALTER TABLE runs ADD COLUMN waits TEXT;
ALTER TABLE runs ADD COLUMN duplicates INTEGER NOT NULL DEFAULT 0;
-- Lists: the newest first.
CREATE INDEX runs_created ON runs (created_at, key);

-- What runs are found by. `created_at` is that of the run: a list by tag is in the order of lists.
CREATE TABLE tags (
    run        INTEGER NOT NULL REFERENCES runs (key),
    name       TEXT NOT NULL,
    value      TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (run, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX tags_found ON tags (name, value, created_at, run);

-- How much a hook was given, and how much of that waits to be read.
ALTER TABLE hooks ADD COLUMN received INTEGER NOT NULL DEFAULT 0;
ALTER TABLE hooks ADD COLUMN unread_bytes INTEGER NOT NULL DEFAULT 0;

-- Where the payloads of a hook are in the journal, in order of delivery; `number` counts them per hook. The first
-- `received - unread` of them were read.
CREATE TABLE payloads (
    run    INTEGER NOT NULL,
    hook   INTEGER NOT NULL,
    number INTEGER NOT NULL,
    seq    INTEGER NOT NULL,
    bytes  INTEGER NOT NULL,
    PRIMARY KEY (run, hook, number),
    FOREIGN KEY (run, hook) REFERENCES hooks (run, hook)
) STRICT, WITHOUT ROWID;

INSERT INTO payloads (run, hook, number, seq, bytes)
SELECT run, hook, row_number() OVER (PARTITION BY run, hook ORDER BY seq) - 1, seq, ifnull(body_len, 0)
FROM (
    SELECT run, seq, body_len, json_extract(event, '$.payload_received.hook') AS hook
    FROM entries WHERE event LIKE '{"payload_received":%'
);
UPDATE hooks SET received = (
    SELECT count(*) FROM payloads p WHERE p.run = hooks.run AND p.hook = hooks.hook
);
UPDATE hooks SET unread_bytes = (
    SELECT ifnull(sum(p.bytes), 0) FROM payloads p
    WHERE p.run = hooks.run AND p.hook = hooks.hook AND p.number >= hooks.received - hooks.unread
);
