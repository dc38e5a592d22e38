-- One text for SQLite and PostgreSQL: TEXT, BIGINT and DOUBLE PRECISION only. Truth values are 0 and 1,
-- times are milliseconds since the Unix epoch, ids are 26 characters of lower-case base 32.
--
-- Columns whose name ends in `_secret` hold what must be given back as it came (tokens, environment,
-- proxy passwords). Nothing searches or sorts by them, so they can be encrypted where they stand.

CREATE TABLE projects (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    created_ms BIGINT NOT NULL,
    -- The number of the project's newest event. Raising it locks the row until the commit, so
    -- events of a project become visible in the order of their numbers and without gaps.
    last_event BIGINT NOT NULL DEFAULT 0
);

CREATE TABLE api_keys (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    name TEXT NOT NULL,
    -- The first characters of the key: enough to find its row, far from enough to guess it.
    prefix TEXT NOT NULL,
    -- SHA-256 of the whole key, in hexadecimal.
    digest TEXT NOT NULL UNIQUE,
    created_ms BIGINT NOT NULL,
    expires_ms BIGINT,
    revoked_ms BIGINT,
    last_used_ms BIGINT
);
CREATE INDEX api_keys_by_prefix ON api_keys (prefix);
CREATE INDEX api_keys_by_project ON api_keys (project_id, created_ms, id);

CREATE TABLE sandboxes (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    -- The name of the state; what is known only in it is in `state_data`.
    state TEXT NOT NULL,
    state_data TEXT NOT NULL,
    -- How many transitions there have been.
    transitions BIGINT NOT NULL,
    template TEXT NOT NULL,
    template_id TEXT NOT NULL,
    alias TEXT,
    metadata TEXT NOT NULL,
    env_vars_secret TEXT NOT NULL,
    cpu_count BIGINT NOT NULL,
    memory_mib BIGINT NOT NULL,
    disk_mib BIGINT NOT NULL,
    max_processes BIGINT NOT NULL,
    created_ms BIGINT NOT NULL,
    started_ms BIGINT NOT NULL,
    deadline_ms BIGINT NOT NULL,
    ended_ms BIGINT,
    timeout_s BIGINT NOT NULL,
    on_timeout TEXT NOT NULL,
    auto_resume BIGINT NOT NULL,
    secure BIGINT NOT NULL,
    access_token_secret TEXT,
    traffic_token_secret TEXT,
    network_secret TEXT,
    allow_internet_access BIGINT,
    envd_version TEXT NOT NULL,
    placement TEXT
);
CREATE INDEX sandboxes_by_start ON sandboxes (project_id, started_ms, id);
CREATE INDEX sandboxes_by_state ON sandboxes (project_id, state, started_ms, id);
CREATE INDEX sandboxes_live ON sandboxes (id) WHERE state IN ('creating', 'running', 'paused');

-- One row for each metadata pair, to filter by. `pair` is the SHA-256 of key and value: values may be
-- longer than PostgreSQL can index, and may hold NUL, which its TEXT cannot.
CREATE TABLE sandbox_metadata (
    project_id TEXT NOT NULL REFERENCES projects (id),
    pair TEXT NOT NULL,
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    PRIMARY KEY (project_id, pair, sandbox_id)
);
CREATE INDEX sandbox_metadata_by_sandbox ON sandbox_metadata (sandbox_id);

CREATE TABLE sandbox_transitions (
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    position BIGINT NOT NULL,
    project_id TEXT NOT NULL REFERENCES projects (id),
    from_state TEXT,
    state_data TEXT NOT NULL,
    reason TEXT NOT NULL,
    at_ms BIGINT NOT NULL,
    PRIMARY KEY (sandbox_id, position)
);

-- The key is taken before its sandbox is inserted, so that of two equal requests the second waits
-- there: hence the deferred reference.
CREATE TABLE idempotency_keys (
    project_id TEXT NOT NULL REFERENCES projects (id),
    key TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    expires_ms BIGINT NOT NULL,
    PRIMARY KEY (project_id, key)
);
CREATE INDEX idempotency_keys_by_sandbox ON idempotency_keys (sandbox_id);
CREATE INDEX idempotency_keys_by_expiry ON idempotency_keys (expires_ms);

CREATE TABLE events (
    project_id TEXT NOT NULL REFERENCES projects (id),
    sequence BIGINT NOT NULL,
    subject TEXT NOT NULL,
    kind TEXT NOT NULL,
    payload TEXT NOT NULL,
    at_ms BIGINT NOT NULL,
    PRIMARY KEY (project_id, sequence)
);
CREATE INDEX events_by_subject ON events (project_id, subject, sequence);
