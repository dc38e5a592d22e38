//! Settles calls that have ended, and records refused ones.

use coffer_core::model::{ModelTry, Used};
use coffer_core::{AgentId, Millis, ModelCallId, ProjectId, SandboxId, TaskId};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};
use strum::{EnumString, IntoStaticStr, VariantArray};

use super::{ModelBodies, NewCall};
use crate::columns::{id, optional_id, storable, text};
use crate::error::Doing;
use crate::spending::{ModelUse, add_model_use};
use crate::{Operator, Store, StoreError, now_ms};

const SETTLE: &str = "settle a call";
const DAY_MS: Millis = 86_400_000;
const LOST_AT_ONCE: i64 = 500;

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum CallOutcome {
    /// The provider answered.
    Answered,
    /// The provider answered with an error.
    Failed,
    /// The provider could not be reached, or broke off.
    Broken,
    /// The agent did not wait for the end of the answer.
    Aborted,
    /// The server stopped in the middle of it.
    Lost,
    /// The gateway did not send it.
    Refused,
}

coffer_core::names!(CallOutcome);

/// The end of a call.
#[derive(Debug, Clone)]
pub struct Settled {
    pub outcome: CallOutcome,
    pub status: Option<u16>,
    pub used: Used,
    /// `None` if the model has no price.
    pub cost_nanos: Option<i64>,
    /// The provider did not say what it used.
    pub is_estimated: bool,
    pub answered_by: Option<String>,
    pub first_byte_ms: Option<Millis>,
    pub error: Option<String>,
    pub bodies: Option<ModelBodies>,
    /// Empty if the first try was the only one.
    pub tries: Vec<ModelTry>,
}

/// Whose usage a call is.
struct Owner {
    project: ProjectId,
    sandbox: SandboxId,
    agent: Option<AgentId>,
    task: Option<TaskId>,
    model: String,
}

impl Owner {
    fn read(row: &AnyRow) -> Result<Self, StoreError> {
        Ok(Self {
            project: id(row, "project_id")?,
            sandbox: id(row, "sandbox_id")?,
            agent: optional_id(row, "agent_id")?,
            task: optional_id(row, "task_id")?,
            model: text(row, "model")?,
        })
    }
}

impl Store {
    /// Records the end of a call and charges its cost, once.
    pub async fn settle_call(
        &self,
        _: &Operator,
        project: ProjectId,
        call: ModelCallId,
        end: Settled,
    ) -> Result<(), StoreError> {
        let (mut request, mut answer) = (None, None);
        if let Some(bodies) = &end.bodies {
            self.vault().ready(self.database(), project).await?;
            let seal =
                |what: &str, text: &str| self.vault().seal(project, &super::calls::purpose(call, what), text);
            request = Some(seal("request", &bodies.request)?);
            answer = Some(seal("answer", &bodies.answer)?);
        }
        let settle = self.database().write(SETTLE, move |connection| {
            Box::pin(async move {
                let row = sqlx::query(
                    "UPDATE model_calls SET outcome = $1, status = $2, input_tokens = $3, cached_tokens = $4,
                         cache_write_tokens = $5, output_tokens = $6, cost_nanos = $7, is_estimated = $8,
                         answered_by = $9, first_byte_ms = $10, error = $11, ended_ms = $12,
                         request_sealed = $13, answer_sealed = $14, tries = $15
                     WHERE id = $16 AND ended_ms IS NULL
                     RETURNING project_id, sandbox_id, agent_id, task_id, model",
                )
                .bind(end.outcome.as_str())
                .bind(end.status.map(i64::from))
                .bind(count(end.used.all_input()))
                .bind(count(end.used.cached))
                .bind(count(end.used.cache_write.saturating_add(end.used.cache_write_hour)))
                .bind(count(end.used.output))
                .bind(end.cost_nanos)
                .bind(i64::from(end.is_estimated))
                .bind(end.answered_by.as_deref().map(storable))
                .bind(end.first_byte_ms)
                .bind(end.error.as_deref().map(storable))
                .bind(now_ms())
                .bind(request)
                .bind(answer)
                .bind((!end.tries.is_empty()).then(|| crate::columns::json(&end.tries)))
                .bind(call)
                .fetch_optional(&mut *connection)
                .await
                .doing(SETTLE)?;
                let Some(row) = row else { return Ok(()) };
                charge(connection, &Owner::read(&row)?, &end.used, end.cost_nanos.unwrap_or(0)).await
            })
        });
        settle.await
    }

    /// Settles calls that this server was carrying when it died, with what was reserved for them.
    pub async fn settle_lost_calls(&self, _: &Operator) -> Result<u64, StoreError> {
        let installation = self.installation().unwrap_or_default();
        let mut all = 0;
        loop {
            let installation = installation.clone();
            let settle = self.database().write(SETTLE, move |connection| {
                Box::pin(async move {
                    let sql = format!(
                        "UPDATE model_calls SET outcome = '{}', cost_nanos = reserved_nanos, is_estimated = 1,
                             ended_ms = $1, error = 'the server stopped during the call'
                         WHERE id IN (SELECT id FROM model_calls
                             WHERE ended_ms IS NULL AND installation = $2 ORDER BY id LIMIT $3)
                         RETURNING project_id, sandbox_id, agent_id, task_id, model, reserved_nanos",
                        CallOutcome::Lost.as_str()
                    );
                    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
                        .bind(now_ms())
                        .bind(installation)
                        .bind(LOST_AT_ONCE)
                        .fetch_all(&mut *connection)
                        .await
                        .doing(SETTLE)?;
                    for row in &rows {
                        let cost: i64 = row.try_get("reserved_nanos").doing(SETTLE)?;
                        charge(connection, &Owner::read(row)?, &Used::default(), cost).await?;
                    }
                    Ok::<_, StoreError>(rows.len() as u64)
                })
            });
            let settled = settle.await?;
            all += settled;
            if settled < LOST_AT_ONCE.unsigned_abs() {
                return Ok(all);
            }
        }
    }

    /// Records a call that the gateway refused.
    pub async fn record_refused_call(
        &self,
        new: NewCall,
        status: u16,
        why: String,
    ) -> Result<(), StoreError> {
        let installation = self.installation().unwrap_or_default();
        let record = self.database().write(SETTLE, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                sqlx::query(
                    "INSERT INTO model_calls (id, project_id, grant_id, sandbox_id, agent_id, task_id, run_id,
                         installation, provider, kind, model, reserved_nanos, began_ms, ended_ms, outcome, status,
                         cost_nanos, error)
                     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, 0, $12, $12, $13, $14, 0, $15)",
                )
                .bind(ModelCallId::generate())
                .bind(new.grant.project)
                .bind(new.grant.id)
                .bind(new.grant.sandbox)
                .bind(new.grant.agent)
                .bind(new.grant.task)
                .bind(new.grant.run)
                .bind(installation)
                .bind(new.provider.as_str())
                .bind(new.kind.as_str())
                .bind(storable(&new.model))
                .bind(now)
                .bind(CallOutcome::Refused.as_str())
                .bind(i64::from(status))
                .bind(storable(&why))
                .execute(connection)
                .await
                .doing(SETTLE)
                .map(drop)
            })
        });
        record.await
    }
}

fn count(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}

/// Adds a call to the usage of its sandbox, on the day on which it ended.
async fn charge(
    connection: &mut AnyConnection,
    owner: &Owner,
    used: &Used,
    cost_nanos: i64,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO usage (project_id, day, sandbox_id, agent_id, running_ms, cpu_ms, memory_mib_ms,
             cpu_used_us, cost_nanos, model_calls, model_input_tokens, model_output_tokens, model_cost_nanos)
         VALUES ($1, $2, $3, $4, 0, 0, 0, 0, 0, 1, $5, $6, $7)
         ON CONFLICT (project_id, day, sandbox_id) DO UPDATE SET
             model_calls = usage.model_calls + 1,
             model_input_tokens = usage.model_input_tokens + excluded.model_input_tokens,
             model_output_tokens = usage.model_output_tokens + excluded.model_output_tokens,
             model_cost_nanos = usage.model_cost_nanos + excluded.model_cost_nanos",
    )
    .bind(owner.project)
    .bind(now_ms().div_euclid(DAY_MS))
    .bind(owner.sandbox)
    .bind(owner.agent)
    .bind(count(used.all_input()))
    .bind(count(used.output))
    .bind(cost_nanos)
    .execute(&mut *connection)
    .await
    .doing(SETTLE)?;
    let used = ModelUse {
        project: owner.project,
        model: &owner.model,
        agent: owner.agent,
        task: owner.task,
        source: "gateway",
        calls: 1,
        input_tokens: count(used.all_input()),
        output_tokens: count(used.output),
        cost_nanos,
    };
    add_model_use(connection, &used).await
}
