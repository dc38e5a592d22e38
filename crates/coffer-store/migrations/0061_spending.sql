-- What agents reported that models cost where no call passed the gateway: budgets count it too.
ALTER TABLE usage ADD COLUMN reported_cost_nanos BIGINT NOT NULL DEFAULT 0;

-- What each model cost, by day, agent and task: records of calls are pruned, this is not.
CREATE TABLE model_usage (
    project_id TEXT NOT NULL REFERENCES projects (id),
    day BIGINT NOT NULL,
    model TEXT NOT NULL,
    -- Empty for none: a null would make two of the same kind differ.
    agent_id TEXT NOT NULL,
    task_id TEXT NOT NULL,
    -- gateway, or agent: what it reported.
    source TEXT NOT NULL,
    calls BIGINT NOT NULL,
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    cost_nanos BIGINT NOT NULL,
    PRIMARY KEY (project_id, day, model, agent_id, task_id, source)
);

-- Calls that are still on record.
INSERT INTO model_usage
SELECT project_id, ended_ms / 86400000, model, COALESCE(agent_id, ''), COALESCE(task_id, ''), 'gateway', COUNT(*),
    CAST(SUM(input_tokens) AS BIGINT), CAST(SUM(output_tokens) AS BIGINT), CAST(SUM(COALESCE(cost_nanos, 0)) AS BIGINT)
FROM model_calls WHERE ended_ms IS NOT NULL AND outcome <> 'refused'
GROUP BY project_id, ended_ms / 86400000, model, COALESCE(agent_id, ''), COALESCE(task_id, '');
