//! Reserves what a call can cost, before it is sent.

use coffer_core::model::{CallKind, Provider};
use coffer_core::{BudgetPeriod, ModelCallId, ProjectId};
use sqlx::{AnyConnection, Row};

use super::GrantRow;
use crate::columns::storable;
use crate::error::Doing;
use crate::projects::lock_project;
use crate::{Store, StoreError, now_ms};

const RESERVE: &str = "reserve the cost of a call";

/// A call that is about to be sent.
#[derive(Debug, Clone)]
pub struct NewCall {
    pub grant: GrantRow,
    pub provider: Provider,
    pub kind: CallKind,
    pub model: String,
    pub worth: Worth,
    /// What the sandbox itself cost so far.
    pub sandbox_cost_nanos: i64,
    pub periods: Periods,
}

/// What a call can cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worth {
    /// At most `most`; it can be limited to cost as little as `least`.
    Between { least: i64, most: i64 },
    /// Nobody knows: it passes only where no budget applies.
    Unknown,
}

/// The first days of the periods of budgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Periods {
    pub day: i64,
    pub month: i64,
}

/// The limit that refuses a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelLimit {
    /// The budget of the task, or of the entry of a competition.
    Work,
    Project(BudgetPeriod),
    Sandbox(BudgetPeriod),
}

/// The answer to a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserved {
    /// The call may cost this much.
    Yes {
        call: ModelCallId,
        nanos: i64,
    },
    /// Not now: calls in progress hold what it needs.
    Wait,
    /// It does not fit what is left.
    Over {
        limit: ModelLimit,
        left_nanos: i64,
        amount_nanos: i64,
    },
    /// A budget applies, and nobody knows what it would cost.
    Unknown {
        limit: ModelLimit,
    },
    Closed,
}

/// What is left of a limit.
struct Left {
    limit: ModelLimit,
    amount: i64,
    left: i64,
}

impl Store {
    /// Reserves the cost of a call and records that it began.
    pub async fn reserve_call(&self, new: NewCall) -> Result<Reserved, StoreError> {
        let installation = self.installation().unwrap_or_default();
        let reserve = self.database().write(RESERVE, move |connection| {
            Box::pin(async move {
                let project = new.grant.project;
                // One reservation of a project at a time, on every server.
                lock_project(connection, project, RESERVE).await?;
                let Some((limits, open)) = limits(connection, &new).await? else {
                    return Ok(Reserved::Closed);
                };
                let tightest = limits.into_iter().min_by_key(|limit| limit.left);
                let nanos = match (tightest, new.worth) {
                    (None, Worth::Between { most, .. }) => most,
                    (None, Worth::Unknown) => 0,
                    (Some(limit), Worth::Unknown) => return Ok(Reserved::Unknown { limit: limit.limit }),
                    (Some(limit), Worth::Between { most, .. }) if most <= limit.left => most,
                    (Some(_), _) if open => return Ok(Reserved::Wait),
                    (Some(limit), Worth::Between { least, .. }) if least <= limit.left => limit.left,
                    (Some(Left { limit, amount, left }), _) => {
                        return Ok(Reserved::Over { limit, left_nanos: left.max(0), amount_nanos: amount });
                    }
                };
                let call = ModelCallId::generate();
                insert(connection, call, &new, nanos, &installation).await?;
                Ok(Reserved::Yes { call, nanos })
            })
        });
        reserve.await
    }
}

/// What is left of each limit, and whether calls in progress hold something of them; `None` if the grant was
/// closed.
async fn limits(
    connection: &mut AnyConnection,
    new: &NewCall,
) -> Result<Option<(Vec<Left>, bool)>, StoreError> {
    let grant =
        sqlx::query("SELECT budget_nanos, run_budget_nanos, closed_ms FROM model_grants WHERE id = $1 AND project_id = $2")
            .bind(new.grant.id)
            .bind(new.grant.project)
            .fetch_optional(&mut *connection)
            .await
            .doing(RESERVE)?;
    let Some(grant) = grant else { return Ok(None) };
    if grant.try_get::<Option<i64>, _>("closed_ms").doing(RESERVE)?.is_some() {
        return Ok(None);
    }
    let (mut limits, mut any_open) = (Vec::new(), false);
    if let Some(amount) = grant.try_get::<Option<i64>, _>("budget_nanos").doing(RESERVE)? {
        let (spent, open) = of_calls(connection, "grant_id = $1", new.grant.id.to_string()).await?;
        any_open |= open > 0;
        let left = amount.saturating_sub(spent).saturating_sub(new.sandbox_cost_nanos);
        limits.push(Left { limit: ModelLimit::Work, amount, left });
    }
    let run_budget = grant.try_get::<Option<i64>, _>("run_budget_nanos").doing(RESERVE)?;
    if let (Some(amount), Some(run)) = (run_budget, new.grant.run) {
        let (spent, open) = of_calls(connection, "run_id = $1", run.to_string()).await?;
        any_open |= open > 0;
        limits.push(Left { limit: ModelLimit::Work, amount, left: amount.saturating_sub(spent) });
    }
    let budgets = sqlx::query(
        "SELECT sandbox_id, period, amount_nanos FROM budgets
         WHERE project_id = $1 AND (sandbox_id = '' OR sandbox_id = $2)",
    )
    .bind(new.grant.project)
    .bind(new.grant.sandbox)
    .fetch_all(&mut *connection)
    .await
    .doing(RESERVE)?;
    for budget in budgets {
        let period: String = budget.try_get("period").doing(RESERVE)?;
        let Some(period) = BudgetPeriod::parse(&period) else { continue };
        let first_day = match period {
            BudgetPeriod::Day => new.periods.day,
            BudgetPeriod::Month => new.periods.month,
            BudgetPeriod::Total => 0,
        };
        let amount: i64 = budget.try_get("amount_nanos").doing(RESERVE)?;
        let of_sandbox = !budget.try_get::<String, _>("sandbox_id").doing(RESERVE)?.is_empty();
        let sandbox = of_sandbox.then(|| new.grant.sandbox.to_string());
        let (spent, held, open) = spent(connection, new.grant.project, sandbox, first_day).await?;
        any_open |= open > 0;
        let limit = if of_sandbox { ModelLimit::Sandbox(period) } else { ModelLimit::Project(period) };
        limits.push(Left { limit, amount, left: amount.saturating_sub(spent).saturating_sub(held) });
    }
    Ok(Some((limits, any_open)))
}

/// What calls cost, or hold while they are in progress; and how many are.
async fn of_calls(connection: &mut AnyConnection, which: &str, id: String) -> Result<(i64, i64), StoreError> {
    let sql = format!(
        "SELECT CAST(COALESCE(SUM(CASE WHEN ended_ms IS NULL THEN reserved_nanos
                 ELSE COALESCE(cost_nanos, 0) END), 0) AS BIGINT) AS spent,
             CAST(COALESCE(SUM(CASE WHEN ended_ms IS NULL THEN 1 ELSE 0 END), 0) AS BIGINT) AS open
         FROM model_calls WHERE {which}"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(id).fetch_one(connection).await.doing(RESERVE)?;
    Ok((row.try_get("spent").doing(RESERVE)?, row.try_get("open").doing(RESERVE)?))
}

/// The recorded cost of a project or a sandbox since a day, what calls in progress hold, and their number.
async fn spent(
    connection: &mut AnyConnection,
    project: ProjectId,
    sandbox: Option<String>,
    first_day: i64,
) -> Result<(i64, i64, i64), StoreError> {
    let row = sqlx::query(
        "SELECT CAST(COALESCE(SUM(cost_nanos + model_cost_nanos + reported_cost_nanos), 0) AS BIGINT) AS spent FROM usage
         WHERE project_id = $1 AND day >= $2 AND ($3 IS NULL OR sandbox_id = $3)",
    )
    .bind(project)
    .bind(first_day)
    .bind(sandbox.clone())
    .fetch_one(&mut *connection)
    .await
    .doing(RESERVE)?;
    let held = sqlx::query(
        "SELECT CAST(COALESCE(SUM(reserved_nanos), 0) AS BIGINT) AS held, CAST(COUNT(*) AS BIGINT) AS open
         FROM model_calls WHERE project_id = $1 AND ended_ms IS NULL AND ($2 IS NULL OR sandbox_id = $2)",
    )
    .bind(project)
    .bind(sandbox)
    .fetch_one(connection)
    .await
    .doing(RESERVE)?;
    Ok((
        row.try_get("spent").doing(RESERVE)?,
        held.try_get("held").doing(RESERVE)?,
        held.try_get("open").doing(RESERVE)?,
    ))
}

async fn insert(
    connection: &mut AnyConnection,
    call: ModelCallId,
    new: &NewCall,
    nanos: i64,
    installation: &str,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO model_calls (id, project_id, grant_id, sandbox_id, agent_id, task_id, run_id, installation,
             provider, kind, model, reserved_nanos, began_ms)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
    )
    .bind(call)
    .bind(new.grant.project)
    .bind(new.grant.id)
    .bind(new.grant.sandbox)
    .bind(new.grant.agent)
    .bind(new.grant.task)
    .bind(new.grant.run)
    .bind(installation.to_string())
    .bind(new.provider.as_str())
    .bind(new.kind.as_str())
    .bind(storable(&new.model))
    .bind(nanos)
    .bind(now_ms())
    .execute(connection)
    .await
    .doing(RESERVE)
    .map(drop)
}
