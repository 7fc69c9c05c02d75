-- Output of runs: ordered chunks in named streams, beside the journal.
CREATE TABLE streams (
    stream INTEGER PRIMARY KEY,
    run    INTEGER NOT NULL REFERENCES runs (key),
    name   TEXT NOT NULL,
    chunks INTEGER NOT NULL DEFAULT 0,
    bytes  INTEGER NOT NULL DEFAULT 0,
    UNIQUE (run, name)
) STRICT;

-- `writer` is the call of the step that wrote, -1 for workflow code; `number` counts what it wrote to this stream.
CREATE TABLE chunks (
    stream  INTEGER NOT NULL REFERENCES streams (stream),
    "index" INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    writer  INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    number  INTEGER NOT NULL,
    chunk   TEXT NOT NULL,
    PRIMARY KEY (stream, "index")
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX chunks_once ON chunks (stream, writer, number);
