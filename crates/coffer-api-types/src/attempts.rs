//! Attempts at tasks, their steps, and comments.

use coffer_core::{AgentId, Answer, Question, TaskState};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::competitions::Terms;
use crate::tasks::StateShape;

/// A request to start an attempt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Start {
    /// Another agent; the task keeps it from then on.
    #[schema(value_type = Option<String>)]
    pub agent_id: Option<AgentId>,
    /// Another model, for this attempt.
    pub model: Option<String>,
    /// Ends an attempt in progress; without it, an attempt in progress is a refusal.
    pub replace: bool,
    /// Several agents compete in forks of one sandbox, and the winner's pull request is the task's.
    pub compete: Option<Terms>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cancel {
    /// For people.
    pub reason: Option<String>,
}

/// Why an attempt waits for a person.
#[derive(Debug, ToSchema)]
#[schema(as = TaskQuestionKind, rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a type of another crate")]
pub(crate) enum QuestionKindShape {
    Budget,
    OtherBudget,
    Interrupted,
}

/// How a question is answered.
#[derive(Debug, ToSchema)]
#[schema(as = TaskAnswer, rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a type of another crate")]
pub(crate) enum AnswerShape {
    Raise,
    GoOn,
    Finish,
    Stop,
}

/// What an attempt waits for a person to say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = TaskQuestion)]
pub struct TaskQuestion {
    pub task_id: String,
    pub run_id: String,
    /// The turn after which it was asked.
    pub turn: i64,
    /// `budget`: the task's is spent; `other_budget`: that of the project or of the sandbox is; `interrupted`: a person
    /// stopped the agent.
    #[schema(value_type = QuestionKindShape)]
    pub kind: Question,
    pub message: String,
    /// What the task cost so far, and its budget, in the server's currency.
    pub spent: Option<f64>,
    pub budget: Option<f64>,
    /// The answers that it can be given.
    #[schema(value_type = Vec<AnswerShape>)]
    pub answers: Vec<Answer>,
    pub asked_at: String,
    /// Without an answer, what is there becomes a draft of a pull request then.
    pub until: String,
}

/// An answer to the question that an attempt waits with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAnswer {
    /// `raise` the task's budget; `go_on` with what was said; `finish`: what is there becomes a draft of a pull request;
    /// `stop`: what is there is pushed to the branch, and the attempt ends.
    #[schema(value_type = AnswerShape)]
    pub answer: Answer,
    /// The new budget of the task, with `raise`: more than it cost so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<f64>,
}

/// A new message to a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMessage {
    pub body: String,
    /// The file that it is about.
    #[serde(default)]
    pub file: Option<String>,
    /// The line in the file.
    #[serde(default)]
    pub line: Option<u32>,
    /// Starts the next attempt with it, if none is in progress and the task has had an attempt before.
    #[serde(default)]
    pub start: bool,
}

/// A message to a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Message {
    pub number: i64,
    pub author: String,
    pub body: String,
    /// `file` and `line` that it is about.
    #[schema(value_type = Option<Object>)]
    pub about: Option<Value>,
    /// The attempt that got it; null until one did.
    pub run_id: Option<String>,
    pub created_at: String,
}

/// Why something failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = RunFailure)]
pub struct Failure {
    pub code: String,
    pub message: String,
    pub step: Option<String>,
    /// Steps whose undo failed.
    pub not_undone: Vec<String>,
}

/// What an agent itself reported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReportedUsage {
    pub input_tokens: Option<i64>,
    pub output_tokens: Option<i64>,
    /// In dollars.
    pub cost: Option<f64>,
}

/// One attempt at a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Attempt {
    pub task_id: String,
    pub number: i64,
    pub run_id: String,
    /// `queued`, `running`, `done`, `failed`, `cancelled` or `stuck`.
    pub state: String,
    pub agent_id: Option<String>,
    pub model: Option<String>,
    pub sandbox_id: Option<String>,
    /// The execution that has its agent's output.
    pub execution_id: Option<String>,
    /// Its competition, if several agents compete.
    pub fork_id: Option<String>,
    pub branch: Option<String>,
    pub commit: Option<String>,
    pub pull_url: Option<String>,
    /// The last message of its agent.
    pub summary: Option<String>,
    pub error: Option<Failure>,
    /// As the model gateway counted it, or as the agent reports it if it does not use the gateway; null if unknown.
    pub input_tokens: Option<i64>,
    pub output_tokens: Option<i64>,
    /// In dollars: counted or reported, as the tokens; null if unknown.
    pub agent_cost: Option<f64>,
    /// What the agent itself reported, if the gateway counted: a cross-check.
    pub reported: Option<ReportedUsage>,
    pub created_at: String,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
}

/// One change of a task's state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = TaskMove)]
pub struct Move {
    #[schema(value_type = Option<StateShape>)]
    pub from: Option<TaskState>,
    #[schema(value_type = StateShape)]
    pub to: TaskState,
    pub reason: String,
    /// The caller that moved it; null if its run did.
    pub actor: Option<String>,
    pub at: String,
}

/// One step of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = RunStep)]
pub struct StepShape {
    pub name: String,
    /// `under_way`, `done`, `failed`, `undone` or `undo_failed`.
    pub state: StepStateShape,
    /// How often it started, and how often it failed.
    pub starts: i64,
    pub failures: i64,
    pub error: Option<Failure>,
    pub started_at: String,
    pub ended_at: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = RunStepState)]
pub enum StepStateShape {
    UnderWay,
    Done,
    Failed,
    Undone,
    UndoFailed,
}
