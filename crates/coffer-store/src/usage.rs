//! Usage of sandboxes.

use coffer_core::{AgentId, Millis, ProjectId, SandboxId};
use sqlx::{AnyConnection, AssertSqlSafe, Row};

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

/// The task that the sandbox of usage `u` worked on. Attempts and entries keep the ids of sandboxes that were pruned.
macro_rules! task {
    () => {
        "COALESCE((SELECT MIN(a.task_id) FROM task_attempts AS a
             WHERE a.sandbox_id = u.sandbox_id AND a.project_id = u.project_id),
         (SELECT MIN(c.task_id) FROM competition_entries AS e JOIN competitions AS c ON c.id = e.competition_id
             WHERE e.sandbox_id = u.sandbox_id AND e.project_id = u.project_id),
         (SELECT MIN(c.task_id) FROM competitions AS c
             WHERE c.sandbox_id = u.sandbox_id AND c.project_id = u.project_id),
         (SELECT s.task_id FROM sandboxes AS s WHERE s.id = u.sandbox_id AND s.project_id = u.project_id))"
    };
}

/// The agent that worked in the sandbox of usage `u`.
macro_rules! worker {
    () => {
        "COALESCE((SELECT MIN(a.agent_id) FROM task_attempts AS a
             WHERE a.sandbox_id = u.sandbox_id AND a.project_id = u.project_id),
         (SELECT MIN(e.agent_id) FROM competition_entries AS e
             WHERE e.sandbox_id = u.sandbox_id AND e.project_id = u.project_id), u.agent_id)"
    };
}

/// How usage is grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageGroup {
    Day,
    Sandbox,
    Project,
    Agent,
    Task,
    Repository,
    /// What models cost; time of sandboxes is not among it.
    Model,
}

impl UsageGroup {
    /// The key of a line, and what people call it, of usage `u`.
    const fn key_and_label(self) -> (&'static str, &'static str) {
        match self {
            Self::Day => ("CAST(1000000000 + u.day AS TEXT)", "NULL"),
            Self::Sandbox => ("u.sandbox_id", "NULL"),
            Self::Project => ("u.project_id", "NULL"),
            Self::Agent => (
                concat!("COALESCE(", worker!(), ", '')"),
                "(SELECT g.name FROM agents AS g WHERE g.id = x.line)",
            ),
            Self::Task => (
                concat!("COALESCE(", task!(), ", '')"),
                "(SELECT t.title FROM tasks AS t WHERE t.id = x.line)",
            ),
            Self::Repository => (
                concat!("COALESCE((SELECT t.repository FROM tasks AS t WHERE t.id = ", task!(), "), '')"),
                "NULL",
            ),
            Self::Model => ("u.model", "NULL"),
        }
    }
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

/// A line of usage. The key is a day (as ten digits), an id, or a name; empty where there is none, such as usage of no task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageLine {
    pub key: String,
    pub project: ProjectId,
    pub agent: Option<AgentId>,
    pub amounts: Amounts,
    pub models: ModelAmounts,
    /// What agents reported of calls that did not pass the gateway, in billionths of the currency.
    pub reported_nanos: i64,
    /// The name of an agent or the title of a task.
    pub label: Option<String>,
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
        let rows = sqlx::query(AssertSqlSafe(lines_of(filter.group)))
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
                reported_nanos: row.try_get("reported_nanos").doing(READ)?,
                label: row.try_get("label").doing(READ)?,
            })
        };
        rows.iter().map(line).collect()
    }
}

/// Sums of integers are NUMERIC in PostgreSQL, which `Any` cannot read.
fn lines_of(group: UsageGroup) -> String {
    let (key, label) = group.key_and_label();
    // A line of a task or an agent is of whoever the caller is.
    let agent = match group {
        UsageGroup::Day | UsageGroup::Sandbox => "MIN(x.agent_id)",
        _ => "NULL",
    };
    let (table, columns) = match group {
        UsageGroup::Model => (
            "model_usage",
            "0 AS running_ms, 0 AS cpu_ms, 0 AS memory_mib_ms, 0 AS cpu_used_us, 0 AS cost_nanos,
             u.calls AS model_calls, u.input_tokens AS model_input_tokens, u.output_tokens AS model_output_tokens,
             CASE WHEN u.source = 'gateway' THEN u.cost_nanos ELSE 0 END AS model_cost_nanos,
             CASE WHEN u.source = 'gateway' THEN 0 ELSE u.cost_nanos END AS reported_cost_nanos",
        ),
        _ => (
            "usage",
            "u.running_ms, u.cpu_ms, u.memory_mib_ms, u.cpu_used_us, u.cost_nanos, u.model_calls, u.model_input_tokens,
             u.model_output_tokens, u.model_cost_nanos, u.reported_cost_nanos",
        ),
    };
    let sandbox = match group {
        UsageGroup::Model => "CAST($4 AS TEXT) IS NULL",
        _ => "($4 IS NULL OR u.sandbox_id = $4)",
    };
    let sum = |column: &str| format!("CAST(SUM(x.{column}) AS BIGINT) AS {column}");
    let sums = [
        "running_ms",
        "cpu_ms",
        "memory_mib_ms",
        "cpu_used_us",
        "cost_nanos",
        "model_calls",
        "model_input_tokens",
        "model_output_tokens",
        "model_cost_nanos",
    ]
    .map(sum)
    .join(", ");
    format!(
        "SELECT x.line AS line, MIN(x.project_id) AS line_project, {agent} AS line_agent, {label} AS label, {sums},
             CAST(SUM(x.reported_cost_nanos) AS BIGINT) AS reported_nanos
         FROM (SELECT {key} AS line, u.project_id, u.agent_id, {columns} FROM {table} AS u
               WHERE ($1 IS NULL OR u.project_id = $1 OR u.agent_id = $1) AND u.day >= $2 AND u.day <= $3
                   AND {sandbox} AND ($7 IS NULL OR u.project_id = $7)) AS x
         WHERE ($5 IS NULL OR x.line > $5)
         GROUP BY x.line ORDER BY x.line LIMIT $6"
    )
}

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
