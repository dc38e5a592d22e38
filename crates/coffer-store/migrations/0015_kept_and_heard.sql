-- What runs made and people want to keep. What it is about may be gone before it: nothing is referenced.

CREATE TABLE artifacts (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    -- file, diff, link, report, finding, log
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    content_type TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    -- Of the contents; none for a link, which has a URL.
    sha256 TEXT,
    url TEXT,
    description TEXT NOT NULL,
    run_id TEXT,
    task_id TEXT,
    sandbox_id TEXT,
    context_id TEXT,
    -- Under which a run keeps it once, however often it tries.
    once_key TEXT,
    -- Which server has the contents, where several share the database.
    installation TEXT,
    created_by TEXT NOT NULL,
    created_ms BIGINT NOT NULL
);
CREATE INDEX artifacts_by_project ON artifacts (project_id, id);
CREATE INDEX artifacts_by_run ON artifacts (run_id, id) WHERE run_id IS NOT NULL;
CREATE INDEX artifacts_by_task ON artifacts (task_id, id) WHERE task_id IS NOT NULL;
CREATE INDEX artifacts_by_sandbox ON artifacts (sandbox_id, id) WHERE sandbox_id IS NOT NULL;
CREATE INDEX artifacts_by_context ON artifacts (project_id, context_id, id) WHERE context_id IS NOT NULL;
CREATE UNIQUE INDEX artifacts_once ON artifacts (project_id, once_key) WHERE once_key IS NOT NULL;

-- How many runs of a project may hold a slot at once, where an operator has said so.
ALTER TABLE projects ADD COLUMN most_runs BIGINT;
CREATE INDEX runs_ended ON runs (project_id, ended_ms) WHERE ended_ms IS NOT NULL;

-- Who of the server's own parts has looked at a project's events up to where.
CREATE TABLE log_readers (
    reader TEXT NOT NULL,
    project_id TEXT NOT NULL REFERENCES projects (id),
    position BIGINT NOT NULL,
    PRIMARY KEY (reader, project_id)
);

-- What was said on the forge is said to the task once.
ALTER TABLE task_messages ADD COLUMN source TEXT;
CREATE UNIQUE INDEX task_messages_by_source ON task_messages (task_id, source) WHERE source IS NOT NULL;
-- What a review does to the task: `wait` for a person, or `start` the next attempt.
ALTER TABLE tasks ADD COLUMN on_review TEXT NOT NULL DEFAULT 'wait';
CREATE INDEX tasks_by_repository ON tasks (project_id, repository) WHERE pull_url IS NOT NULL;
-- What was before is not heard now.
INSERT INTO log_readers (reader, project_id, position) SELECT 'reviews', id, last_event FROM projects;
INSERT INTO log_readers (reader, project_id, position) SELECT 'results', id, last_event FROM projects;
