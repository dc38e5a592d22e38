-- What sandboxes used and what that cost, and budgets that bound it.

-- One row for each sandbox and day (UTC, counted from 1970-01-01). Rows outlive their sandbox and their agent,
-- which is why they are not referenced: what was used stays used when old sandboxes are pruned. Costs are at
-- the prices of the time, in billionths of the currency.
CREATE TABLE usage (
    project_id TEXT NOT NULL REFERENCES projects (id),
    day BIGINT NOT NULL,
    sandbox_id TEXT NOT NULL,
    agent_id TEXT,
    running_ms BIGINT NOT NULL,
    cpu_ms BIGINT NOT NULL,
    memory_mib_ms BIGINT NOT NULL,
    cpu_used_us BIGINT NOT NULL,
    cost_nanos BIGINT NOT NULL,
    PRIMARY KEY (project_id, day, sandbox_id)
);
CREATE INDEX usage_by_sandbox ON usage (sandbox_id, day);
CREATE INDEX usage_by_agent ON usage (agent_id, day) WHERE agent_id IS NOT NULL;

-- Up to when a live sandbox has been counted. A charge moves the mark from where it was, in the same
-- transaction, so that nothing is counted twice.
CREATE TABLE usage_marks (
    sandbox_id TEXT NOT NULL PRIMARY KEY REFERENCES sandboxes (id) ON DELETE CASCADE,
    project_id TEXT NOT NULL REFERENCES projects (id),
    counted_to_ms BIGINT NOT NULL,
    cpu_us BIGINT NOT NULL
);

CREATE TABLE budgets (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    -- Empty for the whole project: a null would make two of the same kind differ.
    sandbox_id TEXT NOT NULL,
    period TEXT NOT NULL,
    amount_nanos BIGINT NOT NULL,
    -- Percentages, as JSON.
    warn_at TEXT NOT NULL,
    action TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    version BIGINT NOT NULL DEFAULT 1,
    -- The first day of the period that something was last told in, and at which percentage.
    told_period BIGINT NOT NULL DEFAULT 0,
    told_percent BIGINT NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX budgets_by_project ON budgets (project_id, sandbox_id, period);
