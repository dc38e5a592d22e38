-- What started a task, or was said on its issue, so that it does so once.
CREATE TABLE task_triggers (
    project_id TEXT NOT NULL REFERENCES projects (id),
    source TEXT NOT NULL,
    at_ms BIGINT NOT NULL,
    PRIMARY KEY (project_id, source)
);

-- When a repository of another forge is asked again what happened there, and since when.
CREATE TABLE forge_polls (
    repository_id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    next_ms BIGINT NOT NULL,
    since_ms BIGINT NOT NULL
);
