//! Budgets: how much a project, or one sandbox of it, may cost.

use coffer_core::event::Event;
use coffer_core::{BudgetAction, BudgetId, BudgetPeriod, Millis, ProjectId, SandboxId};
use sqlx::Row;
use sqlx::any::AnyRow;

use crate::columns::{self, id};
use crate::error::Doing;
use crate::select::Select;
use crate::{NameError, Operator, ProjectScope, Scope, Store, StoreError, events, now_ms};

const READ: &str = "read budgets";
const CHANGE: &str = "change a budget";

/// The terms of a budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetTerms {
    /// In billionths of the currency.
    pub amount_nanos: i64,
    /// Percentages at which to warn, in rising order, each below 100.
    pub warn_at: Vec<i64>,
    pub action: BudgetAction,
}

/// A budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    pub id: BudgetId,
    pub project: ProjectId,
    /// The sandbox that it is for; `None` for the whole project.
    pub sandbox: Option<SandboxId>,
    pub period: BudgetPeriod,
    pub terms: BudgetTerms,
    pub created_ms: Millis,
    pub version: i64,
    /// The period (its first day) and the percentage of the last event.
    pub told: (i64, i64),
}

/// A budget event to record.
#[derive(Debug, Clone)]
pub struct BudgetNews {
    pub budget: BudgetId,
    /// The previous event, so that two servers do not emit it twice.
    pub before: (i64, i64),
    pub now: (i64, i64),
    pub event: Event,
}

macro_rules! budget_columns {
    () => {
        "id, project_id, sandbox_id, period, amount_nanos, warn_at, action, created_ms, version, told_period, \
         told_percent"
    };
}

impl Store {
    /// Creates a budget; there is one per sandbox or project, and period.
    pub async fn create_budget(
        &self,
        scope: &ProjectScope,
        sandbox: Option<SandboxId>,
        period: BudgetPeriod,
        terms: BudgetTerms,
    ) -> Result<Budget, NameError> {
        let (scope, budget) = (*scope, BudgetId::generate());
        let insert = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                if let Some(sandbox) = sandbox {
                    let known = sqlx::query("SELECT id FROM sandboxes WHERE id = $1 AND project_id = $2")
                        .bind(sandbox)
                        .bind(scope.project())
                        .fetch_optional(&mut *connection)
                        .await
                        .doing(CHANGE)?;
                    if known.is_none() {
                        return Err(NameError::NotFound);
                    }
                }
                let made = sqlx::query(concat!(
                    "INSERT INTO budgets (id, project_id, sandbox_id, period, amount_nanos, warn_at, action,
                         created_ms)
                     VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
                     ON CONFLICT (project_id, sandbox_id, period) DO NOTHING
                     RETURNING ",
                    budget_columns!()
                ))
                .bind(budget)
                .bind(scope.project())
                .bind(sandbox.map(|sandbox| sandbox.to_string()).unwrap_or_default())
                .bind(period.as_str())
                .bind(terms.amount_nanos)
                .bind(columns::json(&terms.warn_at))
                .bind(terms.action.as_str())
                .bind(now_ms())
                .fetch_optional(connection)
                .await
                .doing(CHANGE)?;
                Ok(read(&made.ok_or(NameError::Taken)?)?)
            })
        });
        insert.await
    }

    /// The project's budgets after `after`, oldest first.
    pub async fn budgets(
        &self,
        scope: &impl Scope,
        after: Option<BudgetId>,
        limit: u32,
    ) -> Result<Vec<Budget>, StoreError> {
        Select::new(budget_columns!(), "budgets")
            .filter_if("project_id = ?", scope.only())
            .oldest_first("id", after, limit)
            .all(self.database(), READ, read)
            .await
    }

    /// The budget of that id, if the scope sees it.
    pub async fn budget(&self, scope: &impl Scope, budget: BudgetId) -> Result<Option<Budget>, StoreError> {
        Select::new(budget_columns!(), "budgets")
            .filter("id = ?", budget)
            .filter_if("project_id = ?", scope.only())
            .one(self.database(), READ, read)
            .await
    }

    /// Changes a budget with this version; `None` if the version differs or it was deleted. Its events are
    /// emitted again if they apply again.
    pub async fn change_budget(
        &self,
        scope: &impl Scope,
        budget: BudgetId,
        version: Option<i64>,
        terms: BudgetTerms,
    ) -> Result<Option<Budget>, StoreError> {
        let only = scope.only();
        let change = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let changed = sqlx::query(concat!(
                    "UPDATE budgets SET amount_nanos = $1, warn_at = $2, action = $3, version = version + 1,
                         told_percent = 0
                     WHERE id = $4 AND ($5 IS NULL OR project_id = $5) AND ($6 IS NULL OR version = $6)
                     RETURNING ",
                    budget_columns!()
                ))
                .bind(terms.amount_nanos)
                .bind(columns::json(&terms.warn_at))
                .bind(terms.action.as_str())
                .bind(budget)
                .bind(only)
                .bind(version)
                .fetch_optional(connection)
                .await
                .doing(CHANGE)?;
                changed.as_ref().map(read).transpose()
            })
        });
        change.await
    }

    /// Deletes a budget with this version; false if the version differs or it was deleted.
    pub async fn remove_budget(
        &self,
        scope: &impl Scope,
        budget: BudgetId,
        version: Option<i64>,
    ) -> Result<bool, StoreError> {
        let only = scope.only();
        let remove = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let removed = sqlx::query(
                    "DELETE FROM budgets
                     WHERE id = $1 AND ($2 IS NULL OR project_id = $2) AND ($3 IS NULL OR version = $3)",
                )
                .bind(budget)
                .bind(only)
                .bind(version)
                .execute(connection)
                .await
                .doing(CHANGE)?;
                Ok(removed.rows_affected() > 0)
            })
        });
        remove.await
    }

    /// The spending since `first_day` that counts for a budget.
    pub async fn spent(&self, _: &Operator, budget: &Budget, first_day: i64) -> Result<i64, StoreError> {
        let row = sqlx::query(
            "SELECT CAST(COALESCE(SUM(cost_nanos + model_cost_nanos + reported_cost_nanos), 0) AS BIGINT) AS spent FROM usage
             WHERE project_id = $1 AND day >= $2 AND ($3 IS NULL OR sandbox_id = $3)",
        )
        .bind(budget.project)
        .bind(first_day)
        .bind(budget.sandbox)
        .fetch_one(self.database().readers())
        .await
        .doing(READ)?;
        row.try_get("spent").doing(READ)
    }

    /// Records a budget event, unless another server has.
    pub async fn tell_of_budget(&self, _: &Operator, news: BudgetNews) -> Result<bool, StoreError> {
        let tell = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let told = sqlx::query(
                    "UPDATE budgets SET told_period = $1, told_percent = $2
                     WHERE id = $3 AND told_period = $4 AND told_percent = $5
                     RETURNING project_id, sandbox_id",
                )
                .bind(news.now.0)
                .bind(news.now.1)
                .bind(news.budget)
                .bind(news.before.0)
                .bind(news.before.1)
                .fetch_optional(&mut *connection)
                .await
                .doing(CHANGE)?;
                let Some(told) = told else { return Ok(false) };
                let sandbox: String = told.try_get("sandbox_id").doing(CHANGE)?;
                let subject = if sandbox.is_empty() { news.budget.to_string() } else { sandbox };
                let project = id(&told, "project_id")?;
                events::record(connection, project, subject, news.event, now_ms()).await?;
                Ok(true)
            })
        });
        tell.await
    }
}

fn read(row: &AnyRow) -> Result<Budget, StoreError> {
    let unreadable = |what, why: String| StoreError::Unreadable { what, why };
    let number = |column| row.try_get::<i64, _>(column).doing(READ);
    let text = |column| row.try_get::<String, _>(column).doing(READ);
    let (period, action, sandbox) = (text("period")?, text("action")?, text("sandbox_id")?);
    let sandbox = Some(sandbox).filter(|id| !id.is_empty()).map(|id| id.parse());
    Ok(Budget {
        id: id(row, "id")?,
        project: id(row, "project_id")?,
        sandbox: sandbox
            .transpose()
            .map_err(|error: coffer_core::BadId| unreadable("sandbox_id", error.to_string()))?,
        period: BudgetPeriod::parse(&period).ok_or_else(|| unreadable("period", period))?,
        terms: BudgetTerms {
            amount_nanos: number("amount_nanos")?,
            warn_at: serde_json::from_str(&text("warn_at")?)
                .map_err(|error| unreadable("warn_at", error.to_string()))?,
            action: BudgetAction::parse(&action).ok_or_else(|| unreadable("action", action))?,
        },
        created_ms: number("created_ms")?,
        version: number("version")?,
        told: (number("told_period")?, number("told_percent")?),
    })
}
