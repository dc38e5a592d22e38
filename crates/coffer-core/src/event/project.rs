//! Payloads of events about a project itself.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agent::Preset;
use crate::command::Effect;
use crate::{AgentId, BudgetAction, BudgetId, BudgetPeriod, RunId, SandboxId, TaskId};

/// An empty payload: the subject says everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nothing {}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentDefined {
    pub version: i64,
    pub preset: Option<Preset>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingsChanged {
    /// As `GET /api/v1/project` shows them.
    pub settings: Value,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotasChanged {
    /// As `GET /api/v1/quotas` shows them.
    pub quotas: Value,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyChanged {
    pub version: i64,
    /// How many rules there are.
    pub rules: usize,
    pub default: Effect,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretVersion {
    pub name: String,
    pub version: i64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BudgetReached {
    pub budget: BudgetId,
    /// `None` if it is for the whole project.
    pub sandbox: Option<SandboxId>,
    pub period: BudgetPeriod,
    pub percent: i64,
    pub spent: f64,
    pub amount: f64,
    pub currency: String,
    pub action: BudgetAction,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelBudgetReached {
    pub sandbox: SandboxId,
    pub task: Option<TaskId>,
    pub run: Option<RunId>,
    pub agent: Option<AgentId>,
    pub model: String,
    /// Whose budget: `task`, `project` or `sandbox`.
    pub limit: String,
    /// What is left of it.
    pub left: f64,
    pub amount: f64,
    pub currency: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookTerms {
    /// Not the whole address: for some receivers it is the credential.
    pub host: String,
    pub events: Vec<String>,
    pub enabled: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookDisabled {
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// The last event that the reader had.
    pub after: i64,
    /// The last event that was removed.
    pub until: i64,
}
