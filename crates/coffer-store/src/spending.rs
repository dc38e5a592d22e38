//! What models cost, by model, and what agents report of calls that did not pass the gateway.

use coffer_core::{AgentId, Millis, ProjectId, SandboxId, TaskId};
use sqlx::{AnyConnection, Row};

use crate::columns::storable;
use crate::error::Doing;
use crate::{StoreError, now_ms};

const RECORD: &str = "record what models cost";
const DAY_MS: Millis = 86_400_000;
/// What an agent may report for one sandbox, in billionths of the currency: what it says is not checked, and a budget that
/// is spent stops the whole project.
const MOST_REPORTED_NANOS: i64 = 1_000 * 1_000_000_000;
/// Names of models of a project and day; further ones are counted together, as [`OTHER`].
const MOST_MODELS: i64 = 200;
const LONGEST_MODEL: usize = 200;
const OTHER: &str = "other";

/// What a model was used for.
#[derive(Debug)]
pub(crate) struct ModelUse<'a> {
    pub project: ProjectId,
    pub model: &'a str,
    pub agent: Option<AgentId>,
    pub task: Option<TaskId>,
    pub source: &'static str,
    pub calls: i64,
    pub input_tokens: i64,
    pub output_tokens: i64,
    pub cost_nanos: i64,
}

pub(crate) async fn add_model_use(
    connection: &mut AnyConnection,
    used: &ModelUse<'_>,
) -> Result<(), StoreError> {
    let day = now_ms().div_euclid(DAY_MS);
    let mut model = storable(&used.model[..used.model.floor_char_boundary(LONGEST_MODEL)]);
    let known = sqlx::query(
        "SELECT CAST(COUNT(DISTINCT model) AS BIGINT) AS models,
             CAST(COALESCE(SUM(CASE WHEN model = $3 THEN 1 ELSE 0 END), 0) AS BIGINT) AS same
         FROM model_usage WHERE project_id = $1 AND day = $2",
    )
    .bind(used.project)
    .bind(day)
    .bind(model.clone())
    .fetch_one(&mut *connection)
    .await
    .doing(RECORD)?;
    let number = |column| known.try_get::<i64, _>(column).doing(RECORD);
    if number("same")? == 0 && number("models")? >= MOST_MODELS {
        model = OTHER.to_string();
    }
    sqlx::query(
        "INSERT INTO model_usage (project_id, day, model, agent_id, task_id, source, calls, input_tokens, output_tokens,
             cost_nanos)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
         ON CONFLICT (project_id, day, model, agent_id, task_id, source) DO UPDATE SET
             calls = model_usage.calls + excluded.calls,
             input_tokens = model_usage.input_tokens + excluded.input_tokens,
             output_tokens = model_usage.output_tokens + excluded.output_tokens,
             cost_nanos = model_usage.cost_nanos + excluded.cost_nanos",
    )
    .bind(used.project)
    .bind(day)
    .bind(model)
    .bind(used.agent.map(|agent| agent.to_string()).unwrap_or_default())
    .bind(used.task.map(|task| task.to_string()).unwrap_or_default())
    .bind(used.source)
    .bind(used.calls)
    .bind(used.input_tokens)
    .bind(used.output_tokens)
    .bind(used.cost_nanos)
    .execute(connection)
    .await
    .doing(RECORD)
    .map(drop)
}

/// Counts what agents reported for a sandbox. They report totals: what was counted before is left out, so a total that is
/// recorded twice adds nothing. Where calls passed the gateway, its figures count instead.
pub(crate) async fn count_reported(
    connection: &mut AnyConnection,
    project: ProjectId,
    sandbox: SandboxId,
) -> Result<(), StoreError> {
    let row = sqlx::query(
        "SELECT
             (SELECT CAST(COALESCE(SUM(model_calls), 0) AS BIGINT) FROM usage
              WHERE project_id = $1 AND sandbox_id = $2) AS calls,
             (SELECT CAST(COALESCE(SUM(reported_cost_nanos), 0) AS BIGINT) FROM usage
              WHERE project_id = $1 AND sandbox_id = $2) AS counted,
             (SELECT CAST(COALESCE(SUM(cost_nanos), 0) AS BIGINT) FROM task_attempts
              WHERE project_id = $1 AND sandbox_id = $2) AS of_attempts,
             (SELECT CAST(COALESCE(SUM(agent_cost_nanos), 0) AS BIGINT) FROM competition_entries
              WHERE project_id = $1 AND sandbox_id = $2) AS of_entries,
             COALESCE((SELECT MIN(model) FROM competition_entries WHERE project_id = $1 AND sandbox_id = $2),
                 (SELECT MIN(model) FROM task_attempts WHERE project_id = $1 AND sandbox_id = $2)) AS model,
             COALESCE((SELECT MIN(agent_id) FROM competition_entries WHERE project_id = $1 AND sandbox_id = $2),
                 (SELECT MIN(agent_id) FROM task_attempts WHERE project_id = $1 AND sandbox_id = $2)) AS agent,
             COALESCE((SELECT MIN(task_id) FROM task_attempts WHERE project_id = $1 AND sandbox_id = $2),
                 (SELECT MIN(c.task_id) FROM competition_entries AS e JOIN competitions AS c ON c.id = e.competition_id
                  WHERE e.project_id = $1 AND e.sandbox_id = $2)) AS task",
    )
    .bind(project)
    .bind(sandbox)
    .fetch_one(&mut *connection)
    .await
    .doing(RECORD)?;
    let number = |column| row.try_get::<i64, _>(column).doing(RECORD);
    let total = number("of_attempts")?.max(number("of_entries")?).min(MOST_REPORTED_NANOS);
    let more = total.saturating_sub(number("counted")?);
    if number("calls")? > 0 || more <= 0 {
        return Ok(());
    }
    let agent = crate::columns::optional_id(&row, "agent")?;
    sqlx::query(
        "INSERT INTO usage (project_id, day, sandbox_id, agent_id, running_ms, cpu_ms, memory_mib_ms, cpu_used_us,
             cost_nanos, reported_cost_nanos)
         VALUES ($1, $2, $3, $4, 0, 0, 0, 0, 0, $5)
         ON CONFLICT (project_id, day, sandbox_id) DO UPDATE SET
             reported_cost_nanos = usage.reported_cost_nanos + excluded.reported_cost_nanos",
    )
    .bind(project)
    .bind(now_ms().div_euclid(DAY_MS))
    .bind(sandbox)
    .bind(agent)
    .bind(more)
    .execute(&mut *connection)
    .await
    .doing(RECORD)?;
    let model = crate::columns::optional_text(&row, "model")?;
    let used = ModelUse {
        project,
        model: model.as_deref().unwrap_or("not reported"),
        agent,
        task: crate::columns::optional_id(&row, "task")?,
        source: "agent",
        calls: 0,
        input_tokens: 0,
        output_tokens: 0,
        cost_nanos: more,
    };
    add_model_use(connection, &used).await
}
