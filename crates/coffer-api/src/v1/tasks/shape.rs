//! How tasks look.

use coffer_core::{AgentId, Priority, TaskId, TaskState};
use coffer_store::TaskRow;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::v1::repositories::plain_name;
use coffer_core::clock::rfc3339;

const LONGEST_TITLE: usize = 500;
const LONGEST_DESCRIPTION: usize = 64 * 1024;
const MOST_LABELS: usize = 50;
const LONGEST_LABEL: usize = 100;
const LONGEST_TEXT: usize = 1000;
const LONGEST_COMMAND: usize = 8 * 1024;
const LARGEST_BUDGET: f64 = 1e6;

/// The column that a task is in.
#[derive(Debug, ToSchema)]
#[schema(as = TaskState, rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a type of another crate")]
pub(in crate::v1) enum StateShape {
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
pub(in crate::v1) enum PriorityShape {
    Urgent,
    High,
    Medium,
    Low,
}

/// Something to be done.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::v1) struct NewTask {
    #[schema(max_length = 500)]
    pub(super) title: String,
    /// What the agent is asked to do.
    #[serde(default)]
    pub(super) description: String,
    /// `todo` by default.
    #[serde(default)]
    #[schema(value_type = Option<StateShape>)]
    pub(super) state: Option<TaskState>,
    /// `medium` by default.
    #[serde(default)]
    #[schema(value_type = Option<PriorityShape>)]
    pub(super) priority: Option<Priority>,
    #[serde(default)]
    #[schema(max_items = 50)]
    pub(super) labels: Vec<String>,
    /// The repository to work on, as the project's forge names it.
    #[serde(default)]
    pub(super) repository: Option<String>,
    /// Where its branch begins; the repository's own by default.
    #[serde(default)]
    pub(super) base_branch: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub(super) agent_id: Option<AgentId>,
    /// In place of the agent's own.
    #[serde(default)]
    pub(super) model: Option<String>,
    /// What must pass, as a line for a shell.
    #[serde(default)]
    #[schema(example = "make test")]
    pub(super) check_command: Option<String>,
    /// What an attempt may cost, in the server's currency.
    #[serde(default)]
    pub(super) budget: Option<f64>,
    /// Names a research task, a hypothesis, a ticket: whatever it belongs to elsewhere.
    #[serde(default)]
    pub(super) context_id: Option<String>,
    /// What a review of its pull request does: `wait` for a person (the default), or `start` the next attempt.
    #[serde(default)]
    pub(super) on_review: OnReview,
}

/// Where in its column a task goes.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = TaskPlace)]
pub(in crate::v1) enum PlaceShape {
    First,
    Last,
    /// After that task of the column.
    #[schema(value_type = String)]
    After(TaskId),
}

/// What is to become of a task.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
pub(in crate::v1) struct ChangedTask {
    pub(super) title: Option<String>,
    pub(super) description: Option<String>,
    #[schema(value_type = Option<StateShape>)]
    pub(super) state: Option<TaskState>,
    /// At the end of the column that it is moved to, unless it is said.
    pub(super) place: Option<PlaceShape>,
    #[schema(value_type = Option<PriorityShape>)]
    pub(super) priority: Option<Priority>,
    pub(super) labels: Option<Vec<String>>,
    #[serde(deserialize_with = "named")]
    #[schema(value_type = Option<String>)]
    pub(super) repository: Option<Option<String>>,
    #[serde(deserialize_with = "named")]
    #[schema(value_type = Option<String>)]
    pub(super) base_branch: Option<Option<String>>,
    #[serde(deserialize_with = "named")]
    #[schema(value_type = Option<String>)]
    pub(super) agent_id: Option<Option<AgentId>>,
    #[serde(deserialize_with = "named")]
    #[schema(value_type = Option<String>)]
    pub(super) model: Option<Option<String>>,
    #[serde(deserialize_with = "named")]
    #[schema(value_type = Option<String>)]
    pub(super) check_command: Option<Option<String>>,
    #[serde(deserialize_with = "named")]
    #[schema(value_type = Option<f64>)]
    pub(super) budget: Option<Option<f64>>,
    #[serde(deserialize_with = "named")]
    #[schema(value_type = Option<String>)]
    pub(super) context_id: Option<Option<String>>,
    pub(super) archived: Option<bool>,
    /// `false`: nobody needs to look any more.
    pub(super) needs_attention: Option<bool>,
    pub(super) on_review: Option<OnReview>,
}

/// What a review of a task's pull request does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = TaskOnReview)]
#[serde(rename_all = "snake_case")]
pub(in crate::v1) enum OnReview {
    /// For a person.
    #[default]
    Wait,
    /// Begins the next attempt.
    Start,
}

/// A field that is there, be it null.
pub(in crate::v1) fn named<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// Why a person must look.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TaskAttention)]
pub(in crate::v1) struct AttentionShape {
    code: String,
    message: String,
    /// The step that failed.
    step: Option<String>,
}

/// A task.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::v1) struct Task {
    id: String,
    title: String,
    description: String,
    #[schema(value_type = StateShape)]
    state: TaskState,
    needs_attention: Option<AttentionShape>,
    #[schema(value_type = PriorityShape)]
    priority: Priority,
    labels: Vec<String>,
    repository: Option<String>,
    base_branch: Option<String>,
    /// The branch of its attempts.
    branch: Option<String>,
    agent_id: Option<String>,
    model: Option<String>,
    check_command: Option<String>,
    budget: Option<f64>,
    context_id: Option<String>,
    /// The newest attempt's.
    run_id: Option<String>,
    attempts: i64,
    pull_url: Option<String>,
    commit: Option<String>,
    created_by: Option<String>,
    version: i64,
    created_at: String,
    updated_at: String,
    archived_at: Option<String>,
    on_review: OnReview,
}

impl Task {
    pub(super) fn of(row: TaskRow) -> Self {
        let attention =
            row.attention.map(|why| AttentionShape { code: why.code, message: why.message, step: why.step });
        Self {
            id: row.id.to_string(),
            title: row.title,
            description: row.description,
            state: row.state,
            needs_attention: attention,
            priority: row.priority,
            labels: row.labels,
            repository: row.repository,
            base_branch: row.base_branch,
            branch: row.branch,
            agent_id: row.agent.map(|agent| agent.to_string()),
            model: row.model,
            check_command: row.check_command,
            budget: row.budget_nanos.map(amount),
            context_id: row.context_id,
            run_id: row.run.map(|run| run.to_string()),
            attempts: row.attempts,
            pull_url: row.pull_url,
            commit: row.commit,
            created_by: row.created_by,
            version: row.version,
            created_at: rfc3339(row.created_ms),
            updated_at: rfc3339(row.updated_ms),
            archived_at: row.archived_ms.map(rfc3339),
            on_review: if row.starts_on_review { OnReview::Start } else { OnReview::Wait },
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people; far below what a float holds exactly")]
pub(in crate::v1) fn amount(nanos: i64) -> f64 {
    nanos as f64 / 1e9
}

/// What was asked for, once it fits.
#[derive(Debug, Default)]
pub(in crate::v1) struct CheckedNew {
    pub(super) title: String,
    pub(super) description: String,
    pub(super) state: Option<TaskState>,
    pub(super) priority: Option<Priority>,
    pub(super) labels: Vec<String>,
    pub(super) repository: Option<String>,
    pub(super) base_branch: Option<String>,
    pub(super) agent_id: Option<AgentId>,
    pub(super) model: Option<String>,
    pub(super) check_command: Option<String>,
    pub(super) budget_nanos: Option<i64>,
    pub(super) context_id: Option<String>,
}

#[derive(Debug, Default)]
pub(in crate::v1) struct CheckedChange {
    pub(super) title: Option<String>,
    pub(super) description: Option<String>,
    pub(super) state: Option<TaskState>,
    pub(super) place: Option<PlaceShape>,
    pub(super) priority: Option<Priority>,
    pub(super) labels: Option<Vec<String>>,
    pub(super) repository: Option<Option<String>>,
    pub(super) base_branch: Option<Option<String>>,
    pub(super) agent_id: Option<Option<AgentId>>,
    pub(super) model: Option<Option<String>>,
    pub(super) check_command: Option<Option<String>>,
    pub(super) budget_nanos: Option<Option<i64>>,
    pub(super) context_id: Option<Option<String>>,
    pub(super) archived: Option<bool>,
    pub(super) needs_attention: Option<bool>,
}

impl NewTask {
    pub(super) fn checked(self) -> Result<CheckedNew, ApiError> {
        check_title(&self.title)?;
        check_description(&self.description)?;
        let texts = [
            ("repository", &self.repository, LONGEST_TEXT),
            ("base_branch", &self.base_branch, LONGEST_TEXT),
            ("model", &self.model, LONGEST_TEXT),
            ("check_command", &self.check_command, LONGEST_COMMAND),
            ("context_id", &self.context_id, LONGEST_TEXT),
        ];
        for (field, text, longest) in texts {
            check_text(field, text.as_deref(), longest)?;
        }
        Ok(CheckedNew {
            labels: checked_labels(self.labels)?,
            budget_nanos: self.budget.map(nanos).transpose()?,
            title: self.title,
            description: self.description,
            state: self.state,
            priority: self.priority,
            repository: self.repository.as_deref().map(plain_name).map(String::from),
            base_branch: self.base_branch,
            agent_id: self.agent_id,
            model: self.model,
            check_command: self.check_command,
            context_id: self.context_id,
        })
    }
}

impl ChangedTask {
    pub(super) fn checked(self) -> Result<CheckedChange, ApiError> {
        self.title.as_deref().map_or(Ok(()), check_title)?;
        self.description.as_deref().map_or(Ok(()), check_description)?;
        let texts = [
            ("repository", &self.repository, LONGEST_TEXT),
            ("base_branch", &self.base_branch, LONGEST_TEXT),
            ("model", &self.model, LONGEST_TEXT),
            ("check_command", &self.check_command, LONGEST_COMMAND),
            ("context_id", &self.context_id, LONGEST_TEXT),
        ];
        for (field, text, longest) in texts {
            check_text(field, text.as_ref().and_then(Option::as_deref), longest)?;
        }
        if self.needs_attention == Some(true) {
            return Err(ApiError::invalid("needs_attention", "can only be taken away: set it to false"));
        }
        Ok(CheckedChange {
            labels: self.labels.map(checked_labels).transpose()?,
            budget_nanos: self.budget.map(|budget| budget.map(nanos).transpose()).transpose()?,
            title: self.title,
            description: self.description,
            state: self.state,
            place: self.place,
            priority: self.priority,
            repository: self.repository.map(|name| name.as_deref().map(plain_name).map(String::from)),
            base_branch: self.base_branch,
            agent_id: self.agent_id,
            model: self.model,
            check_command: self.check_command,
            context_id: self.context_id,
            archived: self.archived,
            needs_attention: self.needs_attention,
        })
    }
}

pub(in crate::v1) fn check_title(title: &str) -> Result<(), ApiError> {
    let fits = !title.trim().is_empty() && title.chars().count() <= LONGEST_TITLE;
    if fits && !title.chars().any(char::is_control) {
        return Ok(());
    }
    Err(ApiError::invalid("title", format!("must have 1 to {LONGEST_TITLE} characters on one line")))
}

fn check_description(text: &str) -> Result<(), ApiError> {
    if text.len() <= LONGEST_DESCRIPTION {
        return Ok(());
    }
    Err(ApiError::invalid("description", format!("may have at most {} KiB", LONGEST_DESCRIPTION / 1024)))
}

pub(in crate::v1) fn check_text(field: &str, text: Option<&str>, longest: usize) -> Result<(), ApiError> {
    match text {
        Some(text) if text.trim().is_empty() || text.len() > longest || text.contains('\0') => {
            Err(ApiError::invalid(field, format!("must have 1 to {longest} bytes, none of them NUL")))
        }
        _ => Ok(()),
    }
}

fn checked_labels(labels: Vec<String>) -> Result<Vec<String>, ApiError> {
    let fits = |label: &String| {
        (1..=LONGEST_LABEL).contains(&label.chars().count())
            && label.trim() == label
            && !label.chars().any(char::is_control)
    };
    if labels.len() > MOST_LABELS || !labels.iter().all(fits) {
        let why = format!("must be at most {MOST_LABELS} words of 1 to {LONGEST_LABEL} characters");
        return Err(ApiError::invalid("labels", why));
    }
    let mut seen = std::collections::HashSet::new();
    Ok(labels.into_iter().filter(|label| seen.insert(label.clone())).collect())
}

pub(in crate::v1) fn nanos(budget: f64) -> Result<i64, ApiError> {
    if !(budget > 0.0 && budget <= LARGEST_BUDGET) {
        return Err(ApiError::invalid("budget", "must be more than 0 and at most a million"));
    }
    #[expect(clippy::cast_possible_truncation, reason = "bounded above")]
    let nanos = (budget * 1e9).round() as i64;
    Ok(nanos.max(1))
}
