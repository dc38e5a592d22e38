-- Snapshots of sandboxes, and which sandbox came from which.

-- A row stands from before the host makes the snapshot until after the host has forgotten it, so that a crash
-- in between leaves something that says what to do. It outlives its sandbox, which is why that is not referenced.
CREATE TABLE snapshots (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    -- The agent that asked for it, whose alone it is.
    agent_id TEXT REFERENCES agents (id),
    -- Whose host has it.
    installation TEXT,
    sandbox_id TEXT NOT NULL,
    -- creating, ready or deleting.
    state TEXT NOT NULL,
    -- Snapshots of one name and tag are builds of it, and the name stands for the newest that is ready.
    name TEXT,
    tag TEXT NOT NULL,
    is_current BIGINT NOT NULL DEFAULT 0,
    -- Whether it has the processes too; while it is being made, whether it shall.
    memory BIGINT NOT NULL,
    -- Why it has not, where that was not asked for.
    note TEXT,
    template TEXT NOT NULL,
    cpu_count BIGINT NOT NULL,
    memory_mib BIGINT NOT NULL,
    disk_mib BIGINT NOT NULL,
    max_processes BIGINT NOT NULL,
    -- JSON: variables that have a secret's value in its memory, by the secret's name.
    secret_names TEXT,
    files_bytes BIGINT NOT NULL DEFAULT 0,
    memory_bytes BIGINT NOT NULL DEFAULT 0,
    paused_us BIGINT NOT NULL DEFAULT 0,
    -- The key that asked for it.
    created_by TEXT,
    created_ms BIGINT NOT NULL,
    idempotency_key TEXT,
    fingerprint TEXT
);
CREATE INDEX snapshots_by_project ON snapshots (project_id, id);
CREATE INDEX snapshots_by_sandbox ON snapshots (project_id, sandbox_id, id);
CREATE INDEX snapshots_by_agent ON snapshots (agent_id, id) WHERE agent_id IS NOT NULL;
CREATE INDEX snapshots_unfinished ON snapshots (id) WHERE state <> 'ready';
-- Agents have names of their own: none can put something else in place of what others start from.
CREATE UNIQUE INDEX snapshots_named ON snapshots (project_id, COALESCE(agent_id, ''), name, tag) WHERE is_current = 1;
CREATE UNIQUE INDEX snapshots_by_key ON snapshots (project_id, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- The sandbox whose snapshot a sandbox began with, and for those of a fork which of its children it is.
ALTER TABLE sandboxes ADD COLUMN parent_id TEXT;
ALTER TABLE sandboxes ADD COLUMN snapshot_id TEXT;
ALTER TABLE sandboxes ADD COLUMN fork_position BIGINT;
CREATE INDEX sandboxes_by_parent ON sandboxes (parent_id) WHERE parent_id IS NOT NULL;
