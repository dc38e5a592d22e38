//! The trait between runs of competitions and sandboxes, git and forges.

use coffer_core::agent::{AgentProgress, AgentReport};
use coffer_core::compete::{DiffSize, Rule};
use coffer_core::{AgentId, CompetitionId, ExecutionId, ProjectId, RunId, SandboxId, TaskId};
use coffer_store::RunFailure;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::task::{AgentTurn, Checked, Pull};
use crate::{Start, StepError};

/// A competition as it was when the run began. It is in the journal, so it has no secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaceBrief {
    pub run: RunId,
    pub project: ProjectId,
    pub competition: CompetitionId,
    pub task: Option<TaskId>,
    pub title: String,
    pub prompt: String,
    /// The messages to the task.
    pub messages: Vec<String>,
    pub repository: String,
    /// The base branch; the repository's default branch if `None`.
    pub base_branch: Option<String>,
    /// A sandbox that the caller prepared: it is forked and otherwise left as it is.
    pub source: Option<SandboxId>,
    pub template: Option<String>,
    pub prepare_command: Option<String>,
    pub check_command: Option<String>,
    pub rule: Rule,
    pub budget_nanos: Option<i64>,
    pub decide_within_s: i64,
    pub entries: Vec<EntryBrief>,
}

/// The data of one entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryBrief {
    pub number: i64,
    pub label: String,
    pub agent: AgentId,
    pub agent_timeout_s: i64,
    pub model: Option<String>,
    /// Instead of the common one.
    pub prompt: Option<String>,
    pub budget_nanos: Option<i64>,
    /// The template of its agent; the competition's if `None`.
    #[serde(default)]
    pub template: Option<String>,
    pub branch: String,
}

impl RaceBrief {
    /// The entries by the template of their agents: each group has a sandbox to fork of its own. The first group's is
    /// the competition's.
    pub fn groups(&self) -> Vec<(Option<&str>, Vec<&EntryBrief>)> {
        let mut groups: Vec<(Option<&str>, Vec<&EntryBrief>)> = Vec::new();
        for entry in &self.entries {
            let template = entry.template.as_deref();
            match groups.iter_mut().find(|(known, _)| *known == template) {
                Some((_, entries)) => entries.push(entry),
                None => groups.push((template, vec![entry])),
            }
        }
        groups
    }
}

/// The common starting point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    pub branch: String,
    pub commit: String,
}

/// The sandbox of an entry, or why it has none.
pub type Fork = Result<SandboxId, RunFailure>;

/// The result of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raced {
    pub turn: AgentTurn,
    /// How long it took, without the time of dead servers.
    pub duration_ms: Option<i64>,
}

/// The changes of an entry since the base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    pub diff: DiffSize,
    pub patch: String,
    /// Whether the patch was longer than the stored part.
    pub is_cut: bool,
}

/// An entry in its sandbox.
#[derive(Debug, Clone, Copy)]
pub struct Lane<'a> {
    pub brief: &'a RaceBrief,
    pub entry: &'a EntryBrief,
    pub sandbox: SandboxId,
    pub base: &'a Base,
}

/// An event of a working agent.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "one at a time, passed on at once")]
pub enum News {
    /// It started: the execution with its output.
    Begun(ExecutionId),
    /// Its current action, and its usage so far.
    Progress(AgentProgress, AgentReport),
}

/// Called with each event.
pub type Tell<'a> = &'a (dyn Fn(News) -> BoxFuture<'a, ()> + Send + Sync);

/// Implements the steps of a competition. Each step finds the results of an earlier call.
#[async_trait::async_trait]
pub trait Arena: Send + Sync + 'static {
    /// Finds or creates the sandbox to prepare.
    async fn ensure_source(&self, brief: &RaceBrief, start: Start) -> Result<SandboxId, StepError>;

    /// Clones the repository into the sandbox.
    async fn clone(&self, brief: &RaceBrief, source: SandboxId) -> Result<Base, StepError>;

    /// Runs the prepare command, once.
    async fn prepare(
        &self,
        brief: &RaceBrief,
        source: SandboxId,
        command: &str,
    ) -> Result<Checked, StepError>;

    /// Creates a fork for each entry, in order. A failed fork does not affect the others.
    async fn fork(&self, brief: &RaceBrief, source: SandboxId) -> Result<Vec<Fork>, StepError>;

    /// Releases the source; one that the caller prepared stays.
    async fn leave_source(&self, brief: &RaceBrief, source: SandboxId) -> Result<(), StepError>;

    /// Runs the agent on the entry's branch, and waits for it. It is started once.
    async fn run_agent(&self, lane: Lane<'_>, tell: Tell<'_>) -> Result<Raced, StepError>;

    /// Ends an entry's program: its agent, or its check.
    async fn stop(&self, lane: Lane<'_>) -> Result<(), StepError>;

    /// Commits the changes; returns the branch's head, or `None` without changes.
    async fn commit(&self, lane: Lane<'_>) -> Result<Option<String>, StepError>;

    /// The difference from the base.
    async fn changes(&self, lane: Lane<'_>) -> Result<Changes, StepError>;

    /// Runs the check.
    async fn check(&self, lane: Lane<'_>, command: &str) -> Result<Checked, StepError>;

    /// The cost of a sandbox so far, in billionths of the currency.
    async fn spent(&self, brief: &RaceBrief, sandbox: SandboxId) -> Result<i64, StepError>;

    /// Extends the deadline of a sandbox that is not in use right now.
    async fn keep(&self, brief: &RaceBrief, sandbox: SandboxId) -> Result<(), StepError>;

    /// Destroys the sandbox of an eliminated entry.
    async fn give_back(&self, brief: &RaceBrief, sandbox: SandboxId) -> Result<(), StepError>;

    /// Pauses the sandbox of an entry with its files while a person decides.
    async fn rest(&self, brief: &RaceBrief, sandbox: SandboxId) -> Result<(), StepError>;

    /// Ensures that the winner's branch on the forge is at `commit`. An error of the code
    /// [`StepCode::NoRoom`](coffer_core::StepCode::NoRoom) means that there is no room to start its sandbox
    /// yet.
    async fn push(&self, lane: Lane<'_>, commit: &str) -> Result<(), StepError>;

    /// Finds or opens the winner's pull request. `reasons` say why it won.
    async fn ensure_pull(&self, lane: Lane<'_>, reasons: &[String]) -> Result<Pull, StepError>;

    /// Destroys every sandbox of the competition; searches for them if they are unknown.
    async fn finish(&self, brief: &RaceBrief) -> Result<(), StepError>;
}
