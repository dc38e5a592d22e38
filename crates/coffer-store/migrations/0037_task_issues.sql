-- The issue that a task is for: one open task for each, unless a person asks for another.
ALTER TABLE tasks ADD COLUMN issue_key TEXT;
ALTER TABLE tasks ADD COLUMN issue TEXT;
CREATE INDEX tasks_by_issue ON tasks (project_id, issue_key) WHERE issue_key IS NOT NULL;
