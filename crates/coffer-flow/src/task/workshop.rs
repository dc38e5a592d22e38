//! The trait between runs of tasks and sandboxes, git and forges.

use coffer_core::agent::{AgentReport, Reported, Said};
use coffer_core::{AgentId, ExecutionId, ProjectId, RunId, SandboxId, TaskId, TaskIssue};
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
}

impl AgentTurn {
    /// Why it failed, if it did.
    pub fn failed(&self) -> Option<String> {
        let said = || self.report.error.clone().map(|error| format!(": {error}")).unwrap_or_default();
        match self.exit_code {
            None => Some(format!("the agent was ended because its time was up{}", said())),
            Some(0) => self.report.error.clone(),
            Some(code) => Some(format!("the agent ended with exit code {code}{}", said())),
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

    /// Finds or opens the branch's pull request.
    async fn ensure_pull(
        &self,
        brief: &Brief,
        branch: &str,
        commit: &str,
        checked: Option<&Checked>,
        report: &AgentReport,
    ) -> Result<Pull, StepError>;

    /// Releases the attempt's resources. If the sandbox is unknown, there may still be one.
    async fn finish(&self, brief: &Brief, sandbox: Option<SandboxId>, how: Ending) -> Result<(), StepError>;
}
