//! What the server holds in memory of one live sandbox, and who may change it.
//!
//! A [`Record`] is changed only under a [`Claim`], of which there is one at a time: a claim is the
//! right to take one [`Step`]. It is held by the task that takes the step, over engine and store
//! calls, and given back when that task ends, however it ends. The lock below it is held for
//! moments and never over an `await`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use coffer_core::{AgentId, DestroyReason, Fault, Kept, Millis, ProjectId, SandboxId, SandboxState};
use coffer_store::SandboxRow;
use coffer_wire::agentd::Init;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::refusals::Reported;
use super::samples::Samples;
use crate::clock::now_ms;
use crate::output::{Follow, Hidden};
use crate::routing::{Activity, Spare};

/// What is being done to a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Create,
    Pause,
    Resume,
    /// A short change that keeps the state: its deadline, its network settings.
    Update,
    /// A snapshot of its files, which it hardly notices.
    Snapshot,
    /// A snapshot of its processes, during which nobody reaches it.
    Checkpoint,
    Rollback,
    /// Its host is at something that a server asked for which is gone.
    Settle,
    /// The end, asked for or not.
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

    /// Whether whoever wants something else waits for it: it is over in a moment.
    pub(crate) const fn is_short(self) -> bool {
        matches!(self, Self::Update | Self::Snapshot | Self::Settle)
    }

    /// Whether it can be reached meanwhile.
    pub(crate) const fn leaves_it_alone(self) -> bool {
        matches!(self, Self::Update | Self::Snapshot)
    }
}

/// Another step is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the sandbox is being {} right now", .0.doing())]
pub(crate) struct Busy(pub(crate) Step);

/// One live sandbox.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) id: SandboxId,
    pub(crate) project: ProjectId,
    /// The agent that owns it.
    pub(crate) agent: Option<AgentId>,
    pub(crate) activity: Activity,
    pub(crate) spare: Spare,
    live: Mutex<Live>,
    samples: Mutex<Samples>,
    reported: Mutex<Reported>,
    pub(crate) follow: Follow,
    /// What it must not show beside the secrets of its project.
    pub(crate) hidden: Hidden,
    /// The version of the project's secrets that the engine has for it; 0 for none.
    pub(crate) told: AtomicU64,
    /// The repositories that it reaches through the gate.
    pub(crate) git: crate::git::AtGate,
    /// Counts what others may wait for: claims given back.
    changed: watch::Sender<u64>,
    /// Cancelled as soon as the sandbox is to end; a create under way then gives up.
    pub(crate) doomed: CancellationToken,
}

/// What changes in a sandbox's life.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) row: SandboxRow,
    /// When its timeout comes, by a clock that never jumps; the row has the same as a date.
    pub(crate) deadline: Instant,
    /// When this run began, by the same clock.
    pub(crate) began: Instant,
    /// When its owner must have said again that it is wanted, by the same clock.
    pub(crate) lease: Option<Instant>,
    pub(crate) under_way: Option<Step>,
    /// Who asked first for its end.
    pub(crate) ending: Option<Ending>,
    /// When the last step ended.
    pub(crate) settled: Instant,
    /// Cancelled when this run ends; the next run has a new one.
    pub(crate) gone: CancellationToken,
    pub(crate) health: Health,
    /// After a pause at the deadline failed: when to try again, and how often it was tried.
    pub(crate) pause_again: Option<(Instant, u32)>,
}

/// Why a sandbox ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    Destroyed(DestroyReason),
    Failed(Fault),
}

/// How a running sandbox answered lately.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Health {
    pub(crate) next_check: Instant,
    pub(crate) failures: u32,
}

impl Record {
    /// Takes up a row that the store has, or is about to have.
    pub(crate) fn new(row: SandboxRow) -> Self {
        let now = Instant::now();
        Self {
            id: row.id,
            project: row.project,
            agent: row.agent,
            activity: Activity::new(),
            spare: Spare::default(),
            samples: Mutex::default(),
            reported: Mutex::default(),
            follow: Follow::default(),
            hidden: Hidden::default(),
            told: AtomicU64::new(0),
            git: crate::git::AtGate::default(),
            changed: watch::Sender::new(0),
            doomed: CancellationToken::new(),
            live: Mutex::new(Live {
                deadline: monotonic(row.lifetime.deadline_ms),
                began: long_ago(row.lifetime.started_ms),
                // The owner could not say so while no server was there: it has its whole time again.
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

    /// The lock is held for moments only. A panic below it left the data whole: every change is
    /// one assignment.
    pub(crate) fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn samples(&self) -> MutexGuard<'_, Samples> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn reported(&self) -> MutexGuard<'_, Reported> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn row(&self) -> SandboxRow {
        self.live().row.clone()
    }

    /// Takes the sandbox for one step, after at most short ones; another step under
    /// way, or an end that was asked for, is a refusal.
    pub(crate) async fn claim(self: &Arc<Self>, step: Step) -> Result<Claim, Busy> {
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

    /// As [`claim`](Self::claim), but refuses nothing but an end: waits for other steps to finish.
    pub(crate) async fn claim_in_turn(self: &Arc<Self>, step: Step) -> Result<Claim, Busy> {
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

    /// Takes a step at once or not at all.
    pub(crate) fn try_claim(self: &Arc<Self>, step: Step) -> Option<Claim> {
        let mut live = self.live();
        (live.under_way.is_none() && live.ending.is_none()).then(|| self.take(&mut live, step))
    }

    /// Marks the sandbox as ending, which turns every other step away, and takes it as soon as the
    /// step under way is done. The first reason counts; a later caller gets no claim once the
    /// first is done with it.
    pub(crate) async fn claim_end(self: &Arc<Self>, ending: Ending) -> Option<Claim> {
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

    /// Waits until the step under way, if any, is done.
    pub(crate) async fn settled(&self) {
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

    /// What its agentd is told when it starts.
    pub(crate) fn init(&self) -> Init {
        let live = self.live();
        let row = &live.row;
        let template = row.placement.as_ref().map(|placement| &placement.template);
        let mut env_vars: BTreeMap<String, String> = BTreeMap::new();
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
            disk_total: Some(row.limits.disk_bytes()),
        }
    }
}

impl Live {
    /// Where its agentd answers, while it runs.
    pub(crate) fn socket(&self) -> Option<PathBuf> {
        self.row.placement.as_ref().map(|placement| placement.socket.clone())
    }

    /// Whether it runs and nothing is being done to it.
    pub(crate) fn is_steady(&self) -> bool {
        self.row.state == SandboxState::Running && self.under_way.is_none() && self.ending.is_none()
    }

    /// What a pause at its deadline keeps, if it is to be paused then.
    pub(crate) fn kept_at_deadline(&self) -> Option<Kept> {
        match self.row.lifetime.on_timeout {
            coffer_core::OnTimeout::Destroy => None,
            coffer_core::OnTimeout::Pause => Some(Kept::MemoryAndFiles),
            coffer_core::OnTimeout::PauseFilesOnly => Some(Kept::FilesOnly),
        }
    }

    /// Takes over what the store now has.
    pub(crate) fn adopt(&mut self, row: SandboxRow) {
        // Only a deadline that moved is read off the wall clock, which may have jumped since.
        if row.lifetime.deadline_ms != self.row.lifetime.deadline_ms {
            self.deadline = monotonic(row.lifetime.deadline_ms);
        }
        self.row = row;
    }

    /// A new run begins.
    pub(crate) fn begin_run(&mut self) {
        self.gone = CancellationToken::new();
        self.began = Instant::now();
        self.lease = lease_from(self.began, &self.row);
        self.health = Health { next_check: Instant::now() + super::health::INTERVAL, failures: 0 };
        self.pause_again = None;
    }
}

/// The right to take one step, given back on drop.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) record: Arc<Record>,
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

/// When a lease that is renewed now runs out.
pub(super) fn lease_from(now: Instant, row: &SandboxRow) -> Option<Instant> {
    let lease_s = u64::try_from(row.bounds.lease_s?).unwrap_or(0);
    Some(now + Duration::from_secs(lease_s))
}

/// The moment of a date that is past.
fn long_ago(at_ms: Millis) -> Instant {
    let now = Instant::now();
    let ago = u64::try_from(now_ms().saturating_sub(at_ms)).unwrap_or(0);
    // The clock may have begun later than that, with the host.
    now.checked_sub(Duration::from_millis(ago)).unwrap_or(now)
}

/// The moment of a date on the clock that never jumps.
fn monotonic(at_ms: Millis) -> Instant {
    let now = Instant::now();
    let ahead = at_ms.saturating_sub(now_ms());
    match u64::try_from(ahead) {
        // Whoever asks for more than a century gets one.
        Ok(ahead) => now + Duration::from_millis(ahead.min(100 * 366 * 86_400_000)),
        Err(_) => now,
    }
}
