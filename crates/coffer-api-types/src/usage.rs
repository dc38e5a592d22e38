//! Usage and cost of sandboxes.

use coffer_core::{ProjectId, SandboxId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Selects usage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct UsageQuery {
    /// `day` (by default), `sandbox`; for operators `project` too.
    pub group: Option<String>,
    /// The first day, in UTC, such as `2026-11-01`; 30 days before the last by default.
    pub from: Option<String>,
    /// The last day; today by default.
    pub to: Option<String>,
    /// Only of this sandbox.
    #[param(value_type = Option<String>)]
    pub sandbox: Option<SandboxId>,
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
    /// The agent that owned the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// How long sandboxes ran; pauses do not count.
    pub running_seconds: f64,
    /// Their processors, times seconds.
    pub cpu_seconds: f64,
    /// Their memory limit in GiB, times seconds.
    pub memory_gib_seconds: f64,
    /// Processor time that they actually used.
    pub cpu_used_seconds: f64,
    /// At the prices of that time, without calls of models.
    pub cost: f64,
    /// Calls of models through the gateway.
    #[serde(default)]
    pub model_calls: i64,
    #[serde(default)]
    pub model_input_tokens: i64,
    #[serde(default)]
    pub model_output_tokens: i64,
    /// What they cost; budgets count it too.
    #[serde(default)]
    pub model_cost: f64,
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
