//! The in-memory state of one live sandbox, and the claims to change it.
//!
//! A [`Record`] is changed only under a [`Claim`]. There is one claim at a time, the right to take one
//! [`Step`]. The task that takes the step holds it over engine and store calls, and releases it when it ends,
//! also by a panic. The lock inside is held briefly and never over an `await`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use coffer_core::sync::Mutex;
use coffer_core::{
    AgentId, DestroyReason, Fault, Kept, Millis, ProjectId, SandboxId, SandboxPurpose, SandboxState,
};
use coffer_store::SandboxRow;
use coffer_wire::agentd::Init;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::gate::GitGate;
use super::refusals::Reported;
use super::samples::Samples;
use crate::output::{Follow, Hidden, Subject};
use coffer_core::clock::now_ms;
use coffer_guest::{Activity, Spare};

/// A step in progress on a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Create,
    Pause,
    Resume,
    /// A short change that keeps the state: its deadline, its network settings.
    Update,
    /// A snapshot of its files, which hardly affects it.
    Snapshot,
    /// A snapshot of its processes, during which it cannot be reached.
    Checkpoint,
    Rollback,
    /// Its host is finishing something that an earlier server requested.
    Settle,
    /// The end, on request or after a failure.
    End,
}

impl Step {
    const fn doing(self) -> &'static str {
        match self {
            Self::Create => "created",
            Self::Pause => "paused",
            Self::Resume => "resumed",
            Self::Update | Self::Settle => "changed",
            Self::Snapshot | Self::Checkpoint => "snapshotted",
            Self::Rollback => "rolled back",
            Self::End => "destroyed",
        }
    }

    /// Whether other steps wait for it instead of being refused: it ends soon.
    pub const fn is_short(self) -> bool {
        matches!(self, Self::Update | Self::Snapshot | Self::Settle)
    }

    /// Whether the sandbox can be reached meanwhile.
    pub const fn leaves_it_alone(self) -> bool {
        matches!(self, Self::Update | Self::Snapshot)
    }
}

/// Another step is in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the sandbox is being {} right now", .0.doing())]
pub struct Busy(pub Step);

/// One live sandbox.
#[derive(Debug)]
pub struct Record {
    pub id: SandboxId,
    pub project: ProjectId,
    /// The agent that owns it.
    pub agent: Option<AgentId>,
    pub activity: Activity,
    pub spare: Spare,
    live: Mutex<Live>,
    samples: Mutex<Samples>,
    reported: Mutex<Reported>,
    pub follow: Follow,
    /// Values to redact in addition to the secrets of its project.
    pub hidden: Hidden,
    /// The version of the project's secrets that the engine has for it; 0 for none.
    pub told: AtomicU64,
    /// Its last use on record, as a date; 0 for none.
    pub used_on_record: AtomicI64,
    /// The repositories that it reaches through the gate.
    pub git: GitGate,
    /// Counts released claims, for tasks that wait.
    changed: watch::Sender<u64>,
    /// Cancelled as soon as the sandbox is to end; a create in progress then gives up.
    pub doomed: CancellationToken,
}

/// The changing part of a record.
#[derive(Debug)]
pub struct Live {
    pub row: SandboxRow,
    /// When its timeout comes, by the monotonic clock; the row has the same as a date.
    pub deadline: Instant,
    /// When this run began, by the same clock.
    pub began: Instant,
    /// When the next heartbeat is due, by the same clock.
    pub lease: Option<Instant>,
    pub under_way: Option<Step>,
    /// The first reason for its end.
    pub ending: Option<Ending>,
    /// When the last step ended.
    pub settled: Instant,
    /// Cancelled when this run ends; the next run has a new one.
    pub gone: CancellationToken,
    pub health: Health,
    /// After a pause at the deadline failed: when to try again, and how often it was tried.
    pub pause_again: Option<(Instant, u32)>,
}

/// Why a sandbox ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    Destroyed(DestroyReason),
    Failed(Fault),
}

/// The recent health of a running sandbox.
#[derive(Debug, Clone, Copy)]
pub struct Health {
    pub next_check: Instant,
    pub failures: u32,
}

impl Record {
    /// Creates a record from a row that the store has, or is about to have.
    pub fn new(row: SandboxRow) -> Self {
        let now = Instant::now();
        Self {
            id: row.id,
            project: row.project,
            agent: row.agent,
            activity: Activity::default(),
            spare: Spare::default(),
            samples: Mutex::default(),
            reported: Mutex::default(),
            follow: Follow::default(),
            hidden: Hidden::default(),
            told: AtomicU64::new(0),
            used_on_record: AtomicI64::new(row.last_used_ms.unwrap_or(0)),
            git: GitGate::default(),
            changed: watch::Sender::new(0),
            doomed: CancellationToken::new(),
            live: Mutex::new(Live {
                deadline: monotonic(row.lifetime.deadline_ms),
                began: long_ago(row.lifetime.started_ms),
                // The owner could not send heartbeats while no server ran: the lease restarts.
                lease: lease_from(now, &row),
                row,
                under_way: None,
                ending: None,
                settled: now,
                gone: CancellationToken::new(),
                health: Health { next_check: now + Duration::from_secs(1), failures: 0 },
                pause_again: None,
            }),
        }
    }

    /// The lock is held briefly. A panic under it leaves the data consistent: every change is one assignment.
    pub fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock()
    }

    pub fn samples(&self) -> MutexGuard<'_, Samples> {
        self.samples.lock()
    }

    pub fn reported(&self) -> MutexGuard<'_, Reported> {
        self.reported.lock()
    }

    pub fn row(&self) -> SandboxRow {
        self.live().row.clone()
    }

    /// When it was last used. Idle time counts from the start of this server at the earliest, because no client
    /// can use a sandbox without one; the last use may be before that.
    pub fn last_used_ms(&self) -> Millis {
        match self.used_on_record.load(Ordering::Relaxed) {
            before if before > 0 && !self.activity.is_noted() => before,
            _ => now_ms().saturating_sub(self.activity.idle_ms()),
        }
    }

    /// Claims the sandbox for one step, waiting only for short steps; another step in progress, or a
    /// requested end, is a refusal.
    pub async fn claim(self: &Arc<Self>, step: Step) -> Result<Claim, Busy> {
        let mut changed = self.changed.subscribe();
        loop {
            {
                let mut live = self.live();
                match live.under_way {
                    _ if live.ending.is_some() => return Err(Busy(Step::End)),
                    None => return Ok(self.take(&mut live, step)),
                    Some(short) if short.is_short() => {}
                    Some(other) => return Err(Busy(other)),
                }
            }
            self.wait(&mut changed).await;
        }
    }

    /// As [`claim`](Self::claim), but waits for all other steps; only an end is a refusal.
    pub async fn claim_in_turn(self: &Arc<Self>, step: Step) -> Result<Claim, Busy> {
        let mut changed = self.changed.subscribe();
        loop {
            {
                let mut live = self.live();
                if live.ending.is_some() {
                    return Err(Busy(Step::End));
                }
                if live.under_way.is_none() {
                    return Ok(self.take(&mut live, step));
                }
            }
            self.wait(&mut changed).await;
        }
    }

    /// Claims a step at once or not at all.
    pub fn try_claim(self: &Arc<Self>, step: Step) -> Option<Claim> {
        let mut live = self.live();
        (live.under_way.is_none() && live.ending.is_none()).then(|| self.take(&mut live, step))
    }

    /// Marks the sandbox as ending, which refuses every other step, and claims it as soon as the step in
    /// progress is done. The first reason counts; a later caller gets no claim once the first is done.
    pub async fn claim_end(self: &Arc<Self>, ending: Ending) -> Option<Claim> {
        let mut changed = self.changed.subscribe();
        {
            let mut live = self.live();
            live.ending.get_or_insert(ending);
            // Traffic stops now, not when the engine is done.
            live.gone.cancel();
        }
        self.doomed.cancel();
        loop {
            {
                let mut live = self.live();
                if !live.row.state.is_live() {
                    return None;
                }
                if live.under_way.is_none() {
                    return Some(self.take(&mut live, Step::End));
                }
            }
            self.wait(&mut changed).await;
        }
    }

    /// Waits until the step in progress, if any, is done.
    pub async fn settled(&self) {
        let mut changed = self.changed.subscribe();
        while self.live().under_way.is_some() {
            self.wait(&mut changed).await;
        }
    }

    async fn wait(&self, changed: &mut watch::Receiver<u64>) {
        changed.changed().await.expect("the record holds the sender");
    }

    fn take(self: &Arc<Self>, live: &mut Live, step: Step) -> Claim {
        live.under_way = Some(step);
        Claim { record: self.clone() }
    }

    /// The message that initialises its agentd; `environment` is that of every sandbox.
    pub fn init(&self, environment: &BTreeMap<String, String>) -> Init {
        let live = self.live();
        let row = &live.row;
        let template = row.placement.as_ref().map(|placement| &placement.template);
        let mut env_vars = environment.clone();
        env_vars.extend(template.map(|template| template.env.clone()).unwrap_or_default());
        env_vars.extend(row.env_vars.clone());
        env_vars.insert("E2B_SANDBOX".into(), "true".into());
        env_vars.insert("E2B_SANDBOX_ID".into(), row.id.to_string());
        env_vars.insert("E2B_TEMPLATE_ID".into(), row.template_id.clone());
        Init {
            env_vars,
            access_token: row.access_token.as_ref().map(|token| token.reveal().to_string()),
            default_user: template.map(|template| template.default_user.clone()),
            default_workdir: template.and_then(|template| template.default_workdir.clone()),
            start: template
                .filter(|_| row.purpose == SandboxPurpose::Use)
                .and_then(|template| template.start.clone()),
            disk_total: Some(row.limits.disk_bytes()),
        }
    }
}

impl Subject for Record {
    fn id(&self) -> SandboxId {
        self.id
    }

    fn project(&self) -> ProjectId {
        self.project
    }

    fn agent(&self) -> Option<AgentId> {
        self.agent
    }

    fn activity(&self) -> &Activity {
        &self.activity
    }

    fn follow(&self) -> &Follow {
        &self.follow
    }

    fn hidden(&self) -> &Hidden {
        &self.hidden
    }

    fn run(&self) -> Option<(PathBuf, CancellationToken)> {
        let live = self.live();
        let runs = live.row.state == SandboxState::Running && live.ending.is_none();
        let undisturbed = live.under_way.is_none_or(Step::is_short);
        let socket = live.socket().filter(|_| runs && undisturbed)?;
        Some((socket, live.gone.clone()))
    }

    fn last_socket(&self) -> Option<PathBuf> {
        let live = self.live();
        // A paused one would not answer.
        live.socket().filter(|_| live.row.state == SandboxState::Running)
    }
}

impl Live {
    /// The socket of its agentd, while it runs.
    pub fn socket(&self) -> Option<PathBuf> {
        self.row.placement.as_ref().map(|placement| placement.socket.clone())
    }

    /// Whether it runs and no step is in progress.
    pub fn is_steady(&self) -> bool {
        self.row.state == SandboxState::Running && self.under_way.is_none() && self.ending.is_none()
    }

    /// What a pause at its deadline keeps, if it is paused then.
    pub fn kept_at_deadline(&self) -> Option<Kept> {
        match self.row.lifetime.on_timeout {
            coffer_core::OnTimeout::Destroy => None,
            coffer_core::OnTimeout::Pause => Some(Kept::MemoryAndFiles),
            coffer_core::OnTimeout::PauseFilesOnly => Some(Kept::FilesOnly),
        }
    }

    /// Takes over a row from the store.
    pub fn adopt(&mut self, row: SandboxRow) {
        // Convert only a changed deadline from the wall clock, which may have jumped since.
        if row.lifetime.deadline_ms != self.row.lifetime.deadline_ms {
            self.deadline = monotonic(row.lifetime.deadline_ms);
        }
        self.row = row;
    }

    /// Begins a new run.
    pub fn begin_run(&mut self) {
        self.gone = CancellationToken::new();
        self.began = Instant::now();
        self.lease = lease_from(self.began, &self.row);
        self.health = Health { next_check: Instant::now() + super::health::INTERVAL, failures: 0 };
        self.pause_again = None;
    }
}

/// The right to take one step, released on drop.
#[derive(Debug)]
pub struct Claim {
    pub record: Arc<Record>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        {
            let mut live = self.record.live();
            live.under_way = None;
            live.settled = Instant::now();
        }
        self.record.changed.send_modify(|count| *count += 1);
    }
}

/// When a lease that is renewed now expires.
pub(super) fn lease_from(now: Instant, row: &SandboxRow) -> Option<Instant> {
    let lease_s = u64::try_from(row.bounds.lease_s?).unwrap_or(0);
    Some(now + Duration::from_secs(lease_s))
}

/// The moment of a past date.
fn long_ago(at_ms: Millis) -> Instant {
    let now = Instant::now();
    let ago = u64::try_from(now_ms().saturating_sub(at_ms)).unwrap_or(0);
    // The clock may have started later than that, with the host.
    now.checked_sub(Duration::from_millis(ago)).unwrap_or(now)
}

/// The moment of a date on the monotonic clock.
fn monotonic(at_ms: Millis) -> Instant {
    let now = Instant::now();
    let ahead = at_ms.saturating_sub(now_ms());
    match u64::try_from(ahead) {
        // Bound the deadline to a century.
        Ok(ahead) => now + Duration::from_millis(ahead.min(100 * 366 * 86_400_000)),
        Err(_) => now,
    }
}
