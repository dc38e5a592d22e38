//! Request and response shapes of tasks.

use coffer_core::{AgentId, Priority, TaskState};
use coffer_store::TaskRow;

use crate::error::ApiError;
use crate::v1::board::{amount, check_text, check_title, nanos};
use crate::v1::repositories::plain_name;
use coffer_api_types::tasks::{AttentionShape, ChangedTask, NewTask, OnReview, PlaceShape, Task};
use coffer_core::clock::rfc3339;
use coffer_flow::task::USUAL_CHECK_TRIES;

const LONGEST_DESCRIPTION: usize = 64 * 1024;
const MOST_LABELS: usize = 50;
const LONGEST_LABEL: usize = 100;
const LONGEST_TEXT: usize = 1000;
const LONGEST_COMMAND: usize = 8 * 1024;

pub(super) fn shown(row: TaskRow) -> Task {
    let attention = row.attention.map(|why| AttentionShape {
        code: why.code.to_string(),
        message: why.message,
        step: why.step,
    });
    Task {
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
        check_tries: row.check_tries.unwrap_or(USUAL_CHECK_TRIES),
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
        issue: row.issue,
    }
}

/// A checked request.
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

pub(super) fn checked_new(new: NewTask) -> Result<CheckedNew, ApiError> {
    check_title(&new.title)?;
    check_description(&new.description)?;
    let texts = [
        ("repository", &new.repository, LONGEST_TEXT),
        ("base_branch", &new.base_branch, LONGEST_TEXT),
        ("model", &new.model, LONGEST_TEXT),
        ("check_command", &new.check_command, LONGEST_COMMAND),
        ("context_id", &new.context_id, LONGEST_TEXT),
    ];
    for (field, text, longest) in texts {
        check_text(field, text.as_deref(), longest)?;
    }
    Ok(CheckedNew {
        labels: checked_labels(new.labels)?,
        budget_nanos: new.budget.map(nanos).transpose()?,
        title: new.title,
        description: new.description,
        state: new.state,
        priority: new.priority,
        repository: new.repository.as_deref().map(plain_name).map(String::from),
        base_branch: new.base_branch,
        agent_id: new.agent_id,
        model: new.model,
        check_command: new.check_command,
        context_id: new.context_id,
    })
}

pub(super) fn checked_change(change: ChangedTask) -> Result<CheckedChange, ApiError> {
    change.title.as_deref().map_or(Ok(()), check_title)?;
    change.description.as_deref().map_or(Ok(()), check_description)?;
    let texts = [
        ("repository", &change.repository, LONGEST_TEXT),
        ("base_branch", &change.base_branch, LONGEST_TEXT),
        ("model", &change.model, LONGEST_TEXT),
        ("check_command", &change.check_command, LONGEST_COMMAND),
        ("context_id", &change.context_id, LONGEST_TEXT),
    ];
    for (field, text, longest) in texts {
        check_text(field, text.as_ref().and_then(Option::as_deref), longest)?;
    }
    if change.needs_attention == Some(true) {
        return Err(ApiError::invalid("needs_attention", "can only be cleared: set it to false"));
    }
    Ok(CheckedChange {
        labels: change.labels.map(checked_labels).transpose()?,
        budget_nanos: change.budget.map(|budget| budget.map(nanos).transpose()).transpose()?,
        title: change.title,
        description: change.description,
        state: change.state,
        place: change.place,
        priority: change.priority,
        repository: change.repository.map(|name| name.as_deref().map(plain_name).map(String::from)),
        base_branch: change.base_branch,
        agent_id: change.agent_id,
        model: change.model,
        check_command: change.check_command,
        context_id: change.context_id,
        archived: change.archived,
        needs_attention: change.needs_attention,
    })
}

fn check_description(text: &str) -> Result<(), ApiError> {
    if text.len() <= LONGEST_DESCRIPTION {
        return Ok(());
    }
    Err(ApiError::invalid("description", format!("may have at most {} KiB", LONGEST_DESCRIPTION / 1024)))
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
