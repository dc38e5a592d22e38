-- What an attempt waits for a person to say.
CREATE TABLE task_questions (
    run_id TEXT NOT NULL,
    -- The turn after which it was asked.
    number BIGINT NOT NULL,
    project_id TEXT NOT NULL REFERENCES projects (id),
    task_id TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    -- budget, other_budget or interrupted.
    kind TEXT NOT NULL,
    message TEXT NOT NULL,
    spent_nanos BIGINT,
    budget_nanos BIGINT,
    asked_ms BIGINT NOT NULL,
    until_ms BIGINT NOT NULL,
    -- raise, go_on, finish, stop or unanswered; null while it is open.
    answer TEXT,
    new_budget_nanos BIGINT,
    answered_by TEXT,
    answered_ms BIGINT,
    PRIMARY KEY (run_id, number)
);
CREATE INDEX task_questions_by_task ON task_questions (task_id) WHERE answer IS NULL;

-- The turn that a person asked to stop, and who.
ALTER TABLE task_attempts ADD COLUMN interrupt_turn BIGINT;
ALTER TABLE task_attempts ADD COLUMN interrupt_by TEXT;

-- Whose budget refused a call: task, project or sandbox.
ALTER TABLE model_grants ADD COLUMN refused_by TEXT;
