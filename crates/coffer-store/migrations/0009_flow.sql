-- Durable runs, tasks, and what agents are.

-- A process that executes runs. Others watch `beat`: one that does not move is dead.
CREATE TABLE runners (
    id TEXT NOT NULL PRIMARY KEY,
    -- The installation: its next process takes over what this one held.
    place TEXT NOT NULL,
    beat BIGINT NOT NULL,
    started_ms BIGINT NOT NULL
);
CREATE INDEX runners_by_place ON runners (place);

-- Held by whoever hands out slots, so that limits hold over all servers.
CREATE TABLE run_gate (
    id BIGINT NOT NULL PRIMARY KEY,
    opened BIGINT NOT NULL
);
INSERT INTO run_gate (id, opened) VALUES (1, 0);

CREATE TABLE runs (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    kind TEXT NOT NULL,
    -- What it is about: events of the run bear it.
    subject TEXT NOT NULL,
    input TEXT NOT NULL,
    -- queued, running, parked, done, failed, cancelled, stuck
    state TEXT NOT NULL,
    rank BIGINT NOT NULL,
    -- The runner that acts for it; not referenced, because burying one frees many.
    owner TEXT,
    -- Raised whenever the owner changes: a write of an earlier one is refused.
    fence BIGINT NOT NULL DEFAULT 0,
    wake_ms BIGINT NOT NULL,
    -- How often it was taken up since it last finished a step, the present time included.
    takes BIGINT NOT NULL DEFAULT 0,
    cancel_ms BIGINT,
    cancel_reason TEXT,
    -- Why what was done is being undone: cancelled, failed.
    unwinding TEXT,
    output TEXT,
    failure TEXT,
    created_ms BIGINT NOT NULL,
    started_ms BIGINT,
    ended_ms BIGINT
);
CREATE INDEX runs_by_subject ON runs (project_id, subject, id);
CREATE INDEX runs_queued ON runs (rank, id) WHERE state = 'queued';
CREATE INDEX runs_free ON runs (wake_ms) WHERE owner IS NULL AND state IN ('running', 'parked');
CREATE INDEX runs_owned ON runs (owner) WHERE owner IS NOT NULL;
CREATE INDEX runs_with_slot ON runs (project_id) WHERE state IN ('running', 'parked');

CREATE TABLE run_steps (
    run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    project_id TEXT NOT NULL REFERENCES projects (id),
    position BIGINT NOT NULL,
    -- under_way, done, failed, undone, undo_failed
    state TEXT NOT NULL,
    -- How often it began, and how often it failed.
    starts BIGINT NOT NULL,
    failures BIGINT NOT NULL,
    output TEXT,
    error TEXT,
    started_ms BIGINT NOT NULL,
    ended_ms BIGINT,
    PRIMARY KEY (run_id, name)
);

CREATE TABLE run_signals (
    run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    project_id TEXT NOT NULL REFERENCES projects (id),
    name TEXT NOT NULL,
    payload TEXT NOT NULL,
    -- The step that has it.
    taken_by TEXT,
    at_ms BIGINT NOT NULL,
    PRIMARY KEY (run_id, number)
);

-- How an agent is run: JSON, sealed, because its environment may hold anything. None for one that only acts by keys.
ALTER TABLE agents ADD COLUMN definition_secret TEXT;
ALTER TABLE agents ADD COLUMN version BIGINT NOT NULL DEFAULT 1;

CREATE TABLE tasks (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    title TEXT NOT NULL,
    -- What the agent is asked to do.
    description TEXT NOT NULL,
    -- backlog, todo, in_progress, in_review, done, cancelled
    state TEXT NOT NULL,
    -- JSON: why a person must look at it.
    attention TEXT,
    priority BIGINT NOT NULL,
    -- Where it is in its column: ascending, with gaps.
    place BIGINT NOT NULL,
    -- JSON, as they are shown; `task_labels` is to filter by.
    labels TEXT NOT NULL,
    repository TEXT,
    base_branch TEXT,
    branch TEXT,
    agent_id TEXT REFERENCES agents (id),
    model TEXT,
    check_command TEXT,
    budget_nanos BIGINT,
    context_id TEXT,
    -- The newest attempt.
    run_id TEXT,
    attempts BIGINT NOT NULL DEFAULT 0,
    pull_url TEXT,
    commit_id TEXT,
    created_by TEXT,
    version BIGINT NOT NULL DEFAULT 1,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL,
    archived_ms BIGINT
);
CREATE INDEX tasks_by_project ON tasks (project_id, id);
CREATE INDEX tasks_by_state ON tasks (project_id, state, place, id);
CREATE INDEX tasks_by_agent ON tasks (agent_id, id) WHERE agent_id IS NOT NULL;
CREATE INDEX tasks_by_context ON tasks (project_id, context_id, id) WHERE context_id IS NOT NULL;

CREATE TABLE task_labels (
    project_id TEXT NOT NULL REFERENCES projects (id),
    label TEXT NOT NULL,
    task_id TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    PRIMARY KEY (project_id, label, task_id)
);
CREATE INDEX task_labels_by_task ON task_labels (task_id);

-- One for each run of a task.
CREATE TABLE task_attempts (
    task_id TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    project_id TEXT NOT NULL REFERENCES projects (id),
    run_id TEXT NOT NULL,
    agent_id TEXT REFERENCES agents (id),
    model TEXT,
    -- queued, running, done, failed, cancelled, stuck: as the run.
    state TEXT NOT NULL,
    sandbox_id TEXT,
    execution_id TEXT,
    branch TEXT,
    commit_id TEXT,
    pull_url TEXT,
    summary TEXT,
    error TEXT,
    input_tokens BIGINT,
    output_tokens BIGINT,
    cost_nanos BIGINT,
    created_ms BIGINT NOT NULL,
    started_ms BIGINT,
    ended_ms BIGINT,
    PRIMARY KEY (task_id, number)
);
CREATE UNIQUE INDEX task_attempts_by_run ON task_attempts (run_id);

-- What people say to a task, review comments for one; an attempt takes those that it tells its agent.
CREATE TABLE task_messages (
    task_id TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    project_id TEXT NOT NULL REFERENCES projects (id),
    author TEXT NOT NULL,
    body TEXT NOT NULL,
    -- JSON: file and line that it is about.
    about TEXT,
    run_id TEXT,
    at_ms BIGINT NOT NULL,
    PRIMARY KEY (task_id, number)
);

CREATE TABLE task_history (
    task_id TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    position BIGINT NOT NULL,
    project_id TEXT NOT NULL REFERENCES projects (id),
    from_state TEXT,
    to_state TEXT NOT NULL,
    reason TEXT NOT NULL,
    actor TEXT,
    at_ms BIGINT NOT NULL,
    PRIMARY KEY (task_id, position)
);
