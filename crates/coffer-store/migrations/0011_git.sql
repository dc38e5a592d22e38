-- Git in sandboxes: which repositories a sandbox has, and what was done with them.

CREATE TABLE git_remotes (
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    -- What the repository is called at the sandbox's gate.
    slug TEXT NOT NULL,
    project_id TEXT NOT NULL REFERENCES projects (id),
    repository_id TEXT NOT NULL REFERENCES repositories (id) ON DELETE CASCADE,
    -- Where it lies inside, and whose it is there.
    path TEXT NOT NULL,
    user_name TEXT,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (sandbox_id, slug)
);
CREATE INDEX git_remotes_by_repository ON git_remotes (repository_id);

CREATE TABLE git_operations (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    repository TEXT NOT NULL,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    actor TEXT NOT NULL,
    -- What came of it, as JSON, or why nothing did.
    result TEXT,
    error_code TEXT,
    error TEXT,
    started_ms BIGINT NOT NULL,
    ended_ms BIGINT
);
CREATE INDEX git_operations_by_sandbox ON git_operations (sandbox_id, id);
CREATE INDEX git_operations_under_way ON git_operations (state) WHERE state = 'running';
