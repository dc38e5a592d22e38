-- Repositories, and for those that this server keeps: pull requests, issues, comments, statuses.

-- A way to a forge elsewhere. Credentials are secrets of the project, by name; `terms` says which.
CREATE TABLE forge_connections (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    base_url TEXT NOT NULL,
    terms TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    removed_ms BIGINT
);
CREATE INDEX forge_connections_by_project ON forge_connections (project_id, id);
CREATE UNIQUE INDEX forge_connections_by_name ON forge_connections (project_id, name) WHERE removed_ms IS NULL;

CREATE TABLE repositories (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    -- Of a forge elsewhere: by which way, and what it is called there.
    connection_id TEXT REFERENCES forge_connections (id),
    remote TEXT,
    default_branch TEXT NOT NULL,
    -- Which server keeps it, where several share the database.
    installation TEXT,
    -- The newest number of a pull request or issue.
    last_number BIGINT NOT NULL DEFAULT 0,
    created_ms BIGINT NOT NULL,
    removed_ms BIGINT
);
CREATE INDEX repositories_by_project ON repositories (project_id, id);
CREATE UNIQUE INDEX repositories_by_name ON repositories (project_id, name) WHERE removed_ms IS NULL;
CREATE INDEX repositories_by_connection ON repositories (connection_id, remote) WHERE connection_id IS NOT NULL;

CREATE TABLE branch_protections (
    repository_id TEXT NOT NULL REFERENCES repositories (id) ON DELETE CASCADE,
    branch TEXT NOT NULL,
    project_id TEXT NOT NULL REFERENCES projects (id),
    rules TEXT NOT NULL,
    changed_ms BIGINT NOT NULL,
    PRIMARY KEY (repository_id, branch)
);

CREATE TABLE pulls (
    repository_id TEXT NOT NULL REFERENCES repositories (id) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    project_id TEXT NOT NULL REFERENCES projects (id),
    title TEXT NOT NULL,
    body TEXT NOT NULL,
    head TEXT NOT NULL,
    base TEXT NOT NULL,
    state TEXT NOT NULL,
    draft BIGINT NOT NULL,
    -- The head's commit as last seen, and the base's when it was opened or, once merged, before the merge.
    head_commit TEXT NOT NULL,
    base_commit TEXT NOT NULL,
    -- What is about to become of the base; see docs/design/0007-forges.md.
    merging_commit TEXT,
    merging_base TEXT,
    merge_commit TEXT,
    merge_method TEXT,
    author TEXT NOT NULL,
    merged_by TEXT,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL,
    closed_ms BIGINT,
    PRIMARY KEY (repository_id, number)
);
-- Of one head and base there is one open pull request.
CREATE UNIQUE INDEX pulls_open ON pulls (repository_id, head, base) WHERE state = 'open';
CREATE INDEX pulls_by_state ON pulls (repository_id, state, number);

CREATE TABLE issues (
    repository_id TEXT NOT NULL REFERENCES repositories (id) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    project_id TEXT NOT NULL REFERENCES projects (id),
    title TEXT NOT NULL,
    body TEXT NOT NULL,
    state TEXT NOT NULL,
    author TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL,
    closed_ms BIGINT,
    PRIMARY KEY (repository_id, number)
);

-- On a pull request or an issue, by its number: comments, reviews, and comments on lines.
CREATE TABLE forge_comments (
    id TEXT NOT NULL PRIMARY KEY,
    repository_id TEXT NOT NULL REFERENCES repositories (id) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    project_id TEXT NOT NULL REFERENCES projects (id),
    kind TEXT NOT NULL,
    body TEXT NOT NULL,
    author TEXT NOT NULL,
    verdict TEXT,
    commit_id TEXT,
    path TEXT,
    line BIGINT,
    side TEXT,
    in_reply_to TEXT,
    created_ms BIGINT NOT NULL
);
CREATE INDEX forge_comments_by_number ON forge_comments (repository_id, number, kind, id);

CREATE TABLE commit_statuses (
    repository_id TEXT NOT NULL REFERENCES repositories (id) ON DELETE CASCADE,
    commit_id TEXT NOT NULL,
    context TEXT NOT NULL,
    project_id TEXT NOT NULL REFERENCES projects (id),
    state TEXT NOT NULL,
    description TEXT NOT NULL,
    target_url TEXT,
    author TEXT NOT NULL,
    changed_ms BIGINT NOT NULL,
    PRIMARY KEY (repository_id, commit_id, context)
);

-- Which deliveries of webhooks were taken, so that none is taken twice.
CREATE TABLE webhook_deliveries (
    connection_id TEXT NOT NULL REFERENCES forge_connections (id),
    delivery TEXT NOT NULL,
    event TEXT NOT NULL,
    received_ms BIGINT NOT NULL,
    PRIMARY KEY (connection_id, delivery)
);
CREATE INDEX webhook_deliveries_by_age ON webhook_deliveries (received_ms);
