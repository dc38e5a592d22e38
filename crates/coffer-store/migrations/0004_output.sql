-- What ran in sandboxes, and where its output is kept.

CREATE TABLE executions (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    -- The agent that owned the sandbox.
    agent_id TEXT REFERENCES agents (id),
    -- The key that asked for it, where that is known.
    actor_key TEXT,
    source TEXT NOT NULL,
    state TEXT NOT NULL,
    -- Redacted, as all text here.
    command TEXT NOT NULL,
    cwd TEXT,
    user_name TEXT,
    -- Which process it is: of which start of agentd, and since which record of its journal.
    boot BIGINT,
    pid BIGINT,
    journal_offset BIGINT,
    started_ms BIGINT NOT NULL,
    ended_ms BIGINT,
    exit_code BIGINT,
    status TEXT,
    -- Bytes of its output that were read (of standard output or the terminal, and of standard error), that
    -- were kept of them, and that were only counted.
    read_main BIGINT NOT NULL DEFAULT 0,
    read_error BIGINT NOT NULL DEFAULT 0,
    kept_main BIGINT NOT NULL DEFAULT 0,
    kept_error BIGINT NOT NULL DEFAULT 0,
    lost_bytes BIGINT NOT NULL DEFAULT 0,
    truncated BIGINT NOT NULL DEFAULT 0,
    -- Where in the sandbox's log its output begins and ends.
    first_position BIGINT,
    last_position BIGINT
);
CREATE INDEX executions_by_project ON executions (project_id, id);
CREATE INDEX executions_by_sandbox ON executions (sandbox_id, id);
CREATE INDEX executions_by_agent ON executions (agent_id, id) WHERE agent_id IS NOT NULL;
CREATE INDEX executions_running ON executions (sandbox_id) WHERE state = 'running';

-- One row for each file of a sandbox's log. `bytes` of it are synced; what is beyond is no record yet.
CREATE TABLE output_segments (
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    project_id TEXT NOT NULL REFERENCES projects (id),
    state TEXT NOT NULL,
    first_position BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    file_bytes BIGINT NOT NULL,
    first_ms BIGINT NOT NULL,
    last_ms BIGINT NOT NULL,
    PRIMARY KEY (sandbox_id, number)
);
CREATE INDEX output_segments_by_age ON output_segments (state, last_ms);

-- How far the journal of a sandbox's agentd is on record.
CREATE TABLE journal_positions (
    sandbox_id TEXT NOT NULL PRIMARY KEY REFERENCES sandboxes (id) ON DELETE CASCADE,
    project_id TEXT NOT NULL REFERENCES projects (id),
    boot BIGINT NOT NULL,
    next BIGINT NOT NULL
);
