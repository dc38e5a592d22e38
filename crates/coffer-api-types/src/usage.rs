//! What sandboxes used and cost.

use coffer_core::{ProjectId, SandboxId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Which usage to show.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct UsageQuery {
    /// `day` (by default), `sandbox`; for operators `project` too.
    pub group: Option<String>,
    /// The first day, in UTC, such as `2026-11-01`; 30 days before the last by default.
    pub from: Option<String>,
    /// The last day; today by default.
    pub to: Option<String>,
    /// Only this sandbox's.
    #[param(value_type = Option<String>)]
    pub sandbox: Option<SandboxId>,
}

/// Whose usage to show.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ProjectQuery {
    #[param(value_type = Option<String>)]
    pub project: Option<ProjectId>,
}

/// What was used in one day, by one sandbox or by one project.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UsageEntry {
    /// The day, where lines are days.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub day: Option<String>,
    /// The sandbox, where lines are sandboxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<String>,
    /// The project, where lines are projects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// The agent that owned the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// How long sandboxes ran; pauses do not count.
    pub running_seconds: f64,
    /// Processors that they might have used, times seconds.
    pub cpu_seconds: f64,
    /// Memory that they might have used, in GiB, times seconds.
    pub memory_gib_seconds: f64,
    /// Processor time that they really used.
    pub cpu_used_seconds: f64,
    /// At the prices of the time.
    pub cost: f64,
    pub currency: String,
}

/// What running costs on this server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Prices {
    pub currency: String,
    /// Of a processor that a sandbox may use, for each second that it runs.
    pub cpu_second: f64,
    /// Of a GiB of memory that it may use, likewise.
    pub memory_gib_second: f64,
    /// Of the sandbox itself, for each second that it runs.
    pub sandbox_second: f64,
}
