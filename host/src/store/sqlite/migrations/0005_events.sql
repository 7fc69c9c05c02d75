-- Schedules in force. A workflow of a deployment has one.
CREATE TABLE schedules (
    deployment TEXT NOT NULL,
    workflow   TEXT NOT NULL,
    -- JSON: when it fires.
    spec       TEXT NOT NULL,
    -- Milliseconds since 1970: everything up to here was dealt with.
    done_until INTEGER NOT NULL,
    PRIMARY KEY (deployment, workflow)
) STRICT, WITHOUT ROWID;
