-- Keys that seal, and the secrets of projects.

-- The keys that a project's values are sealed with, each sealed under a master key, which is not here.
-- A project has a second one only where the master key of the first was lost.
CREATE TABLE data_keys (
    project_id TEXT NOT NULL REFERENCES projects (id),
    number BIGINT NOT NULL,
    -- Names the master key without telling it.
    master_id TEXT NOT NULL,
    key_secret TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    -- When it was last sealed, by a rotation of the master key for one.
    sealed_ms BIGINT NOT NULL,
    PRIMARY KEY (project_id, number)
);
CREATE INDEX data_keys_by_sealing ON data_keys (sealed_ms);

-- A row for each value; replaced and deleted ones stay for a while, because what still runs may print them.
CREATE TABLE secrets (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    name TEXT NOT NULL,
    version BIGINT NOT NULL,
    value_secret TEXT NOT NULL,
    -- JSON: the hosts that it is for, in headers alone; none where it may be used anywhere.
    hosts TEXT,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL,
    retired_ms BIGINT
);
CREATE INDEX secrets_by_project ON secrets (project_id, name);
CREATE UNIQUE INDEX secrets_live ON secrets (project_id, name) WHERE retired_ms IS NULL;
CREATE INDEX secrets_retired ON secrets (retired_ms) WHERE retired_ms IS NOT NULL;

-- JSON: which variable of a sandbox has which secret, by name.
ALTER TABLE sandboxes ADD COLUMN secret_names TEXT;
