-- Templates that projects build, and what their builds leave behind. A template's files are a snapshot.

-- What a sandbox is for: a client's use, or a build.
ALTER TABLE sandboxes ADD COLUMN purpose TEXT NOT NULL DEFAULT 'use';
-- What a snapshot is for: a client's use, a step of a build, or a template.
ALTER TABLE snapshots ADD COLUMN purpose TEXT NOT NULL DEFAULT 'use';

CREATE TABLE templates (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    name TEXT NOT NULL,
    -- The size of its sandboxes; NULL for the default.
    cpu_count BIGINT,
    memory_mib BIGINT,
    created_by TEXT,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL,
    spawn_count BIGINT NOT NULL DEFAULT 0,
    last_spawned_ms BIGINT
);
CREATE UNIQUE INDEX templates_by_name ON templates (project_id, name);

CREATE TABLE template_builds (
    id TEXT NOT NULL PRIMARY KEY,
    template_id TEXT NOT NULL REFERENCES templates (id) ON DELETE CASCADE,
    project_id TEXT NOT NULL REFERENCES projects (id),
    -- The installation that builds it, and whose host has the snapshot.
    installation TEXT,
    state TEXT NOT NULL,
    -- JSON: the tags that it gets when it is ready.
    tags TEXT NOT NULL,
    cpu_count BIGINT,
    memory_mib BIGINT,
    -- JSON; NULL until it is started.
    plan TEXT,
    -- Sealed: credentials for the image. NULL once the build is over.
    registry_secret TEXT,
    -- The sandbox in which it runs, to be destroyed if the server dies.
    sandbox_id TEXT,
    -- How often it was begun again after a crash.
    tries BIGINT NOT NULL DEFAULT 0,
    -- The template's files, once it is ready.
    snapshot_id TEXT,
    failure TEXT,
    failed_step TEXT,
    log_lines BIGINT NOT NULL DEFAULT 0,
    log_bytes BIGINT NOT NULL DEFAULT 0,
    created_by TEXT,
    created_ms BIGINT NOT NULL,
    started_ms BIGINT,
    ended_ms BIGINT
);
CREATE INDEX template_builds_by_template ON template_builds (template_id, id);
CREATE INDEX template_builds_by_project ON template_builds (project_id, id);
CREATE INDEX template_builds_unfinished ON template_builds (id) WHERE state IN ('waiting', 'building');
CREATE INDEX template_builds_by_snapshot ON template_builds (snapshot_id) WHERE snapshot_id IS NOT NULL;

CREATE TABLE template_tags (
    template_id TEXT NOT NULL REFERENCES templates (id) ON DELETE CASCADE,
    tag TEXT NOT NULL,
    build_id TEXT NOT NULL REFERENCES template_builds (id) ON DELETE CASCADE,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (template_id, tag)
);
CREATE INDEX template_tags_by_build ON template_tags (build_id);

CREATE TABLE template_build_logs (
    build_id TEXT NOT NULL REFERENCES template_builds (id) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    at_ms BIGINT NOT NULL,
    level TEXT NOT NULL,
    step TEXT,
    message TEXT NOT NULL,
    PRIMARY KEY (build_id, number)
);

-- Results of steps, found by a hash of everything that decides them. Each project has its own.
CREATE TABLE template_layers (
    project_id TEXT NOT NULL REFERENCES projects (id),
    key TEXT NOT NULL,
    installation TEXT NOT NULL,
    snapshot_id TEXT NOT NULL,
    -- JSON: what the steps after it start with.
    defaults TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    used_ms BIGINT NOT NULL,
    PRIMARY KEY (project_id, key, installation)
);
CREATE INDEX template_layers_by_use ON template_layers (installation, used_ms);
CREATE INDEX template_layers_by_snapshot ON template_layers (snapshot_id);

-- Uploaded files of `COPY` steps; the bytes are below the server's directory.
CREATE TABLE template_files (
    project_id TEXT NOT NULL REFERENCES projects (id),
    -- The client's name for them, which proves nothing.
    hash TEXT NOT NULL,
    installation TEXT NOT NULL,
    -- What they really are.
    sha256 TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    used_ms BIGINT NOT NULL,
    PRIMARY KEY (project_id, hash, installation)
);
CREATE INDEX template_files_by_use ON template_files (installation, used_ms);

-- Links for one upload each.
CREATE TABLE template_uploads (
    token_sha256 TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    hash TEXT NOT NULL,
    expires_ms BIGINT NOT NULL
);
CREATE INDEX template_uploads_by_expiry ON template_uploads (expires_ms);
