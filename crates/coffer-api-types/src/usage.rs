//! Usage and cost of sandboxes.

use coffer_core::{ProjectId, SandboxId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Selects usage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct UsageQuery {
    /// `day` (by default), `sandbox`, `agent`, `model`, `task` or `repository`; for operators `project` too.
    pub group_by: Option<String>,
    /// The same, by its earlier name.
    pub group: Option<String>,
    /// The first day, in UTC, such as `2026-11-01`; 30 days before the last by default.
    pub from: Option<String>,
    /// The last day; today by default.
    pub to: Option<String>,
    /// Only of this sandbox.
    #[param(value_type = Option<String>)]
    pub sandbox: Option<SandboxId>,
    /// `json`, or `csv` for all lines as a table, up to 10,000. `Accept: text/csv` does the same.
    pub format: Option<String>,
}

/// Selects a project.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ProjectQuery {
    #[param(value_type = Option<String>)]
    pub project: Option<ProjectId>,
}

/// The usage of one day, one sandbox or one project.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UsageEntry {
    /// The day, if grouped by day.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub day: Option<String>,
    /// The sandbox, if grouped by sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<String>,
    /// The project, if grouped by project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// The agent, if grouped by agent; by sandbox, the agent that owned it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// The task, if grouped by task; null for what no task used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// The model, if grouped by model. Time of sandboxes is not among its costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The repository of the task, if grouped by repository.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// The name of the agent or the title of the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// How long sandboxes ran; pauses do not count.
    pub running_seconds: f64,
    /// Their processors, times seconds.
    pub cpu_seconds: f64,
    /// Their memory limit in GiB, times seconds.
    pub memory_gib_seconds: f64,
    /// Processor time that they actually used.
    pub cpu_used_seconds: f64,
    /// Of sandbox time, at the prices of that time.
    pub cost: f64,
    /// Calls of models through the gateway.
    #[serde(default)]
    pub model_calls: i64,
    #[serde(default)]
    pub model_input_tokens: i64,
    #[serde(default)]
    pub model_output_tokens: i64,
    /// What they cost.
    #[serde(default)]
    pub model_cost: f64,
    /// What agents reported that models cost, where no call passed the gateway.
    #[serde(default)]
    pub reported_cost: f64,
    /// Sandbox time and models, by whatever source; what budgets count.
    #[serde(default)]
    pub total_cost: f64,
    pub currency: String,
}

/// The prices of this server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Prices {
    pub currency: String,
    /// Of a processor of a sandbox, for each second that it runs.
    pub cpu_second: f64,
    /// Of a GiB of its memory limit, for each second that it runs.
    pub memory_gib_second: f64,
    /// Of the sandbox itself, for each second that it runs.
    pub sandbox_second: f64,
}
