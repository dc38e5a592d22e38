//! The events of a project's log.
//!
//! One variant of [`Event`] for each kind, with a struct for its payload: the contract between the store, which writes
//! events, and followers, webhooks, the UI and clients, which read them. [`EventKind`] is the same list without payloads;
//! `docs/events.md` is written from both.
//!
//! A kind never changes its name, and a payload keeps its fields: rows of older versions are read too, so a
//! new field must be an `Option` or have a default. Readers also get rows of newer versions (two servers on
//! one database) and ignore those that [`Event::read`] does not know. Clients get the stored JSON.

mod forge;
mod project;
mod record;
#[cfg(test)]
mod samples;
mod sandbox;
#[cfg(test)]
mod tests;
mod work;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use strum::{Display, EnumMessage, EnumString, IntoStaticStr, VariantArray};

use crate::StateName;

pub use forge::{
    CommentMade, CommitStatus, ConnectionCreated, GithubBy, GithubCheck, GithubIssue, GithubIssueComment,
    GithubLineComment, GithubPull, GithubPush, GithubReview, GithubStatus, IssueNote, MovedRef, Protected,
    PullHeadMoved, PullNote, RepositoryChanged, RepositoryCreated, RepositoryImported, RepositoryPushed,
    RepositoryRemoved,
};
pub use project::{
    AgentDefined, BudgetReached, Gap, ModelBudgetReached, Nothing, PolicyChanged, QuotasChanged,
    SecretVersion, SettingsChanged, WebhookDisabled, WebhookTerms,
};
pub use record::RecordedEvent;
pub use sandbox::{
    ArtifactNote, CommandRefused, ExecutionEnded, ExecutionStarted, GitFailed, GitFailure, GitStarted,
    GitSucceeded, NetworkRefused, OrphanRemoved, SandboxForked, SandboxMoved, SnapshotCreating, SnapshotGone,
    SnapshotReady, TemplateBuild, TemplateGone, VolumeNote,
};
pub use work::{
    CompetitionCreated, CompetitionEntry, CompetitionMoved, CompetitionRanked, CompetitionWinner,
    RunCancelling, RunEnded, RunKind, RunParked, RunSignalled, RunUnwinding, ScheduleNote, StepFailed,
    StepFinished, StepStarted, StepUndone, TaskAnswered, TaskChanged, TaskDeleted, TaskInterrupted,
    TaskMoved, TaskNeedsAttention, TaskProgress, TaskSaid,
};

/// A row of the log that this version cannot read as an [`Event`].
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    #[error("unknown event kind `{0}`")]
    Kind(String),
    #[error("invalid payload for the event kind `{kind}`")]
    Payload { kind: EventKind, source: serde_json::Error },
}

macro_rules! events {
    ($($(#[doc = $meaning:literal])+ $kind:ident($payload:ty) = $name:literal,)+) => {
        /// An event.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "kind", content = "payload")]
        pub enum Event {
            $($(#[doc = $meaning])+ #[serde(rename = $name)] $kind($payload),)+
        }

        /// The kind of an event, without its payload.
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Display, EnumMessage, EnumString,
            IntoStaticStr, VariantArray,
        )]
        #[strum(const_into_str)]
        pub enum EventKind {
            $($(#[doc = $meaning])+ #[serde(rename = $name)] #[strum(serialize = $name)] $kind,)+
        }

        impl Event {
            pub const fn kind(&self) -> EventKind {
                match self { $(Self::$kind(_) => EventKind::$kind,)+ }
            }

            /// The payload, as stored and shown.
            pub fn payload(&self) -> Value {
                let payload = match self { $(Self::$kind(payload) => serde_json::to_value(payload),)+ };
                payload.expect("payloads are plain data")
            }

            fn of(kind: EventKind, payload: &Value) -> Result<Self, serde_json::Error> {
                match kind { $(EventKind::$kind => <$payload>::deserialize(payload).map(Self::$kind),)+ }
            }
        }
    };
}

events! {
    /// A sandbox is being created.
    SandboxCreating(SandboxMoved) = "sandbox.creating",
    /// A sandbox became ready, or was resumed.
    SandboxRunning(SandboxMoved) = "sandbox.running",
    /// A sandbox was paused.
    SandboxPaused(SandboxMoved) = "sandbox.paused",
    /// A sandbox was destroyed.
    SandboxTerminated(SandboxMoved) = "sandbox.terminated",
    /// A sandbox failed.
    SandboxError(SandboxMoved) = "sandbox.error",
    /// A sandbox was forked; its children have events of their own, before this one.
    SandboxForked(SandboxForked) = "sandbox.forked",
    /// Connections of a sandbox were refused.
    SandboxNetworkRefused(NetworkRefused) = "sandbox.network_refused",
    /// Remains of a sandbox were found on the host and removed.
    SandboxOrphanRemoved(OrphanRemoved) = "sandbox.orphan_removed",
    /// A command was refused by the project's rules.
    CommandRefused(CommandRefused) = "command.refused",
    /// A command was started in a sandbox.
    ExecutionStarted(ExecutionStarted) = "execution.started",
    /// A command ended.
    ExecutionEnded(ExecutionEnded) = "execution.ended",
    /// A snapshot is being created.
    SnapshotCreating(SnapshotCreating) = "snapshot.creating",
    /// A snapshot can be used.
    SnapshotReady(SnapshotReady) = "snapshot.ready",
    /// A snapshot could not be created.
    SnapshotFailed(SnapshotGone) = "snapshot.failed",
    /// A snapshot is being deleted.
    SnapshotDeleting(SnapshotGone) = "snapshot.deleting",
    /// A snapshot was deleted.
    SnapshotDeleted(SnapshotGone) = "snapshot.deleted",
    /// A build of a template was started.
    TemplateBuildStarted(TemplateBuild) = "template.build_started",
    /// A template was built; sandboxes can start from it.
    TemplateBuildReady(TemplateBuild) = "template.build_ready",
    /// A build of a template failed.
    TemplateBuildFailed(TemplateBuild) = "template.build_failed",
    /// A template was deleted.
    TemplateDeleted(TemplateGone) = "template.deleted",
    /// A volume can be used.
    VolumeCreated(VolumeNote) = "volume.created",
    /// A volume was deleted, with everything in it.
    VolumeDeleted(VolumeNote) = "volume.deleted",
    /// A git operation began in a sandbox.
    GitStarted(GitStarted) = "git.started",
    /// A git operation succeeded.
    GitSucceeded(GitSucceeded) = "git.succeeded",
    /// A git operation failed.
    GitFailed(GitFailed) = "git.failed",
    /// An artifact was stored.
    ArtifactCreated(ArtifactNote) = "artifact.created",
    /// An artifact was removed.
    ArtifactRemoved(ArtifactNote) = "artifact.removed",
    /// A task was created.
    TaskCreated(TaskMoved) = "task.created",
    /// A task moved to another column of the board.
    TaskMoved(TaskMoved) = "task.moved",
    /// A task was edited, and stayed in its column.
    TaskChanged(TaskChanged) = "task.changed",
    /// A task was deleted.
    TaskDeleted(TaskDeleted) = "task.deleted",
    /// A message was posted to a task.
    TaskMessage(TaskSaid) = "task.message",
    /// An attempt at a task made progress.
    TaskProgress(TaskProgress) = "task.progress",
    /// A person must look at a task.
    TaskNeedsAttention(TaskNeedsAttention) = "task.needs_attention",
    /// A person answered what an attempt at a task waited for, or nobody did in time.
    TaskAnswered(TaskAnswered) = "task.answered",
    /// A person asked the agent of a task to stop its turn.
    TaskInterrupted(TaskInterrupted) = "task.interrupted",
    /// A schedule was created.
    ScheduleCreated(ScheduleNote) = "schedule.created",
    /// A schedule was changed, paused or resumed.
    ScheduleChanged(ScheduleNote) = "schedule.changed",
    /// A schedule was deleted; its tasks stay.
    ScheduleRemoved(ScheduleNote) = "schedule.removed",
    /// A schedule created a task and started it.
    ScheduleStarted(ScheduleNote) = "schedule.started",
    /// The time of a schedule came, and its last task is still open.
    ScheduleSkipped(ScheduleNote) = "schedule.skipped",
    /// The time of a schedule came, and its task could not start.
    ScheduleFailed(ScheduleNote) = "schedule.failed",
    /// A run waits for a slot.
    RunQueued(RunKind) = "run.queued",
    /// A run began.
    RunStarted(RunKind) = "run.started",
    /// A signal was sent to a run.
    RunSignalled(RunSignalled) = "run.signalled",
    /// A run was asked to end.
    RunCancelling(RunCancelling) = "run.cancelling",
    /// A run waits for a time or a signal.
    RunParked(RunParked) = "run.parked",
    /// The steps of a run are being undone.
    RunUnwinding(RunUnwinding) = "run.unwinding",
    /// A run ended.
    RunEnded(RunEnded) = "run.ended",
    /// A step of a run began.
    RunStepStarted(StepStarted) = "run.step_started",
    /// A step of a run finished.
    RunStepFinished(StepFinished) = "run.step_finished",
    /// One try of a step failed.
    RunStepFailed(StepFailed) = "run.step_failed",
    /// A step of a run was undone, or could not be.
    RunStepUndone(StepUndone) = "run.step_undone",
    /// A competition was created.
    CompetitionCreated(CompetitionCreated) = "competition.created",
    /// A competition made progress.
    CompetitionState(CompetitionMoved) = "competition.state",
    /// An entry of a competition made progress.
    CompetitionEntry(CompetitionEntry) = "competition.entry",
    /// The entries of a competition were ranked.
    CompetitionRanked(CompetitionRanked) = "competition.ranked",
    /// A competition has a winner.
    CompetitionWinner(CompetitionWinner) = "competition.winner",
    /// A repository was created or registered.
    RepositoryCreated(RepositoryCreated) = "repository.created",
    /// A repository's default branch was changed.
    RepositoryChanged(RepositoryChanged) = "repository.changed",
    /// A repository was removed.
    RepositoryRemoved(RepositoryRemoved) = "repository.removed",
    /// Commits were pushed to a local repository.
    RepositoryPushed(RepositoryPushed) = "repository.pushed",
    /// A local repository was filled from a bundle.
    RepositoryImported(RepositoryImported) = "repository.imported",
    /// The protection of a branch was changed.
    RepositoryProtection(Protected) = "repository.protection",
    /// A connection to a forge was created.
    ConnectionCreated(ConnectionCreated) = "connection.created",
    /// A connection to a forge was removed.
    ConnectionRemoved(Nothing) = "connection.removed",
    /// A pull request of a local repository was opened.
    PullOpened(PullNote) = "pull.opened",
    /// A pull request was edited.
    PullUpdated(PullNote) = "pull.updated",
    /// The head of a pull request has moved.
    PullHeadMoved(PullHeadMoved) = "pull.head_moved",
    /// A pull request was closed without being merged.
    PullClosed(PullNote) = "pull.closed",
    /// A pull request was opened again.
    PullReopened(PullNote) = "pull.reopened",
    /// A pull request was merged.
    PullMerged(PullNote) = "pull.merged",
    /// A pull request was reviewed.
    PullReviewed(CommentMade) = "pull.reviewed",
    /// A line of a pull request was commented on.
    PullLineCommented(CommentMade) = "pull.line_commented",
    /// A comment on a line of a pull request was edited, deleted, resolved or opened again.
    PullLineCommentChanged(CommentMade) = "pull.line_comment_changed",
    /// A pull request or issue was commented on.
    ForgeCommented(CommentMade) = "forge.commented",
    /// An issue of a local repository was opened.
    IssueOpened(IssueNote) = "issue.opened",
    /// An issue was edited.
    IssueUpdated(IssueNote) = "issue.updated",
    /// An issue was closed.
    IssueClosed(IssueNote) = "issue.closed",
    /// An issue was opened again.
    IssueReopened(IssueNote) = "issue.reopened",
    /// A check reported on a commit of a local repository.
    StatusSet(CommitStatus) = "status.set",
    /// GitHub reported a pull request.
    GithubPullRequest(GithubPull) = "github.pull_request",
    /// GitHub reported a review.
    GithubPullRequestReview(GithubReview) = "github.pull_request_review",
    /// GitHub reported a comment on a line.
    GithubPullRequestReviewComment(GithubLineComment) = "github.pull_request_review_comment",
    /// GitHub reported a comment on a pull request or issue.
    GithubIssueComment(GithubIssueComment) = "github.issue_comment",
    /// GitHub reported an issue.
    GithubIssues(GithubIssue) = "github.issues",
    /// GitHub reported a commit status.
    GithubStatus(GithubStatus) = "github.status",
    /// GitHub reported a check.
    GithubCheckRun(GithubCheck) = "github.check_run",
    /// GitHub reported a group of checks.
    GithubCheckSuite(GithubCheck) = "github.check_suite",
    /// GitHub reported a push.
    GithubPush(GithubPush) = "github.push",
    /// An agent got a new definition.
    AgentDefined(AgentDefined) = "agent.defined",
    /// The project's settings were changed.
    ProjectSettingsChanged(SettingsChanged) = "project.settings_changed",
    /// The project's quotas were changed.
    ProjectQuotasChanged(QuotasChanged) = "project.quotas_changed",
    /// The project's rules for commands were changed.
    PolicyChanged(PolicyChanged) = "policy.changed",
    /// A secret was created.
    SecretCreated(SecretVersion) = "secret.created",
    /// A secret got a new value.
    SecretReplaced(SecretVersion) = "secret.replaced",
    /// A secret was deleted.
    SecretDeleted(SecretVersion) = "secret.deleted",
    /// A budget reached one of its warnings.
    BudgetWarned(BudgetReached) = "budget.warned",
    /// A budget is spent.
    BudgetExceeded(BudgetReached) = "budget.exceeded",
    /// A budget refused a call of a model, before the call could pass it. Once for each turn of an agent.
    ModelBudgetReached(ModelBudgetReached) = "model.budget_reached",
    /// A webhook was created.
    WebhookCreated(WebhookTerms) = "webhook.created",
    /// A webhook was changed.
    WebhookChanged(WebhookTerms) = "webhook.changed",
    /// A webhook was removed.
    WebhookRemoved(Nothing) = "webhook.removed",
    /// A webhook was disabled after too many failures.
    WebhookDisabled(WebhookDisabled) = "webhook.disabled",
    /// A test delivery; it is sent to one webhook and not recorded in the log.
    WebhookPing(Nothing) = "webhook.ping",
    /// Events were deleted because of their age before this reader read them; not recorded in the log.
    Gap(Gap) = "gap",
}

impl SandboxMoved {
    /// The event for the new state.
    pub fn event(self) -> Event {
        match self.to.name() {
            StateName::Creating => Event::SandboxCreating(self),
            StateName::Running => Event::SandboxRunning(self),
            StateName::Paused => Event::SandboxPaused(self),
            StateName::Terminated => Event::SandboxTerminated(self),
            StateName::Error => Event::SandboxError(self),
        }
    }
}

impl EventKind {
    /// Every kind.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The dotted name, as stored and shown.
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }

    /// One line for people.
    pub fn meaning(self) -> &'static str {
        self.get_documentation().unwrap_or_default()
    }

    /// Whether `wanted` is this kind's name, or ends in `*` and is a prefix of it.
    pub fn fits(self, wanted: &str) -> bool {
        fits(self.as_str(), wanted)
    }
}

/// By hand: the derive does not see names that a macro gives.
#[cfg(feature = "schema")]
impl utoipa::PartialSchema for EventKind {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::Type::String)
            .description(Some("The kind of an event. docs/events.md has the payload of each."))
            .enum_values(Some(Self::ALL.iter().map(|kind| kind.as_str())))
            .into()
    }
}

#[cfg(feature = "schema")]
impl utoipa::ToSchema for EventKind {}

/// Whether a kind, which this version need not know, matches `wanted`: its name, or a prefix that ends in
/// `*`.
pub fn fits(kind: &str, wanted: &str) -> bool {
    match wanted.strip_suffix('*') {
        Some(beginning) => kind.starts_with(beginning),
        None => kind == wanted,
    }
}

impl Event {
    /// Parses a row of the log.
    pub fn read(kind: &str, payload: &Value) -> Result<Self, Unreadable> {
        let Ok(kind) = kind.parse::<EventKind>() else { return Err(Unreadable::Kind(kind.to_string())) };
        Self::of(kind, payload).map_err(|source| Unreadable::Payload { kind, source })
    }
}
