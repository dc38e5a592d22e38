//! Where agents compete: the seam between runs of competitions and sandboxes, git and forges.

use coffer_core::agent::{AgentProgress, AgentReport};
use coffer_core::compete::{DiffSize, Rule};
use coffer_core::{AgentId, CompetitionId, ExecutionId, ProjectId, RunId, SandboxId, TaskId};
use coffer_store::RunFailure;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::task::{AgentTurn, Checked, Pull};
use crate::{Start, StepError};

/// What a competition is about, as it stood when the run began. It is in the journal, so no secret is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaceBrief {
    pub run: RunId,
    pub project: ProjectId,
    pub competition: CompetitionId,
    pub task: Option<TaskId>,
    pub title: String,
    pub prompt: String,
    /// What people said to the task.
    pub messages: Vec<String>,
    pub repository: String,
    /// The repository's own where none is named.
    pub base_branch: Option<String>,
    /// A sandbox that others prepared: it is forked and otherwise left alone.
    pub source: Option<SandboxId>,
    pub template: Option<String>,
    pub prepare_command: Option<String>,
    pub check_command: Option<String>,
    pub rule: Rule,
    pub budget_nanos: Option<i64>,
    pub decide_within_s: i64,
    pub entries: Vec<EntryBrief>,
}

/// What one of those who compete is to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryBrief {
    pub number: i64,
    pub label: String,
    pub agent: AgentId,
    pub agent_timeout_s: i64,
    pub model: Option<String>,
    /// In place of the common one.
    pub prompt: Option<String>,
    pub budget_nanos: Option<i64>,
    pub branch: String,
}

/// Where all begin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    pub branch: String,
    pub commit: String,
}

/// The sandbox of an entry, or why it has none.
pub type Fork = Result<SandboxId, RunFailure>;

/// What an agent did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raced {
    pub turn: AgentTurn,
    /// How long it took, servers that died meanwhile aside.
    pub duration_ms: Option<i64>,
}

/// What an entry changed since the base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    pub diff: DiffSize,
    pub patch: String,
    /// Whether the patch was longer than is kept.
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

/// What is heard of an agent while it works.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "one at a time, passed on at once")]
pub enum News {
    /// It began: where its output is.
    Begun(ExecutionId),
    /// What it does, and what it has used so far.
    Progress(AgentProgress, AgentReport),
}

/// Told as soon as there is news.
pub type Tell<'a> = &'a (dyn Fn(News) -> BoxFuture<'a, ()> + Send + Sync);

/// Does the steps of a competition. As those of a workshop, each finds what an earlier call of it did.
#[async_trait::async_trait]
pub trait Arena: Send + Sync + 'static {
    /// The sandbox that is prepared: found, or made.
    async fn ensure_source(&self, brief: &RaceBrief, start: Start) -> Result<SandboxId, StepError>;

    /// Has the repository in the sandbox.
    async fn clone(&self, brief: &RaceBrief, source: SandboxId) -> Result<Base, StepError>;

    /// Runs what prepares the sandbox, once.
    async fn prepare(
        &self,
        brief: &RaceBrief,
        source: SandboxId,
        command: &str,
    ) -> Result<Checked, StepError>;

    /// A fork for each entry, in their order. One that does not come to be leaves the others alone.
    async fn fork(&self, brief: &RaceBrief, source: SandboxId) -> Result<Vec<Fork>, StepError>;

    /// The source is not needed any more; one that others prepared stays.
    async fn leave_source(&self, brief: &RaceBrief, source: SandboxId) -> Result<(), StepError>;

    /// Has the agent work on the entry's branch, and waits for it. It is started once.
    async fn run_agent(&self, lane: Lane<'_>, tell: Tell<'_>) -> Result<Raced, StepError>;

    /// Ends what an entry runs: its agent, or its check.
    async fn stop(&self, lane: Lane<'_>) -> Result<(), StepError>;

    /// Commits what was changed; returns the branch's head, or none where nothing was.
    async fn commit(&self, lane: Lane<'_>) -> Result<Option<String>, StepError>;

    /// What differs from the base.
    async fn changes(&self, lane: Lane<'_>) -> Result<Changes, StepError>;

    /// Runs what must pass.
    async fn check(&self, lane: Lane<'_>, command: &str) -> Result<Checked, StepError>;

    /// What a sandbox cost so far, in billionths of the currency.
    async fn spent(&self, brief: &RaceBrief, sandbox: SandboxId) -> Result<i64, StepError>;

    /// Has a sandbox live on, though nobody works in it right now.
    async fn keep(&self, brief: &RaceBrief, sandbox: SandboxId) -> Result<(), StepError>;

    /// Ends the sandbox of an entry that is out.
    async fn give_back(&self, brief: &RaceBrief, sandbox: SandboxId) -> Result<(), StepError>;

    /// Has the sandbox of an entry keep its files while a person decides.
    async fn rest(&self, brief: &RaceBrief, sandbox: SandboxId) -> Result<(), StepError>;

    /// Has the winner's branch at `commit` on the forge. An error of the code [`StepCode::NoRoom`](coffer_core::StepCode::NoRoom) says that its sandbox has to
    /// wait to be started.
    async fn push(&self, lane: Lane<'_>, commit: &str) -> Result<(), StepError>;

    /// The winner's pull request: found, or opened. `reasons` say why it won.
    async fn ensure_pull(&self, lane: Lane<'_>, reasons: &[String]) -> Result<Pull, StepError>;

    /// Ends every sandbox of the competition; where it is not known which those are, they are looked for.
    async fn finish(&self, brief: &RaceBrief) -> Result<(), StepError>;
}
