//! Usage of sandboxes.

use coffer_core::{AgentId, Millis, ProjectId, SandboxId};
use sqlx::{AnyConnection, Row};

use crate::columns::{id, optional_id};
use crate::error::Doing;
use crate::{Operator, Scope, Store, StoreError};

const READ: &str = "read usage";
const CHARGE: &str = "record usage";

/// Usage and cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amounts {
    /// How long sandboxes ran.
    pub running_ms: i64,
    /// Reserved processor time: processors times time.
    pub cpu_ms: i64,
    /// Reserved memory: mebibytes times time.
    pub memory_mib_ms: i64,
    /// Processor time that was actually used.
    pub cpu_used_us: i64,
    /// In billionths of the currency.
    pub cost_nanos: i64,
}

impl std::ops::AddAssign for Amounts {
    fn add_assign(&mut self, more: Self) {
        self.running_ms += more.running_ms;
        self.cpu_ms += more.cpu_ms;
        self.memory_mib_ms += more.memory_mib_ms;
        self.cpu_used_us += more.cpu_used_us;
        self.cost_nanos += more.cost_nanos;
    }
}

/// Calls of models, and their cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ModelAmounts {
    pub calls: i64,
    pub input_tokens: i64,
    pub output_tokens: i64,
    /// In billionths of the currency.
    pub cost_nanos: i64,
}

/// Up to when a sandbox has been counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageMark {
    pub counted_to_ms: Millis,
    /// The processor time that its host had counted by then.
    pub cpu_us: i64,
}

/// The usage of one sandbox since it was last counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    pub sandbox: SandboxId,
    pub project: ProjectId,
    pub agent: Option<AgentId>,
    /// The expected mark; `None` for a sandbox that was never counted.
    pub from: Option<Millis>,
    pub to: UsageMark,
    /// By day, counted from 1970-01-01.
    pub days: Vec<(i64, Amounts)>,
    /// It ended: the mark is deleted.
    pub last: bool,
}

/// How usage is grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageGroup {
    Day,
    Sandbox,
    Project,
}

/// Selects usage.
#[derive(Debug, Clone)]
pub struct UsageFilter {
    pub group: UsageGroup,
    pub sandbox: Option<SandboxId>,
    pub project: Option<ProjectId>,
    /// Both days included.
    pub from_day: i64,
    pub to_day: i64,
    /// The key of the previous line.
    pub after: Option<String>,
    pub limit: u32,
}

/// A line of usage. The key is a day (as ten digits), a sandbox's id or a project's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageLine {
    pub key: String,
    pub project: ProjectId,
    pub agent: Option<AgentId>,
    pub amounts: Amounts,
    pub models: ModelAmounts,
}

impl Store {
    /// The marks of all live sandboxes.
    pub async fn usage_marks(&self, _: &Operator) -> Result<Vec<(SandboxId, UsageMark)>, StoreError> {
        let rows = sqlx::query("SELECT sandbox_id, counted_to_ms, cpu_us FROM usage_marks")
            .fetch_all(self.database().readers())
            .await
            .doing(READ)?;
        let mark = |row: &sqlx::any::AnyRow| {
            let mark = UsageMark {
                counted_to_ms: row.try_get("counted_to_ms").doing(READ)?,
                cpu_us: row.try_get("cpu_us").doing(READ)?,
            };
            Ok((id(row, "sandbox_id")?, mark))
        };
        rows.iter().map(mark).collect()
    }

    /// Records usage, each charge once: a charge whose mark has moved is not counted, and its result is
    /// false.
    pub async fn charge(&self, _: &Operator, charges: Vec<Charge>) -> Result<Vec<bool>, StoreError> {
        let write = self.database().write(CHARGE, move |connection| {
            Box::pin(async move {
                let mut counted = Vec::with_capacity(charges.len());
                for charge in charges {
                    let moved = move_mark(connection, &charge).await?;
                    if moved {
                        for (day, amounts) in &charge.days {
                            add(connection, &charge, *day, amounts).await?;
                        }
                    }
                    counted.push(moved);
                }
                Ok(counted)
            })
        });
        write.await
    }

    /// Usage, line by line, ordered by key.
    pub async fn usage(
        &self,
        scope: &impl Scope,
        filter: &UsageFilter,
    ) -> Result<Vec<UsageLine>, StoreError> {
        let rows = sqlx::query(match filter.group {
            UsageGroup::Day => by!("CAST(1000000000 + day AS TEXT)", "MIN(project_id)", "MIN(agent_id)"),
            UsageGroup::Sandbox => by!("sandbox_id", "MIN(project_id)", "MIN(agent_id)"),
            UsageGroup::Project => by!("project_id", "MIN(project_id)", "NULL"),
        })
        .bind(scope.owner())
        .bind(filter.from_day)
        .bind(filter.to_day)
        .bind(filter.sandbox)
        .bind(filter.after.clone())
        .bind(i64::from(filter.limit))
        .bind(filter.project)
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        let line = |row: &sqlx::any::AnyRow| {
            Ok(UsageLine {
                key: row.try_get("line").doing(READ)?,
                project: id(row, "line_project")?,
                agent: optional_id(row, "line_agent")?,
                amounts: amounts(row)?,
                models: models(row)?,
            })
        };
        rows.iter().map(line).collect()
    }
}

/// Sums of integers are NUMERIC in PostgreSQL, which `Any` cannot read.
macro_rules! by {
    ($key:literal, $project:literal, $agent:literal) => {
        concat!(
            "SELECT ",
            $key,
            " AS line, ",
            $project,
            " AS line_project, ",
            $agent,
            " AS line_agent,
               CAST(SUM(running_ms) AS BIGINT) AS running_ms, CAST(SUM(cpu_ms) AS BIGINT) AS cpu_ms,
               CAST(SUM(memory_mib_ms) AS BIGINT) AS memory_mib_ms,
               CAST(SUM(cpu_used_us) AS BIGINT) AS cpu_used_us, CAST(SUM(cost_nanos) AS BIGINT) AS cost_nanos,
               CAST(SUM(model_calls) AS BIGINT) AS model_calls,
               CAST(SUM(model_input_tokens) AS BIGINT) AS model_input_tokens,
               CAST(SUM(model_output_tokens) AS BIGINT) AS model_output_tokens,
               CAST(SUM(model_cost_nanos) AS BIGINT) AS model_cost_nanos
             FROM usage
             WHERE ($1 IS NULL OR project_id = $1 OR agent_id = $1) AND day >= $2 AND day <= $3
                 AND ($4 IS NULL OR sandbox_id = $4) AND ($5 IS NULL OR ",
            $key,
            " > $5) AND ($7 IS NULL OR project_id = $7)
             GROUP BY ",
            $key,
            " ORDER BY ",
            $key,
            " LIMIT $6"
        )
    };
}
use by;

fn amounts(row: &sqlx::any::AnyRow) -> Result<Amounts, StoreError> {
    Ok(Amounts {
        running_ms: row.try_get("running_ms").doing(READ)?,
        cpu_ms: row.try_get("cpu_ms").doing(READ)?,
        memory_mib_ms: row.try_get("memory_mib_ms").doing(READ)?,
        cpu_used_us: row.try_get("cpu_used_us").doing(READ)?,
        cost_nanos: row.try_get("cost_nanos").doing(READ)?,
    })
}

fn models(row: &sqlx::any::AnyRow) -> Result<ModelAmounts, StoreError> {
    Ok(ModelAmounts {
        calls: row.try_get("model_calls").doing(READ)?,
        input_tokens: row.try_get("model_input_tokens").doing(READ)?,
        output_tokens: row.try_get("model_output_tokens").doing(READ)?,
        cost_nanos: row.try_get("model_cost_nanos").doing(READ)?,
    })
}

/// Moves the mark from where the charge expects it; false if it is elsewhere.
async fn move_mark(connection: &mut AnyConnection, charge: &Charge) -> Result<bool, StoreError> {
    let sandbox = charge.sandbox.to_string();
    let moved = match (charge.from, charge.last) {
        (None, _) => {
            // An existing mark belongs to another charge. The row is deleted with the last charge.
            let made = sqlx::query(
                "INSERT INTO usage_marks (sandbox_id, project_id, counted_to_ms, cpu_us)
                 VALUES ($1, $2, $3, $4) ON CONFLICT (sandbox_id) DO NOTHING",
            )
            .bind(sandbox.clone())
            .bind(charge.project)
            .bind(charge.to.counted_to_ms)
            .bind(charge.to.cpu_us)
            .execute(&mut *connection)
            .await
            .doing(CHARGE)?;
            made.rows_affected() > 0
        }
        (Some(from), _) => {
            let moved = sqlx::query(
                "UPDATE usage_marks SET counted_to_ms = $1, cpu_us = $2
                 WHERE sandbox_id = $3 AND counted_to_ms = $4",
            )
            .bind(charge.to.counted_to_ms)
            .bind(charge.to.cpu_us)
            .bind(sandbox.clone())
            .bind(from)
            .execute(&mut *connection)
            .await
            .doing(CHARGE)?;
            moved.rows_affected() > 0
        }
    };
    if charge.last && moved {
        sqlx::query("DELETE FROM usage_marks WHERE sandbox_id = $1")
            .bind(sandbox)
            .execute(connection)
            .await
            .doing(CHARGE)?;
    }
    Ok(moved)
}

async fn add(
    connection: &mut AnyConnection,
    charge: &Charge,
    day: i64,
    amounts: &Amounts,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO usage (project_id, day, sandbox_id, agent_id, running_ms, cpu_ms, memory_mib_ms,
             cpu_used_us, cost_nanos)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
         ON CONFLICT (project_id, day, sandbox_id) DO UPDATE SET
             running_ms = usage.running_ms + excluded.running_ms, cpu_ms = usage.cpu_ms + excluded.cpu_ms,
             memory_mib_ms = usage.memory_mib_ms + excluded.memory_mib_ms,
             cpu_used_us = usage.cpu_used_us + excluded.cpu_used_us,
             cost_nanos = usage.cost_nanos + excluded.cost_nanos",
    )
    .bind(charge.project)
    .bind(day)
    .bind(charge.sandbox)
    .bind(charge.agent)
    .bind(amounts.running_ms)
    .bind(amounts.cpu_ms)
    .bind(amounts.memory_mib_ms)
    .bind(amounts.cpu_used_us)
    .bind(amounts.cost_nanos)
    .execute(connection)
    .await
    .doing(CHARGE)
    .map(drop)
}
