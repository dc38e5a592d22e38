-- Tasks that start by the clock.
CREATE TABLE schedules (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    name TEXT NOT NULL,
    cron TEXT NOT NULL,
    time_zone TEXT NOT NULL,
    -- JSON: the task to create.
    template TEXT NOT NULL,
    -- skip or start.
    overlap TEXT NOT NULL,
    enabled BIGINT NOT NULL,
    -- When it starts its next task; none while it is paused.
    next_ms BIGINT,
    last_ms BIGINT,
    last_task_id TEXT,
    -- started, skipped or failed, and why.
    last_outcome TEXT,
    last_message TEXT,
    created_by TEXT,
    version BIGINT NOT NULL,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL
);
CREATE UNIQUE INDEX schedules_by_name ON schedules (project_id, name);
CREATE INDEX schedules_due ON schedules (next_ms) WHERE next_ms IS NOT NULL;

-- The schedule that created a task.
ALTER TABLE tasks ADD COLUMN schedule_id TEXT;
CREATE INDEX tasks_by_schedule ON tasks (schedule_id) WHERE schedule_id IS NOT NULL;
