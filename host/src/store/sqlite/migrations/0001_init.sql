-- "ONMK": how a host knows its own files.
PRAGMA application_id = 0x4F4E4D4B;

-- One row: which life of which host may write.
CREATE TABLE host (
    id    INTEGER PRIMARY KEY CHECK (id = 1),
    epoch INTEGER NOT NULL
) STRICT;
INSERT INTO host (id, epoch) VALUES (1, 0);

CREATE TABLE components (
    digest   BLOB NOT NULL PRIMARY KEY,
    bytes    BLOB NOT NULL,
    manifest TEXT NOT NULL
) STRICT;

CREATE TABLE deployments (
    name        TEXT NOT NULL PRIMARY KEY,
    digest      BLOB NOT NULL REFERENCES components (digest),
    deployed_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What follows from a run's entries, and the marks beside them. Written in the transaction of the entry that
-- changes it, and only then: a step costs its entries and no more.
CREATE TABLE runs (
    key          INTEGER PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    workflow     TEXT NOT NULL,
    component    BLOB NOT NULL,
    request      BLOB NOT NULL,  -- digest of what the run was admitted for
    tokens       TEXT NOT NULL,  -- JSON array: claimed with the run
    created_at   INTEGER NOT NULL,
    folded       TEXT NOT NULL,  -- status by entries alone
    status       TEXT NOT NULL,  -- with the marks `suspended` and `blocked`
    ended_at     INTEGER,
    ready_since  INTEGER,        -- has something to do
    wake_at      INTEGER,        -- suspended: becomes due then
    blocked      TEXT,           -- JSON: why
    -- Position and checksum of the last entry when this row was written: a journal that no longer reaches it
    -- was cut off.
    anchor_seq   INTEGER NOT NULL,
    anchor_chain BLOB NOT NULL
) STRICT;
CREATE INDEX runs_ready ON runs (ready_since) WHERE ready_since IS NOT NULL;
CREATE INDEX runs_asleep ON runs (wake_at) WHERE wake_at IS NOT NULL;

-- The ground truth. `chain` covers everything in the row and the chain before it, but of the body only
-- length and digest: setting `body` to NULL erases it, and the journal still verifies.
CREATE TABLE entries (
    run         INTEGER NOT NULL REFERENCES runs (key),
    seq         INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    event       TEXT NOT NULL,
    body        TEXT,
    body_len    INTEGER,
    body_sha256 BLOB,
    chain       BLOB NOT NULL,
    PRIMARY KEY (run, seq)
) STRICT, WITHOUT ROWID;

-- Every claim that a run ever made; `hook` counts them per run.
CREATE TABLE hooks (
    run            INTEGER NOT NULL REFERENCES runs (key),
    hook           INTEGER NOT NULL,
    token          TEXT NOT NULL,
    metadata       TEXT,
    payload        TEXT NOT NULL,
    claimed_at     INTEGER NOT NULL,
    retained_until INTEGER NOT NULL,
    closed         INTEGER NOT NULL DEFAULT 0,
    disposed_at    INTEGER,
    unread         INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run, hook)
) STRICT, WITHOUT ROWID;

-- The last claim of each token: the one that holds it, or its tombstone.
CREATE TABLE claims (
    token TEXT NOT NULL PRIMARY KEY,
    run   INTEGER NOT NULL,
    hook  INTEGER NOT NULL,
    FOREIGN KEY (run, hook) REFERENCES hooks (run, hook)
) STRICT, WITHOUT ROWID;

-- Answers to keyed requests, oldest first. `scope` is the token of a delivery, or '' for a start.
CREATE TABLE receipts (
    id      INTEGER PRIMARY KEY,
    scope   TEXT NOT NULL,
    key     TEXT NOT NULL,
    request BLOB NOT NULL,
    answer  TEXT NOT NULL,
    at      INTEGER NOT NULL,
    UNIQUE (scope, key)
) STRICT;
