//! The database of Cofferdam: projects, keys, sandboxes and their history.
//!
//! The same SQL runs on SQLite and on PostgreSQL; the URL given to [`Store::open`] decides. Three guarantees
//! hold on both:
//!
//! - **An answer is a commit.** A write that returned is on disk. On SQLite one task writes: it commits all
//!   queued writes at once, with a savepoint for each caller, so a failed write rolls back only itself. On
//!   PostgreSQL each write is its own transaction. A write is completed even if its caller stops waiting.
//! - **A scope is proof.** Every query takes a [`Scope`]; a [`ProjectScope`] comes only from
//!   [`Store::authenticate`] and finds nothing of another project.
//! - **State and event are one.** A state changes by compare-and-set, together with its line in the sandbox's
//!   history and in the project's event log.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

mod agents;
mod artifacts;
mod attention;
mod audit;
mod budgets;
mod columns;
mod competitions;
mod database;
mod deferred;
mod error;
mod events;
mod examine;
mod executions;
mod forge;
mod git;
mod keys;
mod leases;
mod lineage;
mod load;
mod login_leases;
mod models;
mod people;
mod policy;
mod projects;
mod prune;
mod quotas;
mod refusal;
mod runs;
mod sandbox;
mod sandboxes;
mod scope;
mod sealing;
mod search;
mod secret;
mod secrets;
mod segments;
mod select;
mod settings;
mod snapshot;
mod snapshots;
mod spending;
mod storage;
mod tasks;
mod templates;
mod transcripts;
mod usage;
mod vault;
mod volumes;
mod webhooks;
mod writer;

use std::sync::Arc;

use coffer_core::clock::now_ms;
use coffer_core::sync::RwLock;

pub use agents::{AgentError, AgentRow, NewAgent};
pub use artifacts::{
    ArtifactContents, ArtifactError, ArtifactFilter, ArtifactLinks, ArtifactRow, MOST_ARTIFACTS, NewArtifact,
};
pub use audit::{AuditFilter, AuditRecord};
pub use budgets::{Budget, BudgetNews, BudgetTerms};
pub use coffer_core::{
    ArtifactKind, Attention, BudgetAction, BudgetPeriod, DeliveryState, ExecutionSource, ExecutionState,
    RunFailure, RunState, SnapshotState, StepState, Unwinding, VolumeState,
};
pub use competitions::{
    COMPETITION_PICKED, CheckNote, CompetitionError, CompetitionFilter, CompetitionLoad, CompetitionNote,
    CompetitionRow, EntryNote, EntryPatch, EntryRow, NewCompetition, NewEntry,
};
use database::Database;
use error::Doing as _;
pub use error::{Cause, ChangeError, NameError, OpenError, RotateError, SecretError, StoreError};
pub use events::{EventFilter, FoundEvents};
pub use examine::examine;
pub use executions::{CodeOf, Collected, ExecutionFilter, ExecutionRow, NewExecution, Process, Progress};
pub use forge::{
    CommentChange, CommentKind, CommentRow, ConnectionRow, ConnectionTerms, Credential, DeliveredEvent,
    ForgeRecordError, IssueChange, IssueRow, MOST_REPOSITORIES, Merging, NewComment, NewConnection, NewPull,
    NewRepository, NewStatus, PullRow, RepositoryRow, StatusRow,
};
pub use git::{GitOperation, GitOutcome, GitRemote, GitState};
pub use keys::{ApiKeyInfo, ApiKeySecret, NewKey, NewSession, SessionRow};
pub use lineage::{Lineage, Relative};
pub use load::WriteLoad;
pub use models::{
    CallOutcome, GrantRow, GrantTotals, ModelBodies, ModelCallFilter, ModelCallRow, ModelKey, ModelLimit,
    NewCall, NewGrant, Periods, Reserved, Settled, VersionedModelPolicy, Worth,
};
pub use people::{ActorName, PersonRow};
pub use policy::{TakenKey, VersionedPolicy};
pub use projects::Project;
pub use prune::{Cutoffs, Pruned};
pub use quotas::{Asking, InUse, OverQuota, ProjectQuotas, Quota, Quotas};
pub use runs::{
    FailedTry, JournalError, NewRun, QueueLoad, QueuedRun, RunEnd, RunError, RunHold, RunRow, RunSignal,
    Slots, StepRow, TakenRun,
};
pub use sandbox::{
    BadCursor, Bounds, Changes, Cursor, Deadline, EventRow, Idempotency, Inserted, ListFilter, NewSandbox,
    Order, Origin, Page, PlacedTemplate, Placement, SandboxRow, Transition,
};
pub use scope::{Actor, Authenticated, Operator, Principal, ProjectScope, Scope};
pub use sealing::{BadMasterKey, MasterKey};
pub use search::{Found, FoundKind};
pub use secret::Secret;
pub use secrets::{
    BadSecretName, MOST_SECRETS, SecretInfo, SecretName, SecretTerms, SecretValues, UsableSecret,
};
pub use segments::{SegmentRow, SegmentState};
pub use settings::{GitSettings, ProjectSettings, Retention, TaskRules, VersionedSettings};
pub use snapshot::{
    FinishedSnapshot, InsertedSnapshot, NewSnapshot, SnapshotFacts, SnapshotFilter, SnapshotRow,
};
pub use storage::Reservation;
pub use tasks::{
    AboutPull, Attempt, AttemptNote, Fired, Firing, GivenAnswer, Heard, LogReader, MOST_OPEN, MOST_SCHEDULES,
    NewQuestion, NewTask, Place, PollDue, ProjectBehind, QuestionRow, Remark, SaidThere, ScheduleError,
    ScheduleRow, ScheduleTerms, StartTask, TaskEdit, TaskError, TaskFilter, TaskMessage, TaskMove, TaskOrder,
    TaskRow, Triggered, answer_signal,
};
pub use templates::{
    BuildFailure, BuildFilter, BuildLogLine, BuildLogPage, BuildRow, DeletedTemplate, Layer, LayerUse,
    MOST_LOG_BYTES, MOST_LOG_LINES, MOST_PROJECT_LOG_BYTES, MOST_TAGS, MOST_TEMPLATES, MOST_WAITING,
    NewBuild, StartedBuild, TemplateEntry, TemplateError, TemplateFiles, TemplateFilter, TemplateRow,
    TemplateSize, TemplateState, TemplateTag, UploadGrant, UsableTemplate,
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
pub use transcripts::{
    NewTranscriptEntry, TranscriptEntry, TranscriptFilter, TranscriptOf, TranscriptPosition, TurnPlace,
};
pub use usage::{Amounts, Charge, ModelAmounts, UsageFilter, UsageGroup, UsageLine, UsageMark};
use vault::Vault;
pub use vault::{KeySource, MasterKeyStatus, MissingKey};
pub use volumes::{InsertedVolume, MOST_VOLUMES, NewVolume, VolumeDeletion, VolumeMount, VolumeRow};
pub use webhooks::{
    DeliveryRow, DueDelivery, MOST_WEBHOOKS, NewDelivery, NewWebhook, Redelivery, SendOutcome, SendReport,
    WebhookBehind, WebhookChange, WebhookDue, WebhookKey, WebhookLoad, WebhookRecordError, WebhookRow,
};

/// A handle to the database; clones share everything.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    database: Database,
    keys: keys::Cache,
    vault: Arc<Vault>,
    secrets: secrets::Cache,
    here: RwLock<Here>,
    /// Housekeeping, and secrets that are read again.
    tasks: TaskTracker,
    stop: CancellationToken,
    _stop_on_drop: DropGuard,
}

/// Settings of this process.
#[derive(Debug, Default)]
struct Here {
    installation: Option<String>,
    quotas: Quotas,
}

impl Store {
    /// Opens `sqlite:/path/to/file.db` (created if missing) or `postgres://…`, and migrates it. Data that is
    /// sealed under a master key that `keys` lacks stays sealed; everything else works.
    pub async fn open(url: &str, keys: KeySource) -> Result<Self, OpenError> {
        let database = Database::open(url).await?;
        let vault = Vault::open(&database, keys).await?;
        let stop = CancellationToken::new();
        let inner = Arc::new(Inner {
            database,
            keys: keys::Cache::default(),
            vault,
            secrets: secrets::Cache::default(),
            here: RwLock::default(),
            tasks: TaskTracker::new(),
            stop: stop.clone(),
            _stop_on_drop: stop.clone().drop_guard(),
        });
        inner.tasks.spawn(keys::keep_house(Arc::downgrade(&inner), stop));
        let store = Self { inner };
        let unsealed = store.seal_old_rows().await;
        unsealed.map_err(|error| OpenError::Keys { why: error.to_string() })?;
        Ok(store)
    }

    /// Finishes queued writes and closes every connection. Later calls fail with [`StoreError::Closed`].
    pub async fn close(&self) {
        if let Err(error) = self.flush_last_used().await {
            tracing::warn!("could not record when keys were last used: {error}");
        }
        self.inner.stop.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
        self.inner.database.close().await;
    }

    /// Whether the database answers.
    pub async fn answers(&self) -> Result<(), StoreError> {
        let asked = sqlx::query("SELECT 1").execute(self.database().readers()).await;
        asked.map(drop).doing("query the database")
    }

    /// Durations of writes of this process so far, and how many wait.
    pub fn write_load(&self) -> WriteLoad {
        self.database().load.read()
    }

    /// Changes after every write of this process.
    pub fn written(&self) -> tokio::sync::watch::Receiver<()> {
        self.database().written()
    }

    /// The scope of the server's own work, which sees every project.
    pub fn operator(&self) -> Operator {
        Operator::new()
    }

    fn vault(&self) -> &Arc<Vault> {
        &self.inner.vault
    }

    fn database(&self) -> &Database {
        &self.inner.database
    }
}
