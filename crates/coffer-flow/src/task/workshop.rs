//! The trait between runs of tasks and sandboxes, git and forges.

use coffer_core::agent::{AgentReport, Reported, Said};
use coffer_core::{
    AgentId, Answer, ExecutionId, FailureCode, ProjectId, Question, RunFailure, RunId, SandboxId, StepCode,
    TaskId, TaskIssue,
};
use serde::{Deserialize, Serialize};

use crate::{Start, StepError};

/// An attempt's task as it was when the run began. It is in the journal, so it has no secrets: the agent's
/// definition is read when it is needed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Brief {
    pub run: RunId,
    pub project: ProjectId,
    pub task: TaskId,
    pub attempt: i64,
    pub title: String,
    pub description: String,
    /// The messages so far, and the number of the last one. Before they had authors, they were texts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<String>,
    #[serde(default)]
    pub said: Vec<Said>,
    pub heard_to: i64,
    /// What earlier attempts were told, how the last of them ended, and the last message of its agent.
    #[serde(default)]
    pub earlier: Vec<Said>,
    #[serde(default)]
    pub ended: Option<String>,
    #[serde(default)]
    pub last_words: Option<String>,
    pub repository: String,
    /// The base branch; the repository's default branch if `None`.
    pub base_branch: Option<String>,
    pub branch: String,
    pub agent: AgentId,
    pub agent_timeout_s: i64,
    pub model: Option<String>,
    pub check_command: Option<String>,
    pub budget_nanos: Option<i64>,
    /// The pull request of an earlier attempt, if there is one.
    #[serde(default)]
    pub pull_url: Option<String>,
    /// The issue that the pull request closes.
    #[serde(default)]
    pub issue: Option<TaskIssue>,
    /// How often the agent may correct its work after the check failed.
    #[serde(default)]
    pub check_tries: i64,
}

/// Why the turn of an agent was ended before it was done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Halt {
    /// A budget is spent.
    Budget {
        /// Of the project or of the sandbox, not of the task.
        is_others: bool,
        /// What the task, or an entry of a competition, cost of its budget.
        spent_nanos: Option<i64>,
        budget_nanos: Option<i64>,
        /// For people.
        message: String,
    },
    /// A person stopped it.
    Interrupted { by: String },
}

impl Halt {
    /// What it asks a person.
    pub const fn question(&self) -> Question {
        match self {
            Self::Budget { is_others: false, .. } => Question::Budget,
            Self::Budget { is_others: true, .. } => Question::OtherBudget,
            Self::Interrupted { .. } => Question::Interrupted,
        }
    }

    /// Why it was ended, as its agent is told.
    pub const fn told(&self) -> &'static str {
        match self {
            Self::Budget { .. } => "the budget was spent, and there is more now",
            Self::Interrupted { .. } => "a person interrupted you",
        }
    }
}

/// How an attempt that waited for a person goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Settled {
    pub(super) answer: Answer,
    /// The task's new budget.
    pub(super) budget_nanos: Option<i64>,
    /// Who answered.
    pub(super) by: Option<String>,
}

/// One turn of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentTurn {
    /// The execution with its output.
    pub execution: Option<ExecutionId>,
    /// `None` if it timed out.
    pub exit_code: Option<i64>,
    pub report: AgentReport,
    /// What the agent itself reported, if the model gateway's figures are in `report`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported: Option<Reported>,
    /// Set if it was ended before it was done: then its end says nothing about its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halted: Option<Halt>,
    /// Why its calls of models failed in the end, which is then the reason of a turn that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<RunFailure>,
}

impl AgentTurn {
    /// Why it failed, if it did.
    pub fn failed(&self) -> Option<RunFailure> {
        let said = || self.report.error.clone().map(|error| format!(": {error}")).unwrap_or_default();
        let own = match self.exit_code {
            None => Some(format!("the agent was ended because its time was up{}", said())),
            Some(0) => self.report.error.clone(),
            Some(code) => Some(format!("the agent ended with exit code {code}{}", said())),
        };
        match (&self.trouble, own) {
            (None, own) => own.map(|own| RunFailure::new(StepCode::AgentFailed, own)),
            // What a program says of a wrong key, or of having been ended for it, adds nothing.
            (Some(trouble), _) if trouble.code == FailureCode::Step(StepCode::ModelKeyRefused) => {
                Some(trouble.clone())
            }
            (Some(trouble), None) => Some(trouble.clone()),
            (Some(trouble), Some(own)) => {
                Some(RunFailure::new(trouble.code.clone(), format!("{}; {own}", trouble.message)))
            }
        }
    }
}

/// A turn for an agent.
#[derive(Debug, Clone, Copy)]
pub struct Turn<'a> {
    /// From 1.
    pub number: usize,
    /// The messages for this turn.
    pub said: &'a [Said],
    /// The combined report of the turns before it.
    pub before: &'a AgentReport,
    /// The check that failed after the turn before, and which correction this is.
    pub failed: Option<(&'a Checked, i64)>,
    /// Why the turn before was ended before it was done.
    pub halted: Option<&'a Halt>,
}

/// The result of the check command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    pub passed: bool,
    pub exit_code: Option<i64>,
    pub execution: Option<ExecutionId>,
    /// The end of its output, redacted, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<String>,
}

/// A pull request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pull {
    pub url: String,
    pub number: Option<i64>,
}

/// How an attempt ended, for releasing its resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Done,
    Cancelled,
    /// A person may want to look at the sandbox.
    Failed,
}

/// Implements the steps of a task's run. Each may be called again after it was done, or after a dead server
/// did half of it: it finds existing results by the attempt's run, and continues from them.
#[async_trait::async_trait]
pub trait Workshop: Send + Sync + 'static {
    /// Finds or creates the attempt's sandbox.
    async fn ensure_sandbox(&self, brief: &Brief, start: Start) -> Result<SandboxId, StepError>;

    /// Clones the repository into the sandbox; returns the base branch's commit.
    async fn clone(&self, brief: &Brief, sandbox: SandboxId) -> Result<String, StepError>;

    /// Prepares what the repository itself asks for. Returns the sandbox in which the attempt goes on, if it is another.
    async fn set_up(
        &self,
        brief: &Brief,
        sandbox: SandboxId,
        start: Start,
    ) -> Result<Option<SandboxId>, StepError>;

    /// Checks out the task's branch, from `base` if it does not exist yet; returns its name.
    async fn branch(&self, brief: &Brief, sandbox: SandboxId, base: &str) -> Result<String, StepError>;

    /// Runs the agent, and waits for it. A turn is started once: a repeated call waits for it.
    async fn run_agent(
        &self,
        brief: &Brief,
        sandbox: SandboxId,
        turn: Turn<'_>,
        start: Start,
    ) -> Result<AgentTurn, StepError>;

    /// Runs the check after a turn, and returns whether it passed. `step` identifies this run of it.
    async fn check(
        &self,
        brief: &Brief,
        sandbox: SandboxId,
        command: &str,
        step: &str,
        turn: usize,
    ) -> Result<Checked, StepError>;

    /// Commits the changes; returns the branch's head, or `None` if it is still at `base`.
    async fn commit(
        &self,
        brief: &Brief,
        sandbox: SandboxId,
        branch: &str,
        base: &str,
    ) -> Result<Option<String>, StepError>;

    /// Pushes the checked-out `commit` to the forge as this branch: the task's own, or a separate one.
    async fn push(
        &self,
        brief: &Brief,
        sandbox: SandboxId,
        branch: &str,
        commit: &str,
    ) -> Result<(), StepError>;

    /// Finds or opens the branch's pull request. `draft` says why it is only a draft.
    async fn ensure_pull(
        &self,
        brief: &Brief,
        branch: &str,
        commit: &str,
        checked: Option<&Checked>,
        report: &AgentReport,
        draft: Option<&str>,
    ) -> Result<Pull, StepError>;

    /// Lets the sandbox of an attempt that waits for a person rest: its files stay, and it uses nothing else.
    async fn rest(&self, brief: &Brief, sandbox: SandboxId) -> Result<(), StepError>;

    /// Lets a sandbox that rests work again. Fails with [`StepCode::NoRoom`] if there is no room, or no money of the
    /// project, for it now.
    async fn wake(&self, brief: &Brief, sandbox: SandboxId) -> Result<(), StepError>;

    /// Releases the attempt's resources. If the sandbox is unknown, there may still be one.
    async fn finish(&self, brief: &Brief, sandbox: Option<SandboxId>, how: Ending) -> Result<(), StepError>;
}
