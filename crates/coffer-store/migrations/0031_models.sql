-- Calls of models through the gateway: who may make them, what they used, and which models a project allows.

-- One for each turn of an agent. `key` names the turn, so that a step that is repeated finds its grant.
CREATE TABLE model_grants (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    key TEXT NOT NULL,
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    agent_id TEXT,
    task_id TEXT,
    run_id TEXT,
    preset TEXT NOT NULL,
    -- Names of secrets by provider, as JSON; never their values.
    keys TEXT NOT NULL,
    -- SHA-256 of the pass that egress has, in hexadecimal digits.
    pass_digest TEXT NOT NULL,
    -- What the sandbox in all and the calls of this grant may cost; null for no limit.
    budget_nanos BIGINT,
    -- What the calls of all grants of the run may cost together.
    run_budget_nanos BIGINT,
    created_ms BIGINT NOT NULL,
    -- When a budget first refused a call.
    refused_ms BIGINT,
    closed_ms BIGINT
);
CREATE UNIQUE INDEX model_grants_by_key ON model_grants (project_id, key);
CREATE INDEX model_grants_by_sandbox ON model_grants (sandbox_id);
CREATE INDEX model_grants_open ON model_grants (created_ms) WHERE closed_ms IS NULL;

-- Rows outlive their sandbox, agent and task, as usage does, until they are pruned.
CREATE TABLE model_calls (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    grant_id TEXT NOT NULL,
    sandbox_id TEXT NOT NULL,
    agent_id TEXT,
    task_id TEXT,
    run_id TEXT,
    -- Which server carries it: after a crash that one settles it.
    installation TEXT NOT NULL,
    provider TEXT NOT NULL,
    kind TEXT NOT NULL,
    model TEXT NOT NULL,
    answered_by TEXT,
    -- Null while it is in progress.
    outcome TEXT,
    status BIGINT,
    -- The most it can cost; counts until it is settled.
    reserved_nanos BIGINT NOT NULL,
    input_tokens BIGINT NOT NULL DEFAULT 0,
    cached_tokens BIGINT NOT NULL DEFAULT 0,
    cache_write_tokens BIGINT NOT NULL DEFAULT 0,
    output_tokens BIGINT NOT NULL DEFAULT 0,
    -- In billionths of the currency; null if the model has no price.
    cost_nanos BIGINT,
    -- 1 if the provider did not say what it used, and the cost is the most it can be.
    is_estimated BIGINT NOT NULL DEFAULT 0,
    began_ms BIGINT NOT NULL,
    first_byte_ms BIGINT,
    ended_ms BIGINT,
    error TEXT,
    -- Sealed under the project's key; only if the project asks for it.
    request_sealed TEXT,
    answer_sealed TEXT
);
CREATE INDEX model_calls_by_project ON model_calls (project_id, id);
CREATE INDEX model_calls_by_task ON model_calls (task_id, id) WHERE task_id IS NOT NULL;
CREATE INDEX model_calls_by_grant ON model_calls (grant_id);
CREATE INDEX model_calls_by_run ON model_calls (run_id) WHERE run_id IS NOT NULL;
CREATE INDEX model_calls_open ON model_calls (project_id, reserved_nanos) WHERE ended_ms IS NULL;
CREATE INDEX model_calls_by_age ON model_calls (project_id, ended_ms);

-- A project without a row allows every model and keeps no bodies. `policy` is JSON.
CREATE TABLE model_policies (
    project_id TEXT NOT NULL PRIMARY KEY REFERENCES projects (id),
    policy TEXT NOT NULL,
    version BIGINT NOT NULL,
    changed_ms BIGINT NOT NULL
);

-- What models cost counts for budgets, apart from what the sandbox costs.
ALTER TABLE usage ADD COLUMN model_calls BIGINT NOT NULL DEFAULT 0;
ALTER TABLE usage ADD COLUMN model_input_tokens BIGINT NOT NULL DEFAULT 0;
ALTER TABLE usage ADD COLUMN model_output_tokens BIGINT NOT NULL DEFAULT 0;
ALTER TABLE usage ADD COLUMN model_cost_nanos BIGINT NOT NULL DEFAULT 0;
