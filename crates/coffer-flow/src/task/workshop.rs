//! Where tasks are worked on: the seam between their runs and sandboxes, git and forges.

use coffer_core::agent::AgentReport;
use coffer_core::{AgentId, ExecutionId, ProjectId, RunId, SandboxId, TaskId};
use serde::{Deserialize, Serialize};

use crate::{Start, StepError};

/// What an attempt is to do, as it stood when the run began. It is in the journal, so no secret is in it: the
/// agent's definition is read when it is needed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Brief {
    pub run: RunId,
    pub project: ProjectId,
    pub task: TaskId,
    pub attempt: i64,
    pub title: String,
    pub description: String,
    /// What people had said, and the number of the last of it.
    pub messages: Vec<String>,
    pub heard_to: i64,
    pub repository: String,
    /// The repository's own where none is named.
    pub base_branch: Option<String>,
    pub branch: String,
    pub agent: AgentId,
    pub agent_timeout_s: i64,
    pub model: Option<String>,
    pub check_command: Option<String>,
    pub budget_nanos: Option<i64>,
    /// Where an earlier attempt opened one.
    #[serde(default)]
    pub pull_url: Option<String>,
}

/// One turn of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentTurn {
    /// Where its output is on record.
    pub execution: Option<ExecutionId>,
    /// None where it was ended because its time was up.
    pub exit_code: Option<i64>,
    pub report: AgentReport,
}

impl AgentTurn {
    /// Why it did not do what it should, where it did not.
    pub fn failed(&self) -> Option<String> {
        let said = || self.report.error.clone().map(|error| format!(": {error}")).unwrap_or_default();
        match self.exit_code {
            None => Some(format!("the agent was ended because its time was up{}", said())),
            Some(0) => self.report.error.clone(),
            Some(code) => Some(format!("the agent ended with exit code {code}{}", said())),
        }
    }
}

/// A turn that an agent is to take.
#[derive(Debug, Clone, Copy)]
pub struct Turn<'a> {
    /// From 1.
    pub number: usize,
    /// What people said, for this turn.
    pub said: &'a [String],
    /// What the turns before it came to, together.
    pub before: &'a AgentReport,
}

/// What became of the check command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    pub passed: bool,
    pub exit_code: Option<i64>,
    pub execution: Option<ExecutionId>,
}

/// A pull request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pull {
    pub url: String,
    pub number: Option<i64>,
}

/// How an attempt ended, for whoever puts its things away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Done,
    Cancelled,
    /// A person may want to look at what is there.
    Failed,
}

/// Does the steps of a task's run. Each may be called again after it was done, or while an earlier call of a
/// server that is dead by now half did it: it finds what is there, by the attempt's run, and goes on from that.
#[async_trait::async_trait]
pub trait Workshop: Send + Sync + 'static {
    /// The attempt's sandbox: found, or made.
    async fn ensure_sandbox(&self, brief: &Brief, start: Start) -> Result<SandboxId, StepError>;

    /// Has the repository in the sandbox; returns the commit that the base branch is at.
    async fn clone(&self, brief: &Brief, sandbox: SandboxId) -> Result<String, StepError>;

    /// Has the task's branch checked out, from `base` where it does not exist yet; returns its name.
    async fn branch(&self, brief: &Brief, sandbox: SandboxId, base: &str) -> Result<String, StepError>;

    /// Has the agent work, and waits for it. A turn is started once: asked for again, it is waited for.
    async fn run_agent(
        &self,
        brief: &Brief,
        sandbox: SandboxId,
        turn: Turn<'_>,
        start: Start,
    ) -> Result<AgentTurn, StepError>;

    /// Runs what must pass, and says whether it did.
    async fn check(&self, brief: &Brief, sandbox: SandboxId, command: &str) -> Result<Checked, StepError>;

    /// Commits what was changed; returns the branch's head, or none where it is still at `base`.
    async fn commit(
        &self,
        brief: &Brief,
        sandbox: SandboxId,
        branch: &str,
        base: &str,
    ) -> Result<Option<String>, StepError>;

    /// Has `commit`, which is checked out, on the forge as that branch: the task's own, or one beside it.
    async fn push(
        &self,
        brief: &Brief,
        sandbox: SandboxId,
        branch: &str,
        commit: &str,
    ) -> Result<(), StepError>;

    /// The branch's pull request: found, or opened.
    async fn ensure_pull(
        &self,
        brief: &Brief,
        branch: &str,
        commit: &str,
        checked: Option<&Checked>,
        report: &AgentReport,
    ) -> Result<Pull, StepError>;

    /// Puts away what the attempt had. Where the sandbox is not known, there may be one all the same.
    async fn finish(&self, brief: &Brief, sandbox: Option<SandboxId>, how: Ending) -> Result<(), StepError>;
}
