-- The log of runs: what their guests say of themselves, in order, beside the journal.
CREATE TABLE logs (
    run         INTEGER PRIMARY KEY REFERENCES runs (key),
    lines       INTEGER NOT NULL,
    bytes       INTEGER NOT NULL,
    dropped     INTEGER NOT NULL,
    -- How far workflow code has come in writing.
    mark_seq    INTEGER,
    mark_number INTEGER
) STRICT;

-- `writer` is the call of the step that wrote, -1 for workflow code; `level` counts from 0, which is debug. With
-- `attempt`, `seq` and `number` it names the line.
CREATE TABLE log_lines (
    run     INTEGER NOT NULL REFERENCES logs (run),
    "index" INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    level   INTEGER NOT NULL,
    writer  INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    number  INTEGER NOT NULL,
    text    TEXT NOT NULL,
    PRIMARY KEY (run, "index")
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX log_lines_once ON log_lines (run, writer, attempt, seq, number);
