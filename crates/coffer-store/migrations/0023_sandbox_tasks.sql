-- The task that a sandbox is for. Deleting the task keeps its sandboxes, without it.
ALTER TABLE sandboxes ADD COLUMN task_id TEXT REFERENCES tasks (id) ON DELETE SET NULL;
-- When the sandbox was last used, written every few seconds while it is and when it ends or pauses. NULL: not on record.
ALTER TABLE sandboxes ADD COLUMN last_used_ms BIGINT;

-- `task_attempts.sandbox_id`, `task_attempts.run_id`, `competitions.run_id`, `competitions.sandbox_id` and
-- `competition_entries.sandbox_id` get no reference. Sandboxes and runs are pruned after some weeks; tasks and competitions
-- stay, and so must these ids: the budget of a task adds up the usage of each attempt's sandbox by its id, also after the
-- sandbox is pruned. ON DELETE SET NULL would make that money free again, CASCADE would delete the attempt, and RESTRICT would
-- stop the pruning. Only the run that owns the row writes the ids, of a sandbox that it created in its own project, so an
-- index for the lookups is enough. (`run_id` has one.)
CREATE INDEX task_attempts_by_sandbox ON task_attempts (sandbox_id) WHERE sandbox_id IS NOT NULL;
CREATE INDEX competitions_by_sandbox ON competitions (sandbox_id) WHERE sandbox_id IS NOT NULL;
CREATE INDEX competition_entries_by_sandbox ON competition_entries (sandbox_id) WHERE sandbox_id IS NOT NULL;

-- Sandboxes that tasks have already.
UPDATE sandboxes SET task_id = (
    SELECT MIN(a.task_id) FROM task_attempts AS a
    WHERE a.sandbox_id = sandboxes.id AND a.project_id = sandboxes.project_id)
WHERE id IN (SELECT a.sandbox_id FROM task_attempts AS a WHERE a.sandbox_id IS NOT NULL);
UPDATE sandboxes SET task_id = (
    SELECT MIN(c.task_id) FROM competition_entries AS e JOIN competitions AS c ON c.id = e.competition_id
    WHERE e.sandbox_id = sandboxes.id AND c.project_id = sandboxes.project_id)
WHERE task_id IS NULL AND id IN (
    SELECT e.sandbox_id FROM competition_entries AS e JOIN competitions AS c ON c.id = e.competition_id
    WHERE e.sandbox_id IS NOT NULL AND c.task_id IS NOT NULL);

-- Filters of lists, in the order of the list. Agents have an index, metadata pairs a table.
CREATE INDEX sandboxes_by_task ON sandboxes (task_id, project_id, started_ms, id) WHERE task_id IS NOT NULL;
-- A template can be named in three columns. They mostly have the same name, which is then in the first index alone: every
-- change of a state writes it. With the state, a list of live sandboxes passes none that have ended.
CREATE INDEX sandboxes_by_template ON sandboxes (project_id, template, state, started_ms, id);
CREATE INDEX sandboxes_by_template_id ON sandboxes (project_id, template_id, state, started_ms, id)
    WHERE template_id <> template;
CREATE INDEX sandboxes_by_alias ON sandboxes (project_id, alias, state, started_ms, id)
    WHERE alias <> template AND alias <> template_id;
