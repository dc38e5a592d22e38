//! What is known of one sandbox.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use coffer_core::event::Event;
use coffer_core::network::NetworkSettings;
use coffer_core::{
    AgentId, Lifetime, Limits, Millis, OnTimeout, ProjectId, SandboxId, SandboxState, SnapshotId, StateName,
};
use serde::{Deserialize, Serialize};

use crate::{OverQuota, Secret};

/// A sandbox to be recorded as `creating`.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSandbox {
    pub id: SandboxId,
    /// The agent that owns it, if any.
    pub agent: Option<AgentId>,
    /// The template as the request named it.
    pub template: String,
    /// The template as answers name it.
    pub template_id: String,
    pub alias: Option<String>,
    pub metadata: BTreeMap<String, String>,
    pub env_vars: BTreeMap<String, String>,
    /// Variables that have a secret's value, by the secret's name.
    pub secrets: BTreeMap<String, String>,
    pub limits: Limits,
    pub lifetime: Lifetime,
    /// The timeout last asked for, used again when it resumes by itself.
    pub timeout_s: i64,
    /// Whether traffic wakes it from a pause.
    pub auto_resume: bool,
    /// Whether its agentd asks for the access token.
    pub secure: bool,
    pub access_token: Option<Secret>,
    pub traffic_token: Option<Secret>,
    pub network: NetworkSettings,
    /// As E2B's request said it, to be shown; `network` has what it means.
    pub allow_internet_access: Option<bool>,
    pub envd_version: String,
    pub created_ms: Millis,
    pub bounds: Bounds,
    /// Where it comes from, if not from a template alone.
    pub origin: Option<Origin>,
}

/// The snapshot that a sandbox began with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The sandbox that the snapshot was made of.
    pub parent: SandboxId,
    pub snapshot: SnapshotId,
    /// Which child of a fork it is, from 1; none where it was made from a snapshot that somebody keeps.
    pub fork_position: Option<i64>,
}

/// What bounds a sandbox's life beside its deadline; `None` is for the server to decide.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bounds {
    /// How long it may go unused; 0 is for ever.
    pub idle_s: Option<i64>,
    /// The longest that it may run in all.
    pub max_lifetime_s: Option<i64>,
    /// How often its owner has to say that it is still wanted.
    pub lease_s: Option<i64>,
}

/// A recorded sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxRow {
    pub id: SandboxId,
    pub project: ProjectId,
    /// Its environment, tokens or network settings cannot be read, for lack of a master key.
    pub sealed: bool,
    /// The agent that owns it; without one it is the project's.
    pub agent: Option<AgentId>,
    pub state: SandboxState,
    /// Where its agentd answers, once the engine has said so.
    pub placement: Option<Placement>,
    pub template: String,
    pub template_id: String,
    pub alias: Option<String>,
    pub metadata: BTreeMap<String, String>,
    pub env_vars: BTreeMap<String, String>,
    /// Variables that have a secret's value, by the secret's name.
    pub secrets: BTreeMap<String, String>,
    pub limits: Limits,
    pub lifetime: Lifetime,
    pub timeout_s: i64,
    pub auto_resume: bool,
    pub secure: bool,
    pub access_token: Option<Secret>,
    pub traffic_token: Option<Secret>,
    /// Closed where it cannot be read.
    pub network: NetworkSettings,
    pub allow_internet_access: Option<bool>,
    pub envd_version: String,
    pub created_ms: Millis,
    /// When it came to `terminated` or `error`.
    pub ended_ms: Option<Millis>,
    pub bounds: Bounds,
    /// Until when its owner said that it is wanted.
    pub lease_until_ms: Option<Millis>,
    /// The installation whose host holds it.
    pub installation: Option<String>,
    /// Where it comes from, if not from a template alone.
    pub origin: Option<Origin>,
}

/// Where a sandbox's agentd answers, and what it was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub socket: PathBuf,
    pub template: PlacedTemplate,
}

/// The template that was really used; a fallback shows here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedTemplate {
    pub name: String,
    pub build: String,
    pub default_user: String,
    pub default_workdir: Option<String>,
    pub env: BTreeMap<String, String>,
}

/// What [`Store::insert_sandbox`](crate::Store::insert_sandbox) did.
#[derive(Debug, Clone, PartialEq)]
pub enum Inserted {
    New,
    /// The project may have no more; nothing was recorded.
    OverQuota(OverQuota),
    /// The same request came before and made this sandbox.
    Existing(Box<SandboxRow>),
    /// The idempotency key belongs to a request that asked for something else.
    KeyReusedDifferently,
}

/// The idempotency key of a request, with a digest of what it asks for.
#[derive(Debug, Clone, Copy)]
pub struct Idempotency<'a> {
    pub key: &'a str,
    pub fingerprint: &'a str,
}

/// What changes together with a state; `None` leaves a field as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    pub started_ms: Option<Millis>,
    pub deadline_ms: Option<Millis>,
    pub timeout_s: Option<i64>,
    pub on_timeout: Option<OnTimeout>,
    pub auto_resume: Option<bool>,
    pub placement: Option<Placement>,
}

/// How a deadline moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deadline {
    /// To this time, earlier or later.
    Exactly(Millis),
    /// To this time, unless it is later already.
    NotBefore(Millis),
}

/// One step in a sandbox's life.
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

/// Which sandboxes to list.
#[derive(Debug, Clone)]
pub struct ListFilter {
    /// Any of these; all states when empty.
    pub states: Vec<StateName>,
    /// All of these pairs.
    pub metadata: BTreeMap<String, String>,
    /// The template's name, id or alias.
    pub template: Option<String>,
    /// Those that this agent owns.
    pub agent: Option<AgentId>,
    /// Started after this time.
    pub started_after_ms: Option<Millis>,
    pub order: Order,
    /// Rows in a page, 1 to 1000.
    pub limit: u32,
    /// Where the page before ended.
    pub cursor: Option<Cursor>,
}

impl Default for ListFilter {
    fn default() -> Self {
        Self {
            states: Vec::new(),
            metadata: BTreeMap::new(),
            template: None,
            agent: None,
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
    /// Where the next page begins, if there is one.
    pub next: Option<Cursor>,
    /// All running sandboxes that the filter fits, whatever states and page it asks for.
    pub total_running: u64,
}

/// A place in a list, stable while sandboxes come and go. Its text is opaque to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    pub(crate) started_ms: Millis,
    pub(crate) id: SandboxId,
}

impl Cursor {
    /// Right after that sandbox.
    pub const fn after(row: &SandboxRow) -> Self {
        Self { started_ms: row.lifetime.started_ms, id: row.id }
    }

    /// The sandbox that it is right after.
    pub const fn sandbox(self) -> SandboxId {
        self.id
    }
}

/// The text is no cursor of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the cursor is not one that this server gave out")]
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

/// Something that happened in a project.
#[derive(Debug, Clone, PartialEq)]
pub struct EventRow {
    /// Counts from 1 in each project, without gaps, in the order of the commits.
    pub sequence: i64,
    /// The id of what it happened to.
    pub subject: String,
    /// Such as `sandbox.running`; perhaps one that only a newer version knows.
    pub kind: String,
    /// As stored, so that clients also get what only a newer version knows.
    pub payload: serde_json::Value,
    pub at_ms: Millis,
}

impl EventRow {
    /// An event that is told to one reader and is not in the log.
    pub fn new(sequence: i64, subject: impl ToString, event: &Event, at_ms: Millis) -> Self {
        let (kind, payload) = (event.kind().to_string(), event.payload());
        Self { sequence, subject: subject.to_string(), kind, payload, at_ms }
    }

    /// What happened, where this version can read it.
    pub fn event(&self) -> Option<Event> {
        Event::read(&self.kind, &self.payload).ok()
    }
}
