//! Types of sandbox records.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use coffer_core::event::Event;
use coffer_core::network::NetworkSettings;
use coffer_core::{
    AgentId, Lifetime, Limits, Millis, OnTimeout, ProjectId, SandboxId, SandboxPurpose, SandboxState,
    SnapshotId, StartCommand, StateName, TaskId,
};
use serde::{Deserialize, Serialize};

use crate::{OverQuota, Secret, VolumeMount};

/// A sandbox to be recorded as `creating`.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSandbox {
    pub id: SandboxId,
    /// The agent that owns it, if any.
    pub agent: Option<AgentId>,
    /// The task that it is for, one of the project.
    pub task: Option<TaskId>,
    /// The template as the request named it.
    pub template: String,
    /// The template as answers name it.
    pub template_id: String,
    pub alias: Option<String>,
    pub metadata: BTreeMap<String, String>,
    pub env_vars: BTreeMap<String, String>,
    /// Variables with a secret's value, by the secret's name.
    pub secrets: BTreeMap<String, String>,
    pub limits: Limits,
    pub lifetime: Lifetime,
    /// The last requested timeout, used again for an automatic resume.
    pub timeout_s: i64,
    /// Whether traffic resumes it from a pause.
    pub auto_resume: bool,
    /// Whether its agentd requires the access token.
    pub secure: bool,
    pub access_token: Option<Secret>,
    pub traffic_token: Option<Secret>,
    pub network: NetworkSettings,
    /// As E2B's request had it, for answers; `network` has its meaning.
    pub allow_internet_access: Option<bool>,
    pub envd_version: String,
    pub created_ms: Millis,
    pub bounds: Bounds,
    /// Its origin, if it was not created from a template alone.
    pub origin: Option<Origin>,
    pub purpose: SandboxPurpose,
    pub volumes: Vec<VolumeMount>,
}

/// The snapshot that a sandbox started from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The source of the snapshot.
    pub parent: SandboxId,
    pub snapshot: SnapshotId,
    /// Which fork of a request it is, from 1; `None` if it was created from a recorded snapshot.
    pub fork_position: Option<i64>,
}

/// Bounds of a sandbox's life, in addition to its deadline; `None` is the server's default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Its idle timeout; 0 is never.
    pub idle_s: Option<i64>,
    /// The longest it may run.
    pub max_lifetime_s: Option<i64>,
    /// How often its owner must send a heartbeat.
    pub lease_s: Option<i64>,
}

/// A recorded sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxRow {
    pub id: SandboxId,
    pub project: ProjectId,
    /// Whether its environment, tokens or network settings cannot be read because a master key is missing.
    pub sealed: bool,
    /// The agent that owns it; `None` if it belongs to the project.
    pub agent: Option<AgentId>,
    /// The task that it is for.
    pub task: Option<TaskId>,
    pub state: SandboxState,
    /// The socket of its agentd, once the engine has reported it.
    pub placement: Option<Placement>,
    pub template: String,
    pub template_id: String,
    pub alias: Option<String>,
    pub metadata: BTreeMap<String, String>,
    pub env_vars: BTreeMap<String, String>,
    /// Variables with a secret's value, by the secret's name.
    pub secrets: BTreeMap<String, String>,
    pub limits: Limits,
    pub lifetime: Lifetime,
    pub timeout_s: i64,
    pub auto_resume: bool,
    pub secure: bool,
    pub access_token: Option<Secret>,
    pub traffic_token: Option<Secret>,
    /// Closed if it cannot be read.
    pub network: NetworkSettings,
    pub allow_internet_access: Option<bool>,
    pub envd_version: String,
    pub created_ms: Millis,
    /// When it became `terminated` or `error`.
    pub ended_ms: Option<Millis>,
    /// When it was last used, as last recorded; `None` if no use is on record.
    pub last_used_ms: Option<Millis>,
    pub bounds: Bounds,
    /// When its lease expires.
    pub lease_until_ms: Option<Millis>,
    /// The installation whose host holds it.
    pub installation: Option<String>,
    /// Its origin, if it was not created from a template alone.
    pub origin: Option<Origin>,
    pub purpose: SandboxPurpose,
    pub volumes: Vec<VolumeMount>,
}

/// The socket of a sandbox's agentd, and its template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub socket: PathBuf,
    pub template: PlacedTemplate,
}

/// The template that was actually used; it may be a fallback.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedTemplate {
    pub name: String,
    pub build: String,
    pub default_user: String,
    pub default_workdir: Option<String>,
    pub env: BTreeMap<String, String>,
    /// A service that agentd starts when the sandbox boots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StartCommand>,
}

/// The result of [`Store::insert_sandbox`](crate::Store::insert_sandbox).
#[derive(Debug, Clone, PartialEq)]
pub enum Inserted {
    New,
    /// The quota is used up; nothing was recorded.
    OverQuota(OverQuota),
    /// The same request came before and created this sandbox.
    Existing(Box<SandboxRow>),
    /// The idempotency key belongs to a different request.
    KeyReusedDifferently,
    /// One of its volumes was deleted meanwhile; nothing was recorded.
    VolumeGone,
}

/// The idempotency key of a request, with a digest of the request.
#[derive(Debug, Clone, Copy)]
pub struct Idempotency<'a> {
    pub key: &'a str,
    pub fingerprint: &'a str,
}

/// Changes together with a state; `None` leaves a field as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    pub started_ms: Option<Millis>,
    pub deadline_ms: Option<Millis>,
    pub timeout_s: Option<i64>,
    pub on_timeout: Option<OnTimeout>,
    pub auto_resume: Option<bool>,
    pub placement: Option<Placement>,
    pub last_used_ms: Option<Millis>,
}

/// A change of a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deadline {
    /// To this time, earlier or later.
    Exactly(Millis),
    /// To this time, unless it is already later.
    NotBefore(Millis),
}

/// A state change of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    /// Counts from 1.
    pub position: i64,
    /// `None` for the first.
    pub from: Option<StateName>,
    pub to: SandboxState,
    pub reason: String,
    pub at_ms: Millis,
}

/// Selects sandboxes.
#[derive(Debug, Clone)]
pub struct ListFilter {
    /// Any of these; all states if empty.
    pub states: Vec<StateName>,
    /// All of these pairs.
    pub metadata: BTreeMap<String, String>,
    /// The template's name, id or alias.
    pub template: Option<String>,
    /// Only of this agent.
    pub agent: Option<AgentId>,
    /// Only for this task.
    pub task: Option<TaskId>,
    /// Started after this time.
    pub started_after_ms: Option<Millis>,
    pub order: Order,
    /// Rows in a page, 1 to 1000.
    pub limit: u32,
    /// The end of the previous page.
    pub cursor: Option<Cursor>,
}

impl Default for ListFilter {
    fn default() -> Self {
        Self {
            states: Vec::new(),
            metadata: BTreeMap::new(),
            template: None,
            agent: None,
            task: None,
            started_after_ms: None,
            order: Order::NewestFirst,
            limit: 100,
            cursor: None,
        }
    }
}

/// The order of a list, by start and then by id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    NewestFirst,
    OldestFirst,
}

/// One page of a list.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    pub rows: Vec<SandboxRow>,
    /// The start of the next page, if there is one.
    pub next: Option<Cursor>,
    /// All running sandboxes that match the filter, apart from states and page.
    pub total_running: u64,
}

/// A position in a list, stable while sandboxes come and go. Its text is opaque to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    pub(crate) started_ms: Millis,
    pub(crate) id: SandboxId,
}

impl Cursor {
    /// Right after this sandbox.
    pub const fn after(row: &SandboxRow) -> Self {
        Self { started_ms: row.lifetime.started_ms, id: row.id }
    }

    /// The sandbox before this position.
    pub const fn sandbox(self) -> SandboxId {
        self.id
    }
}

/// The text is not a cursor of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the cursor is not one of this server")]
pub struct BadCursor;

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.started_ms, self.id)
    }
}

impl FromStr for Cursor {
    type Err = BadCursor;

    fn from_str(text: &str) -> Result<Self, BadCursor> {
        let (started, id) = text.split_once('_').ok_or(BadCursor)?;
        Ok(Self {
            started_ms: started.parse().map_err(|_| BadCursor)?,
            id: id.parse().map_err(|_| BadCursor)?,
        })
    }
}

/// An event of a project.
#[derive(Debug, Clone, PartialEq)]
pub struct EventRow {
    /// Counts from 1 in each project, without gaps, in the order of the commits.
    pub sequence: i64,
    /// The id of its subject.
    pub subject: String,
    /// Such as `sandbox.running`; a newer version may have others.
    pub kind: String,
    /// As stored, so that clients also get fields of a newer version.
    pub payload: serde_json::Value,
    pub at_ms: Millis,
}

impl EventRow {
    /// An event for one reader that is not in the log.
    pub fn new(sequence: i64, subject: impl ToString, event: &Event, at_ms: Millis) -> Self {
        let (kind, payload) = (event.kind().to_string(), event.payload());
        Self { sequence, subject: subject.to_string(), kind, payload, at_ms }
    }

    /// The typed event, if this version can parse it.
    pub fn event(&self) -> Option<Event> {
        Event::read(&self.kind, &self.payload).ok()
    }
}
