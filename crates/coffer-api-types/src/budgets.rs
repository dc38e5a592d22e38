//! Budgets: how much the project, or one of its sandboxes, may cost.

use coffer_core::SandboxId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a budget is for: each day, each month (both in UTC), or all time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Period {
    Day,
    Month,
    Total,
}

/// What happens to running sandboxes when it is spent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    #[default]
    Pause,
    End,
}

/// A new budget.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewBudget {
    /// The sandbox that it is for; the whole project by default.
    #[schema(value_type = Option<String>)]
    pub sandbox_id: Option<SandboxId>,
    pub period: Period,
    /// How much may be spent, in the server's currency.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    pub amount: f64,
    /// Percentages at which the event `budget.warned` is emitted; 80 by default.
    pub warn_at: Option<Vec<i64>>,
    /// `pause` by default.
    #[serde(default)]
    pub action: Action,
}

/// New values of a budget.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangedBudget {
    /// How much may be spent, in the server's currency.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    pub amount: f64,
    /// Percentages at which the event `budget.warned` is emitted; 80 by default.
    pub warn_at: Option<Vec<i64>>,
    /// `pause` by default.
    #[serde(default)]
    pub action: Action,
}

/// A budget with its current spending.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Budget {
    pub id: String,
    pub sandbox_id: Option<String>,
    pub period: Period,
    pub amount: f64,
    pub warn_at: Vec<i64>,
    pub action: Action,
    /// Spent in the current period.
    pub spent: f64,
    pub currency: String,
    /// Whether it is spent, so that sandboxes may not run.
    pub exceeded: bool,
    pub created_at: String,
}
