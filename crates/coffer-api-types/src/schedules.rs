//! Schedules: tasks that start by the clock.

use coffer_core::schedule::Overlap;
use coffer_core::{AgentId, Priority};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::tasks::PriorityShape;

/// What a schedule does while its last task is open.
#[derive(Debug, ToSchema)]
#[schema(as = ScheduleOverlap, rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a type of another crate")]
pub(crate) enum OverlapShape {
    Skip,
    Start,
}

/// The task that a schedule creates and starts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduledTask {
    /// `{{date}}` is the day on which it starts, in the schedule's time zone.
    #[schema(max_length = 500)]
    pub title: String,
    /// The work that the agent is asked to do; `{{date}}` as in the title.
    #[serde(default)]
    pub description: String,
    /// `medium` by default.
    #[serde(default)]
    #[schema(value_type = Option<PriorityShape>)]
    pub priority: Option<Priority>,
    #[serde(default)]
    #[schema(max_items = 50)]
    pub labels: Vec<String>,
    /// The repository to work on.
    #[serde(default)]
    pub repository: Option<String>,
    #[serde(default)]
    pub base_branch: Option<String>,
    #[schema(value_type = String)]
    pub agent_id: AgentId,
    /// Instead of the agent's own.
    #[serde(default)]
    pub model: Option<String>,
    /// A shell command line that must pass.
    #[serde(default)]
    pub check_command: Option<String>,
    #[serde(default)]
    #[schema(minimum = 0, maximum = 10)]
    pub check_tries: Option<i64>,
    /// The most that the attempts at one task may cost, in the server's currency.
    #[serde(default)]
    pub budget: Option<f64>,
    #[serde(default)]
    pub context_id: Option<String>,
}

const fn yes() -> bool {
    true
}

/// A new schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSchedule {
    /// Unique in the project.
    #[schema(max_length = 100)]
    pub name: String,
    /// Minute, hour, day of the month, month, weekday; or `@hourly`, `@daily`, `@weekly`, `@monthly`.
    #[schema(example = "0 6 * * mon-fri")]
    pub cron: String,
    /// `UTC` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "Europe/Berlin")]
    pub time_zone: Option<String>,
    /// `skip` (the default) starts nothing while the last task is open; `start` starts another, up to ten.
    #[serde(default)]
    #[schema(value_type = OverlapShape)]
    pub overlap: Overlap,
    #[serde(default = "yes")]
    pub enabled: bool,
    pub task: ScheduledTask,
}

/// Changes to a schedule: fields that are left out stay.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ChangedSchedule {
    pub name: Option<String>,
    #[schema(example = "0 6 * * mon-fri")]
    pub cron: Option<String>,
    #[schema(example = "Europe/Berlin")]
    pub time_zone: Option<String>,
    #[schema(value_type = Option<OverlapShape>)]
    pub overlap: Option<Overlap>,
    pub enabled: Option<bool>,
    /// Replaces the whole template.
    pub task: Option<ScheduledTask>,
}

/// The task that a schedule creates and starts, as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskOfSchedule {
    pub title: String,
    pub description: String,
    #[schema(value_type = PriorityShape)]
    pub priority: Priority,
    pub labels: Vec<String>,
    pub repository: Option<String>,
    pub base_branch: Option<String>,
    pub agent_id: Option<String>,
    pub model: Option<String>,
    pub check_command: Option<String>,
    pub check_tries: Option<i64>,
    pub budget: Option<f64>,
    pub context_id: Option<String>,
}

/// A schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Schedule {
    pub id: String,
    pub name: String,
    pub cron: String,
    pub time_zone: String,
    #[schema(value_type = OverlapShape)]
    pub overlap: Overlap,
    pub enabled: bool,
    pub task: TaskOfSchedule,
    /// When it starts its next task; null while it is paused.
    pub next_at: Option<String>,
    pub last_at: Option<String>,
    /// `started`, `skipped` or `failed`.
    pub last_outcome: Option<String>,
    /// Why it was skipped or failed.
    pub last_message: Option<String>,
    /// The newest task that it started.
    pub last_task_id: Option<String>,
    pub created_by: Option<String>,
    pub version: i64,
    pub created_at: String,
    pub updated_at: String,
}

/// What a start by hand did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleRun {
    pub task_id: String,
    pub run_id: String,
}
