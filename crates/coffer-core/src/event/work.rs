//! Payloads of events about tasks, runs and competitions.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agent::AgentProgress;
use crate::compete::{CompetitionState, DiffSize, EntryState, Placing, Rule};
use crate::{
    Answer, Attention, CompetitionId, ExecutionId, FailureCode, Millis, Question, RunFailure, RunId,
    RunState, SandboxId, TaskId, TaskState, Unwinding,
};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskMoved {
    /// `None` for a new one.
    pub from: Option<TaskState>,
    pub to: TaskState,
    pub reason: String,
    pub actor: Option<String>,
}

/// The changed fields: one of these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TaskChanged {
    Edited {
        version: i64,
        actor: String,
    },
    OnReview {
        /// `start` or `wait`.
        on_review: String,
    },
    /// Whether a person still needs to look at it.
    Attention {
        attention: Option<Attention>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskDeleted {
    pub title: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskSaid {
    pub number: i64,
    pub author: String,
    /// Its source on a forge.
    pub source: Option<String>,
    /// What it is about, such as a file and a line.
    pub about: Option<Value>,
    /// The beginning of the text.
    pub body: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskProgress {
    pub run: RunId,
    pub sandbox: Option<SandboxId>,
    pub execution: Option<ExecutionId>,
    pub branch: Option<String>,
    pub commit: Option<String>,
    pub pull_url: Option<String>,
    pub input_tokens: Option<i64>,
    pub output_tokens: Option<i64>,
    pub cost_nanos: Option<i64>,
    pub doing: Option<AgentProgress>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskNeedsAttention {
    /// The attempt that failed.
    pub run: Option<RunId>,
    pub attention: Option<Attention>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskAnswered {
    pub run: RunId,
    pub question: Question,
    pub answer: Answer,
    /// The new budget, in billionths.
    pub budget_nanos: Option<i64>,
    /// The caller; none if nobody answered.
    pub actor: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskInterrupted {
    pub run: RunId,
    pub actor: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleNote {
    pub name: String,
    /// The task that it started.
    pub task: Option<TaskId>,
    /// Why it started none.
    pub reason: Option<String>,
    /// The caller; none if its time came.
    pub actor: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunKind {
    pub run: RunId,
    pub kind: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSignalled {
    pub run: RunId,
    pub signal: String,
    pub number: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunCancelling {
    pub run: RunId,
    pub reason: String,
    pub state: RunState,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunEnded {
    pub run: RunId,
    pub state: RunState,
    /// Why it was cancelled before it began.
    pub reason: Option<String>,
    pub failure: Option<RunFailure>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunParked {
    pub run: RunId,
    pub until_ms: Millis,
    pub signal: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunUnwinding {
    pub run: RunId,
    pub why: Unwinding,
    pub code: FailureCode,
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepStarted {
    pub run: RunId,
    pub step: String,
    /// How often it was started.
    pub start: i64,
    pub failures: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepFinished {
    pub run: RunId,
    pub step: String,
    pub duration_ms: Millis,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepFailed {
    pub run: RunId,
    pub step: String,
    pub code: FailureCode,
    pub message: String,
    /// Whether it is tried again.
    pub again: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepUndone {
    pub run: RunId,
    pub step: String,
    /// Why its undo failed.
    pub failed: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompetitionCreated {
    pub competition: CompetitionId,
    pub run: RunId,
    pub task: Option<TaskId>,
    pub title: String,
    /// The number of entries.
    pub entries: usize,
    pub rule: Rule,
    pub actor: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompetitionMoved {
    pub competition: CompetitionId,
    pub from: CompetitionState,
    pub to: CompetitionState,
    pub pull_url: Option<String>,
    pub error: Option<RunFailure>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompetitionWinner {
    pub competition: CompetitionId,
    pub entry: i64,
    /// The caller that picked it.
    pub by: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompetitionRanked {
    pub competition: CompetitionId,
    pub places: Vec<Placing>,
}

/// Changes of an entry; `None` means unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompetitionEntry {
    pub competition: CompetitionId,
    pub number: i64,
    pub state: Option<EntryState>,
    pub sandbox: Option<SandboxId>,
    pub execution: Option<ExecutionId>,
    pub exit_code: Option<i64>,
    /// Whether its checks passed.
    pub passed: Option<bool>,
    pub diff: Option<DiffSize>,
    pub duration_ms: Option<i64>,
    pub commit: Option<String>,
    pub error: Option<RunFailure>,
    pub agent_cost_nanos: Option<i64>,
    pub input_tokens: Option<i64>,
    pub output_tokens: Option<i64>,
    pub doing: Option<AgentProgress>,
}
