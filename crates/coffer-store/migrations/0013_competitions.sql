-- Competitions: several agents do the same in forks of one prepared sandbox, and one of them wins.

CREATE TABLE competitions (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    -- The run that executes it; where it is an attempt at a task, also the attempt's.
    run_id TEXT NOT NULL,
    task_id TEXT REFERENCES tasks (id) ON DELETE CASCADE,
    title TEXT NOT NULL,
    -- What every agent is asked, unless its entry says otherwise.
    prompt TEXT NOT NULL,
    repository TEXT,
    -- A sandbox that was prepared by others: it is forked and otherwise left alone. Not referenced: it may go.
    source_id TEXT,
    base_branch TEXT,
    template TEXT,
    prepare_command TEXT,
    check_command TEXT,
    -- manual, best
    rule TEXT NOT NULL,
    budget_nanos BIGINT,
    decide_within_s BIGINT NOT NULL,
    context_id TEXT,
    -- queued, preparing, working, judging, waiting, publishing, decided, failed, cancelled
    state TEXT NOT NULL,
    -- The sandbox that is forked, and the commit that all begin at.
    sandbox_id TEXT,
    base_commit TEXT,
    decide_by_ms BIGINT,
    winner BIGINT,
    picked_by TEXT,
    pull_url TEXT,
    error TEXT,
    created_by TEXT NOT NULL,
    -- The request that made it, if it had a key, and a digest of what that asked for.
    idempotency_key TEXT,
    idempotency_print TEXT,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL,
    ended_ms BIGINT
);
CREATE INDEX competitions_by_project ON competitions (project_id, id);
CREATE INDEX competitions_by_task ON competitions (task_id, id) WHERE task_id IS NOT NULL;
CREATE INDEX competitions_by_context ON competitions (project_id, context_id, id) WHERE context_id IS NOT NULL;
CREATE UNIQUE INDEX competitions_by_run ON competitions (run_id);
CREATE UNIQUE INDEX competitions_by_key ON competitions (project_id, idempotency_key)
    WHERE idempotency_key IS NOT NULL;

CREATE TABLE competition_entries (
    competition_id TEXT NOT NULL REFERENCES competitions (id) ON DELETE CASCADE,
    -- From 1.
    number BIGINT NOT NULL,
    project_id TEXT NOT NULL REFERENCES projects (id),
    label TEXT NOT NULL,
    agent_id TEXT NOT NULL REFERENCES agents (id),
    model TEXT,
    prompt TEXT,
    budget_nanos BIGINT,
    -- queued, forked, working, checking, done, failed, cancelled
    state TEXT NOT NULL,
    sandbox_id TEXT,
    execution_id TEXT,
    exit_code BIGINT,
    -- 1 where the checks passed, 0 where they did not.
    check_passed BIGINT,
    check_exit_code BIGINT,
    check_execution_id TEXT,
    diff_files BIGINT,
    diff_added BIGINT,
    diff_removed BIGINT,
    duration_ms BIGINT,
    -- What its sandbox cost, and what its agent cost by its own account.
    cost_nanos BIGINT,
    agent_cost_nanos BIGINT,
    input_tokens BIGINT,
    output_tokens BIGINT,
    rank BIGINT,
    -- JSON: texts.
    reasons TEXT,
    branch TEXT,
    commit_id TEXT,
    summary TEXT,
    error TEXT,
    -- What it changed since the commit that all began at: with that it stays as a revision.
    patch TEXT,
    patch_cut BIGINT NOT NULL DEFAULT 0,
    started_ms BIGINT,
    ended_ms BIGINT,
    PRIMARY KEY (competition_id, number)
);
