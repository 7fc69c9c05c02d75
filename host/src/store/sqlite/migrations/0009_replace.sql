-- Which runs must have ended before a run begins. Of a run that went on as another, that other.
CREATE TABLE predecessors (
    run         INTEGER NOT NULL REFERENCES runs (key),
    predecessor INTEGER NOT NULL REFERENCES runs (key),
    PRIMARY KEY (run, predecessor)
) STRICT, WITHOUT ROWID;
CREATE INDEX predecessors_followers ON predecessors (predecessor);
