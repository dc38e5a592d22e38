//! What tasks and competitions share: who may plan them, what their requests may say, and why one is refused.

use coffer_core::{Answer, Code, Question, TaskId};
use coffer_store::TaskError;

use super::projects::changed_meanwhile;
use crate::auth::{Caller, Need};
use crate::error::ApiError;

const LONGEST_TITLE: usize = 500;
const LARGEST_BUDGET: f64 = 1e6;

/// Refuses agents' keys: only people plan tasks.
pub(super) fn by_people<N: Need>(caller: &Caller<N>) -> Result<(), ApiError> {
    match caller.scope.agent() {
        None => Ok(()),
        Some(_) => Err(ApiError::of(Code::Forbidden, "an agent's key cannot plan, start or end tasks")
            .hint("it can read its own tasks and send messages to them")),
    }
}

pub(super) fn refusal(error: TaskError, task: TaskId) -> ApiError {
    match error {
        TaskError::NotFound => ApiError::nothing("task", task),
        TaskError::Changed => changed_meanwhile(),
        TaskError::NoAgent(agent) => {
            ApiError::invalid("agent_id", format!("names no agent of this project: {agent}"))
        }
        TaskError::NoNeighbour(other) => {
            ApiError::invalid("place.after", format!("names task {other}, which is not in that column"))
        }
        TaskError::Busy => ApiError::conflict("an attempt at this task is in progress")
            .hint("cancel it first, or start with \"replace\": true"),
        TaskError::Idle => ApiError::conflict("no attempt at this task is in progress"),
        TaskError::NoTurn => ApiError::conflict("no agent works on this task now")
            .hint("an attempt can be interrupted while its agent works; cancel it to end it"),
        TaskError::NotAsked => ApiError::conflict("no attempt at this task waits for an answer")
            .hint("GET /api/v1/tasks/{task}/question says what it waits for, if it does"),
        TaskError::WrongAnswer(question) => {
            let answers: Vec<&str> = question.answers().map(Answer::as_str).collect();
            let error = ApiError::conflict(format!("the attempt waits for one of: {}", answers.join(", ")));
            match question {
                Question::OtherBudget => error
                    .hint("the budget of the project or of the sandbox is spent: raise it at /api/v1/budgets, then go_on"),
                Question::Budget | Question::Interrupted => error,
            }
        }
        TaskError::BudgetTooSmall(spent) => {
            ApiError::invalid("budget", format!("must be more than {}, which is spent", amount(spent)))
        }
        TaskError::Archived => {
            ApiError::conflict("the task is archived").hint("PATCH it with \"archived\": false first")
        }
        TaskError::Store(error) => ApiError::store(error),
    }
}

pub(super) fn check_title(title: &str) -> Result<(), ApiError> {
    let fits = !title.trim().is_empty() && title.chars().count() <= LONGEST_TITLE;
    if fits && !title.chars().any(char::is_control) {
        return Ok(());
    }
    Err(ApiError::invalid("title", format!("must have 1 to {LONGEST_TITLE} characters on one line")))
}

pub(super) fn check_text(field: &str, text: Option<&str>, longest: usize) -> Result<(), ApiError> {
    match text {
        Some(text) if text.trim().is_empty() || text.len() > longest || text.contains('\0') => {
            Err(ApiError::invalid(field, format!("must have 1 to {longest} bytes, none of them NUL")))
        }
        _ => Ok(()),
    }
}

pub(super) fn nanos(budget: f64) -> Result<i64, ApiError> {
    if !(budget > 0.0 && budget <= LARGEST_BUDGET) {
        return Err(ApiError::invalid("budget", "must be more than 0 and at most a million"));
    }
    #[expect(clippy::cast_possible_truncation, reason = "bounded above")]
    let nanos = (budget * 1e9).round() as i64;
    Ok(nanos.max(1))
}

#[expect(clippy::cast_precision_loss, reason = "for people; far below what a float holds exactly")]
pub(super) fn amount(nanos: i64) -> f64 {
    nanos as f64 / 1e9
}
