-- Directories that outlive sandboxes. The row comes before the directory and goes after it.
CREATE TABLE volumes (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    -- The installation whose host has it.
    installation TEXT,
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    -- Its disk limit, which counts in the project's quota.
    size_mib BIGINT NOT NULL,
    token_secret TEXT NOT NULL,
    created_ms BIGINT NOT NULL
);
CREATE UNIQUE INDEX volumes_by_name ON volumes (project_id, name);
CREATE INDEX volumes_unfinished ON volumes (state) WHERE state <> 'ready';

-- Which sandboxes mount a volume. Those that have ended do not count.
CREATE TABLE sandbox_volumes (
    volume_id TEXT NOT NULL REFERENCES volumes (id) ON DELETE CASCADE,
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    PRIMARY KEY (volume_id, sandbox_id)
);
CREATE INDEX sandbox_volumes_by_sandbox ON sandbox_volumes (sandbox_id);

-- Volumes of a sandbox as JSON, with their names and paths.
ALTER TABLE sandboxes ADD COLUMN volume_mounts TEXT;
