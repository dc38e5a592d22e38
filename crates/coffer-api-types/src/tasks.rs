//! Tasks.

pub use coffer_core::TaskIssue;
use coffer_core::{AgentId, Priority, TaskId, TaskState};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::fields::{flag, named};

/// The column that a task is in.
#[derive(Debug, ToSchema)]
#[schema(as = TaskState, rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a type of another crate")]
pub(crate) enum StateShape {
    Backlog,
    Todo,
    InProgress,
    InReview,
    Done,
    Cancelled,
}

#[derive(Debug, ToSchema)]
#[schema(as = TaskPriority, rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a type of another crate")]
pub(crate) enum PriorityShape {
    Urgent,
    High,
    Medium,
    Low,
}

/// A new task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTask {
    /// Required, unless `issue_url` names an issue: then its title is the default.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(max_length = 500)]
    pub title: String,
    /// The work that the agent is asked to do. The text of `issue_url` is added, quoted as the words of its author.
    #[serde(default)]
    pub description: String,
    /// `todo` by default.
    #[serde(default)]
    #[schema(value_type = Option<StateShape>)]
    pub state: Option<TaskState>,
    /// `medium` by default.
    #[serde(default)]
    #[schema(value_type = Option<PriorityShape>)]
    pub priority: Option<Priority>,
    #[serde(default)]
    #[schema(max_items = 50)]
    pub labels: Vec<String>,
    /// The repository to work on, as the project's forge names it.
    #[serde(default)]
    pub repository: Option<String>,
    /// The branch to start from; the repository's default branch by default.
    #[serde(default)]
    pub base_branch: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub agent_id: Option<AgentId>,
    /// Instead of the agent's own.
    #[serde(default)]
    pub model: Option<String>,
    /// A shell command line that must pass.
    #[serde(default)]
    #[schema(example = "make test")]
    pub check_command: Option<String>,
    /// How often the agent may correct its work after the check failed; 3 by default.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 10)]
    pub check_tries: Option<i64>,
    /// The most that the attempts may cost, in the server's currency.
    #[serde(default)]
    pub budget: Option<f64>,
    /// Any name, such as that of a research task, a hypothesis or a ticket that it belongs to.
    #[serde(default)]
    pub context_id: Option<String>,
    /// What a review of its pull request does: `wait` for a person (the default), or `start` the next attempt.
    #[serde(default)]
    pub on_review: OnReview,
    /// The issue to resolve: its address on a connected forge, its path in this API, or `repository#7`. The server reads
    /// it, registers its repository if the project does not have it, and its pull request closes it. If a task for the
    /// issue is open, that one is returned (200).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "https://github.com/octocat/hello-world/issues/7")]
    pub issue_url: Option<String>,
    /// With `issue_url`: a new task although one is open.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub another: bool,
    /// Instead of `repository`: its address on a connected forge, from which it is registered if necessary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "https://github.com/octocat/hello-world")]
    pub repository_url: Option<String>,
}

impl NewTask {
    /// A task with only a title.
    pub fn titled(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            description: String::new(),
            state: None,
            priority: None,
            labels: Vec::new(),
            repository: None,
            base_branch: None,
            agent_id: None,
            model: None,
            check_command: None,
            check_tries: None,
            budget: None,
            context_id: None,
            on_review: OnReview::default(),
            issue_url: None,
            another: false,
            repository_url: None,
        }
    }
}

/// The place of a task in its column.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = TaskPlace)]
pub enum PlaceShape {
    First,
    Last,
    /// After this task of the column.
    #[schema(value_type = String)]
    After(TaskId),
}

/// Changes to a task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ChangedTask {
    pub title: Option<String>,
    pub description: Option<String>,
    #[schema(value_type = Option<StateShape>)]
    pub state: Option<TaskState>,
    /// At the end of the column that it is moved to by default.
    pub place: Option<PlaceShape>,
    #[schema(value_type = Option<PriorityShape>)]
    pub priority: Option<Priority>,
    pub labels: Option<Vec<String>>,
    #[serde(deserialize_with = "named", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub repository: Option<Option<String>>,
    #[serde(deserialize_with = "named", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub base_branch: Option<Option<String>>,
    #[serde(deserialize_with = "named", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub agent_id: Option<Option<AgentId>>,
    #[serde(deserialize_with = "named", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub model: Option<Option<String>>,
    #[serde(deserialize_with = "named", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub check_command: Option<Option<String>>,
    #[serde(deserialize_with = "named", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i64>, minimum = 0, maximum = 10)]
    pub check_tries: Option<Option<i64>>,
    #[serde(deserialize_with = "named", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub budget: Option<Option<f64>>,
    #[serde(deserialize_with = "named", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub context_id: Option<Option<String>>,
    pub archived: Option<bool>,
    /// `false` clears it: a person has looked.
    pub needs_attention: Option<bool>,
    pub on_review: Option<OnReview>,
}

/// What a review of a task's pull request does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = TaskOnReview)]
#[serde(rename_all = "snake_case")]
pub enum OnReview {
    /// Waits for a person.
    #[default]
    Wait,
    /// Begins the next attempt.
    Start,
}

/// Why a person needs to look.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = TaskAttention)]
pub struct AttentionShape {
    pub code: String,
    pub message: String,
    /// The step that failed.
    pub step: Option<String>,
}

/// A task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Task {
    pub id: String,
    pub title: String,
    pub description: String,
    #[schema(value_type = StateShape)]
    pub state: TaskState,
    pub needs_attention: Option<AttentionShape>,
    #[schema(value_type = PriorityShape)]
    pub priority: Priority,
    pub labels: Vec<String>,
    pub repository: Option<String>,
    pub base_branch: Option<String>,
    /// The branch of its attempts.
    pub branch: Option<String>,
    pub agent_id: Option<String>,
    pub model: Option<String>,
    pub check_command: Option<String>,
    /// How often the agent may correct its work after the check failed.
    #[serde(default)]
    pub check_tries: i64,
    pub budget: Option<f64>,
    pub context_id: Option<String>,
    /// The newest attempt's run.
    pub run_id: Option<String>,
    pub attempts: i64,
    pub pull_url: Option<String>,
    pub commit: Option<String>,
    pub created_by: Option<String>,
    pub version: i64,
    pub created_at: String,
    pub updated_at: String,
    pub archived_at: Option<String>,
    pub on_review: OnReview,
    /// The issue that it is for.
    #[serde(default)]
    pub issue: Option<TaskIssue>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct TaskQuery {
    /// `backlog`, `todo`, `in_progress`, `in_review`, `done` or `cancelled`.
    pub state: Option<String>,
    #[param(value_type = Option<String>)]
    pub agent_id: Option<AgentId>,
    pub label: Option<String>,
    /// `urgent`, `high`, `medium` or `low`.
    pub priority: Option<String>,
    pub repository: Option<String>,
    pub context_id: Option<String>,
    /// Words that the title or the id has, in any case and order.
    #[param(max_length = 200)]
    pub q: Option<String>,
    /// `true` for tasks that need a person, `false` for others.
    #[serde(default, deserialize_with = "flag")]
    pub needs_attention: Option<bool>,
    /// `true` for archived tasks; `false` by default.
    #[serde(default, deserialize_with = "flag")]
    pub archived: Option<bool>,
    /// `newest` (the default) or `board`: the order of the columns.
    pub order: Option<String>,
}
