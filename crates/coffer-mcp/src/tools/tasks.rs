//! Tasks on the project's board.

use coffer_api_types::attempts::{Attempt, Start};
use coffer_api_types::tasks::{NewTask, Task, TaskQuery};
use coffer_core::{AgentId, Priority};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bounds::{bounded, one_line};
use crate::cut;
use crate::tool::{Call, Effect, Failure, Outcome, Tool};

/// Entries of a transcript that are shown.
const LAST_ENTRIES: i64 = 20;
const LONGEST_TEXT: usize = 8 << 10;

pub(super) fn tools() -> Vec<Tool> {
    vec![
        Tool::new(
            "create_task",
            "Create a task",
            "Put work for a coding agent on the project's board. It does not start by itself: start_task does that.",
            Effect::Adds,
            create,
        ),
        Tool::new(
            "start_task",
            "Start a task",
            "Start an attempt at a task: an agent works on it in a sandbox, up to a pull request. Costs what the agent costs.",
            Effect::Adds,
            start,
        ),
        Tool::new(
            "list_tasks",
            "List tasks",
            "List tasks of the project's board, newest first.",
            Effect::Reads,
            list,
        ),
        Tool::new(
            "get_task",
            "Show a task",
            "A task with its attempts: states, branch, pull request, and what the agent said last.",
            Effect::Reads,
            get,
        ),
    ]
}

fn agent_of(text: Option<String>) -> Result<Option<AgentId>, Failure> {
    let bad = |text: &str| {
        Failure::bad_request(
            format!("'{text}' is not the id of an agent"),
            "leave agent_id out, or pass an agent's id",
        )
    };
    text.map(|text| text.parse().map_err(|_| bad(&text))).transpose()
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Create {
    /// In a few words; at most 500 characters.
    title: String,
    /// The work that the agent is asked to do.
    #[serde(default)]
    description: String,
    /// The repository to work on.
    #[serde(default)]
    repository: Option<String>,
    /// The branch to start from; the default branch by default.
    #[serde(default)]
    base_branch: Option<String>,
    /// The agent that is to work on it.
    #[serde(default)]
    agent_id: Option<String>,
    /// A shell command line that must pass, such as `make test`.
    #[serde(default)]
    check_command: Option<String>,
    /// `urgent`, `high`, `medium` (the default) or `low`.
    #[serde(default)]
    priority: Option<String>,
    /// Labels.
    #[serde(default)]
    labels: Vec<String>,
    /// The most that the attempts may cost, in the server's currency.
    #[serde(default)]
    budget: Option<f64>,
}

/// A task.
#[derive(Debug, Serialize, JsonSchema)]
struct Shown {
    task_id: String,
    title: String,
    /// `backlog`, `todo`, `in_progress`, `in_review`, `done` or `cancelled`.
    state: String,
    priority: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    repository: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    branch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_id: Option<String>,
    attempts: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pull_url: Option<String>,
    /// Why a person needs to look.
    #[serde(skip_serializing_if = "Option::is_none")]
    needs_attention: Option<String>,
    created_at: String,
}

fn named(value: impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_string)).unwrap_or_default()
}

fn shown(task: Task) -> Shown {
    Shown {
        task_id: task.id,
        title: task.title,
        state: named(task.state),
        priority: named(task.priority),
        repository: task.repository,
        branch: task.branch,
        agent_id: task.agent_id,
        attempts: task.attempts,
        pull_url: task.pull_url,
        needs_attention: task.needs_attention.map(|why| format!("{}: {}", why.code, why.message)),
        created_at: task.created_at,
    }
}

fn line(task: &Shown) -> String {
    let pull = task.pull_url.as_ref().map(|url| format!(" {url}")).unwrap_or_default();
    let look = if task.needs_attention.is_some() { " needs attention" } else { "" };
    format!("{} [{}] {}{pull}{look}", task.task_id, task.state, one_line(&task.title))
}

async fn create(call: Call, input: Create) -> Result<Outcome<Shown>, Failure> {
    let priority = match input.priority {
        None => None,
        Some(text) => Some(serde_json::from_value::<Priority>(text.clone().into()).map_err(|_| {
            Failure::bad_request(format!("'{text}' is not a priority"), "use urgent, high, medium or low")
        })?),
    };
    let new = NewTask {
        description: input.description,
        priority,
        labels: input.labels,
        repository: input.repository,
        base_branch: input.base_branch,
        agent_id: agent_of(input.agent_id)?,
        check_command: input.check_command,
        check_tries: None,
        budget: input.budget,
        ..NewTask::titled(input.title)
    };
    let task = shown(call.client.create_task(&new).await?);
    Ok(Outcome::new(format!("created task {}", line(&task)), task))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StartInput {
    /// The task.
    task_id: String,
    /// Another agent; the task keeps it from then on.
    #[serde(default)]
    agent_id: Option<String>,
    /// Another model, for this attempt.
    #[serde(default)]
    model: Option<String>,
    /// Whether to end an attempt in progress.
    #[serde(default)]
    replace: bool,
}

async fn start(call: Call, input: StartInput) -> Result<Outcome<Shown>, Failure> {
    let start = Start {
        agent_id: agent_of(input.agent_id)?,
        model: input.model,
        replace: input.replace,
        compete: None,
    };
    let task = shown(call.client.start_task(&input.task_id, &start).await?);
    Ok(Outcome::new(format!("started attempt {} of {}", task.attempts, line(&task)), task))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct List {
    /// `backlog`, `todo`, `in_progress`, `in_review`, `done` or `cancelled`; all by default.
    #[serde(default)]
    state: Option<String>,
    /// Only for this repository.
    #[serde(default)]
    repository: Option<String>,
    /// How many, 1 to 200; 50 by default.
    #[serde(default)]
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Listed {
    tasks: Vec<Shown>,
    /// Whether there are more.
    more: bool,
}

async fn list(call: Call, input: List) -> Result<Outcome<Listed>, Failure> {
    let limit = bounded(input.limit, 50, 200);
    let query = TaskQuery { state: input.state, repository: input.repository, ..TaskQuery::default() };
    let mut found = call.client.tasks(&query).take(limit + 1).await?;
    let more = found.len() > limit;
    found.truncate(limit);
    let tasks: Vec<Shown> = found.into_iter().map(shown).collect();
    let text = if tasks.is_empty() {
        "no tasks".into()
    } else {
        tasks.iter().map(line).collect::<Vec<_>>().join("\n")
    };
    Ok(Outcome::new(text, Listed { tasks, more }))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Get {
    /// The task.
    task_id: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Tried {
    number: i64,
    /// `queued`, `running`, `done`, `failed`, `cancelled` or `stuck`.
    state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox_id: Option<String>,
    /// read_process returns its agent's output.
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pull_url: Option<String>,
    /// The last message of its agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Detail {
    task: Shown,
    description: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    check_command: Option<String>,
    /// Oldest first.
    attempts: Vec<Tried>,
    /// The end of what its agents did, a line each, oldest first.
    transcript: Vec<String>,
}

async fn get(call: Call, input: Get) -> Result<Outcome<Detail>, Failure> {
    let task = call.client.task(&input.task_id).await?;
    let attempts = call.client.attempts(&input.task_id).await?;
    let tried = |attempt: Attempt| Tried {
        number: attempt.number,
        state: attempt.state,
        sandbox_id: attempt.sandbox_id,
        execution_id: attempt.execution_id,
        pull_url: attempt.pull_url,
        summary: attempt.summary.map(|text| cut::text(&text, LONGEST_TEXT)),
        error: attempt.error.map(|error| format!("{}: {}", error.code, error.message)),
    };
    // The newest are what matters of a task that was tried often.
    let skip = attempts.len().saturating_sub(20);
    let attempts: Vec<Tried> = attempts.into_iter().skip(skip).map(tried).collect();
    let description = cut::text(&task.description, LONGEST_TEXT);
    let check_command = task.check_command.clone();
    let task = shown(task);
    let mut text = line(&task);
    if !description.is_empty() {
        text.push_str(&format!("\n{description}"));
    }
    for attempt in &attempts {
        let more = attempt
            .error
            .as_ref()
            .or(attempt.summary.as_ref())
            .map(|more| format!(": {more}"))
            .unwrap_or_default();
        text.push_str(&format!("\nattempt {} {}{more}", attempt.number, attempt.state));
    }
    let entries = call.client.transcript_end(&input.task_id, LAST_ENTRIES).await?;
    let transcript: Vec<String> = entries.iter().map(|entry| entry.body.line()).collect();
    for line in &transcript {
        text.push_str(&format!("\n  {line}"));
    }
    Ok(Outcome::new(text, Detail { task, description, check_command, attempts, transcript }))
}
