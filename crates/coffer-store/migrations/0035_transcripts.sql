-- What agents did, as typed entries: made from the output of their executions, for people to read.
CREATE TABLE transcripts (
    -- The task, or `<competition>/<entry>`.
    subject TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    task_id TEXT REFERENCES tasks (id) ON DELETE CASCADE,
    competition_id TEXT REFERENCES competitions (id) ON DELETE CASCADE,
    -- Both only grow, also when retention deletes entries: readers resume by them.
    last_sequence BIGINT NOT NULL,
    last_change BIGINT NOT NULL,
    -- Entries up to this one were deleted by retention.
    pruned_sequence BIGINT NOT NULL
);
CREATE INDEX transcripts_by_task ON transcripts (task_id) WHERE task_id IS NOT NULL;
CREATE INDEX transcripts_by_competition ON transcripts (competition_id) WHERE competition_id IS NOT NULL;

CREATE TABLE transcript_entries (
    subject TEXT NOT NULL REFERENCES transcripts (subject) ON DELETE CASCADE,
    -- Its place in the transcript.
    sequence BIGINT NOT NULL,
    -- Grows with every change of any entry of the transcript.
    change BIGINT NOT NULL,
    project_id TEXT NOT NULL REFERENCES projects (id),
    run_id TEXT NOT NULL,
    attempt BIGINT NOT NULL,
    turn BIGINT NOT NULL,
    -- The execution that it was read from, its place there, and how often it has changed: a server that reads the
    -- output again writes nothing twice.
    source TEXT NOT NULL,
    number BIGINT NOT NULL,
    version BIGINT NOT NULL,
    -- 1 if a subagent did it.
    subagent BIGINT NOT NULL,
    -- JSON.
    body TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    at_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL,
    PRIMARY KEY (subject, sequence)
);
CREATE UNIQUE INDEX transcript_entries_by_source ON transcript_entries (subject, source, number);
CREATE UNIQUE INDEX transcript_entries_by_change ON transcript_entries (subject, change);
CREATE INDEX transcript_entries_by_age ON transcript_entries (project_id, updated_ms);
