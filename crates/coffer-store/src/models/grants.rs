//! Grants: which turn of an agent may call models, with which keys and within which budget.

use std::collections::BTreeMap;

use coffer_core::agent::Preset;
use coffer_core::event::Event;
use coffer_core::model::{KeyHeader, Provider};
use coffer_core::{AgentId, ModelGrantId, ProjectId, RunId, SandboxId, TaskId};
use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::any::AnyRow;

use crate::columns::{from_json, id, json, optional_id, optional_text, text};
use crate::error::Doing;
use crate::select::Select;
use crate::{Operator, ProjectScope, Store, StoreError, events, now_ms};

const READ: &str = "read grants of models";
const CHANGE: &str = "change a grant of models";
const COLUMNS: &str = "id, project_id, sandbox_id, agent_id, task_id, run_id, preset, keys, pass_digest, budget_nanos, run_budget_nanos, \
                       refused_ms, refused_by, closed_ms";

/// The key of a provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelKey {
    /// The name of the secret.
    pub secret: String,
    pub header: KeyHeader,
}

/// A grant to create, or to open again.
#[derive(Debug, Clone)]
pub struct NewGrant {
    /// Names the turn; there is one grant for each.
    pub key: String,
    pub sandbox: SandboxId,
    pub agent: Option<AgentId>,
    pub task: Option<TaskId>,
    pub run: Option<RunId>,
    /// The preset of the agent, for metrics.
    pub preset: Preset,
    pub keys: BTreeMap<Provider, ModelKey>,
    /// SHA-256 of the pass, in hexadecimal digits.
    pub pass_digest: String,
    pub budget_nanos: Option<i64>,
    /// What the calls of all grants of the run may cost together.
    pub run_budget_nanos: Option<i64>,
}

/// A grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantRow {
    pub id: ModelGrantId,
    pub project: ProjectId,
    pub sandbox: SandboxId,
    pub agent: Option<AgentId>,
    pub task: Option<TaskId>,
    pub run: Option<RunId>,
    /// The preset of the agent, for metrics.
    pub preset: Preset,
    pub keys: BTreeMap<Provider, ModelKey>,
    pub pass_digest: String,
    pub budget_nanos: Option<i64>,
    /// What the calls of all grants of the run may cost together.
    pub run_budget_nanos: Option<i64>,
    /// Whether a budget refused a call, and whose: `task`, `project` or `sandbox`.
    pub was_refused: bool,
    pub refused_by: Option<String>,
    pub is_closed: bool,
}

/// The sums of a grant's calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GrantTotals {
    pub calls: i64,
    /// Calls in progress.
    pub open: i64,
    /// Includes what was read from caches and written to them.
    pub input_tokens: i64,
    pub cached_tokens: i64,
    pub output_tokens: i64,
    pub cost_nanos: i64,
    /// Calls of models without a price.
    pub unpriced: i64,
}

impl Store {
    /// Creates the grant of a turn, or opens it again with another pass.
    pub async fn open_grant(&self, scope: &ProjectScope, new: NewGrant) -> Result<GrantRow, StoreError> {
        let (project, grant) = (scope.project(), ModelGrantId::generate());
        let open = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let sql = format!(
                    "INSERT INTO model_grants (id, project_id, key, sandbox_id, agent_id, task_id, run_id, preset, keys,
                         pass_digest, budget_nanos, run_budget_nanos, created_ms)
                     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
                     ON CONFLICT (project_id, key) DO UPDATE SET keys = excluded.keys,
                         pass_digest = excluded.pass_digest, budget_nanos = excluded.budget_nanos,
                         run_budget_nanos = excluded.run_budget_nanos,
                         closed_ms = NULL
                     RETURNING {COLUMNS}"
                );
                let row = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(grant)
                    .bind(project)
                    .bind(new.key)
                    .bind(new.sandbox)
                    .bind(new.agent)
                    .bind(new.task)
                    .bind(new.run)
                    .bind(new.preset.as_str())
                    .bind(json(&new.keys))
                    .bind(new.pass_digest)
                    .bind(new.budget_nanos)
                    .bind(new.run_budget_nanos)
                    .bind(now_ms())
                    .fetch_one(connection)
                    .await
                    .doing(CHANGE)?;
                read(&row)
            })
        });
        open.await
    }

    /// Gives an open grant another pass; false if it was closed.
    pub async fn renew_grant(
        &self,
        _: &Operator,
        grant: ModelGrantId,
        pass_digest: String,
    ) -> Result<bool, StoreError> {
        let renew = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let renewed = sqlx::query(
                    "UPDATE model_grants SET pass_digest = $1 WHERE id = $2 AND closed_ms IS NULL",
                )
                .bind(pass_digest)
                .bind(grant)
                .execute(connection)
                .await
                .doing(CHANGE)?;
                Ok(renewed.rows_affected() > 0)
            })
        });
        renew.await
    }

    /// Closes a grant; its calls in progress go on.
    pub async fn close_grant(&self, _: &Operator, grant: ModelGrantId) -> Result<(), StoreError> {
        let close = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                sqlx::query("UPDATE model_grants SET closed_ms = $1 WHERE id = $2 AND closed_ms IS NULL")
                    .bind(now_ms())
                    .bind(grant)
                    .execute(connection)
                    .await
                    .doing(CHANGE)
                    .map(drop)
            })
        });
        close.await
    }

    /// All open grants.
    pub async fn open_grants(&self, _: &Operator) -> Result<Vec<GrantRow>, StoreError> {
        Select::new(COLUMNS, "model_grants")
            .filter_by("closed_ms IS NULL")
            .all(self.database(), READ, read)
            .await
    }

    /// A grant of the project.
    pub async fn grant(
        &self,
        scope: &ProjectScope,
        grant: ModelGrantId,
    ) -> Result<Option<GrantRow>, StoreError> {
        Select::new(COLUMNS, "model_grants")
            .filter("id = ?", grant)
            .filter("project_id = ?", scope.project())
            .one(self.database(), READ, read)
            .await
    }

    /// Records that a budget refused a call, with its event; once for each grant.
    pub async fn note_refusal(
        &self,
        scope: &ProjectScope,
        grant: ModelGrantId,
        subject: String,
        limit: String,
        event: Event,
    ) -> Result<(), StoreError> {
        let project = scope.project();
        let note = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let noted = sqlx::query(
                    "UPDATE model_grants SET refused_ms = $1, refused_by = $4
                     WHERE id = $2 AND project_id = $3 AND refused_ms IS NULL",
                )
                .bind(now_ms())
                .bind(grant)
                .bind(project)
                .bind(limit)
                .execute(&mut *connection)
                .await
                .doing(CHANGE)?;
                if noted.rows_affected() > 0 {
                    events::record(connection, project, subject, event, now_ms()).await?;
                }
                Ok(())
            })
        });
        note.await
    }

    /// The sums of a grant's calls. Calls in progress count with what was reserved for them.
    pub async fn grant_totals(
        &self,
        scope: &ProjectScope,
        grant: ModelGrantId,
    ) -> Result<GrantTotals, StoreError> {
        let row = sqlx::query(
            "SELECT CAST(COUNT(*) AS BIGINT) AS calls,
                 CAST(COALESCE(SUM(CASE WHEN ended_ms IS NULL THEN 1 ELSE 0 END), 0) AS BIGINT) AS open,
                 CAST(COALESCE(SUM(input_tokens), 0) AS BIGINT) AS input_tokens,
                 CAST(COALESCE(SUM(cached_tokens), 0) AS BIGINT) AS cached_tokens,
                 CAST(COALESCE(SUM(output_tokens), 0) AS BIGINT) AS output_tokens,
                 CAST(COALESCE(SUM(CASE WHEN ended_ms IS NULL THEN reserved_nanos
                     ELSE COALESCE(cost_nanos, 0) END), 0) AS BIGINT) AS cost_nanos,
                 CAST(COALESCE(SUM(CASE WHEN ended_ms IS NOT NULL AND cost_nanos IS NULL THEN 1 ELSE 0 END), 0)
                     AS BIGINT) AS unpriced
             FROM model_calls WHERE grant_id = $1 AND project_id = $2 AND (outcome IS NULL OR outcome <> 'refused')",
        )
        .bind(grant)
        .bind(scope.project())
        .fetch_one(self.database().readers())
        .await
        .doing(READ)?;
        let number = |column: &str| row.try_get::<i64, _>(column).doing(READ);
        Ok(GrantTotals {
            calls: number("calls")?,
            open: number("open")?,
            input_tokens: number("input_tokens")?,
            cached_tokens: number("cached_tokens")?,
            output_tokens: number("output_tokens")?,
            cost_nanos: number("cost_nanos")?,
            unpriced: number("unpriced")?,
        })
    }
}

fn read(row: &AnyRow) -> Result<GrantRow, StoreError> {
    let number = |column: &str| row.try_get::<Option<i64>, _>(column).doing(READ);
    Ok(GrantRow {
        id: id(row, "id")?,
        project: id(row, "project_id")?,
        sandbox: id(row, "sandbox_id")?,
        agent: optional_id(row, "agent_id")?,
        task: optional_id(row, "task_id")?,
        run: optional_id(row, "run_id")?,
        preset: Preset::parse(&text(row, "preset")?).unwrap_or(Preset::Custom),
        keys: from_json(&text(row, "keys")?, "keys")?,
        pass_digest: text(row, "pass_digest")?,
        budget_nanos: number("budget_nanos")?,
        run_budget_nanos: number("run_budget_nanos")?,
        was_refused: number("refused_ms")?.is_some(),
        refused_by: optional_text(row, "refused_by")?,
        is_closed: number("closed_ms")?.is_some(),
    })
}
