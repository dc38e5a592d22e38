//! Pausing and resuming.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::{Boot, Cause, Fault, Kept, Millis, OnTimeout, SandboxState, StateName};
use coffer_engine::EngineError;
use coffer_store::{Asking, Changes, Placement, SandboxRow};

use super::create::INIT_PATIENCE;
use super::ledger::{reason, stored};
use super::record::{Claim, Ending};
use super::snapshots::why_no_memory;
use super::{Fleet, FleetError, Record, SecretUse, Step};
use coffer_core::chain;
use coffer_core::clock::now_ms;

/// How long to wait for a sandbox's newest output before it is frozen.
pub(super) const WORDS_PATIENCE: Duration = Duration::from_millis(250);

/// How long a resumed agentd may take to answer.
const WAKE_PATIENCE: Duration = Duration::from_secs(10);

/// The result of a connect.
#[derive(Debug)]
pub enum Connected {
    Running(SandboxRow),
    Resumed(SandboxRow),
}

/// What a pause does with a sandbox whose agentd does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfSilent {
    Pause,
    Refuse,
}

impl Fleet {
    /// Pauses a running sandbox.
    pub async fn pause(
        self: &Arc<Self>,
        record: Arc<Record>,
        kept: Kept,
        silent: IfSilent,
    ) -> Result<(), FleetError> {
        let place = self.host_calls.take(record.project).await?;
        let claim = record.claim(Step::Pause).await?;
        let fleet = self.clone();
        self.carry_through(async move {
            let _place = place;
            let asked = record.live().socket().filter(|_| silent == IfSilent::Refuse);
            if let Some(socket) = asked {
                coffer_guest::health(&socket, WAKE_PATIENCE).await.map_err(FleetError::GuestUnresponsive)?;
            }
            fleet.pause_claimed(&claim, kept).await
        })
        .await
    }

    pub(super) async fn pause_claimed(&self, claim: &Claim, kept: Kept) -> Result<(), FleetError> {
        self.pause_for(claim, kept, None).await
    }

    /// Pauses, with a reason for the history.
    pub(super) async fn pause_for(
        &self,
        claim: &Claim,
        kept: Kept,
        why: Option<&str>,
    ) -> Result<(), FleetError> {
        let mut span = self.span("sandbox.pause", &claim.record);
        let paused = self.pause_now(claim, kept, why).await;
        if let Err(error) = &paused {
            span.fail(|| chain(error));
        }
        paused
    }

    async fn pause_now(&self, claim: &Claim, kept: Kept, why: Option<&str>) -> Result<(), FleetError> {
        let record = &claim.record;
        let state = record.live().row.state.clone();
        // Check before asking the engine: a refused pause must change nothing.
        state.after(Cause::Froze(kept))?;
        let mut how = String::new();
        match kept {
            Kept::MemoryAndFiles => how = self.keep_memory(record).await?,
            Kept::FilesOnly => {
                let last_words = self.output.last_words(record).await;
                self.engine.stop(record.id).await?;
                self.output.conclude(record, last_words).await;
            }
        }
        let cause = Cause::Froze(kept);
        let why = why.map_or_else(|| reason(&cause), str::to_string) + &how;
        if let Err(error) = self.advance_for(claim, cause, Changes::default(), &why).await {
            // Could not record it: undo it. If that fails too, the next reconciliation repairs it.
            if let Err(undo) = self.wake(claim, kept).await {
                let id = record.id;
                tracing::error!(sandbox.id = %id, "sandbox {id} stays paused without a record: {}", chain(&undo));
            }
            return Err(error);
        }
        record.live().gone.cancel();
        let id = record.id;
        tracing::info!(sandbox.id = %id, ?kept, "sandbox {id} paused");
        Ok(())
    }

    /// Asks the engine to keep the processes of a running sandbox: on disk if it can, else frozen in memory.
    /// Returns how, for the history.
    pub(super) async fn keep_memory(&self, record: &Arc<Record>) -> Result<String, FleetError> {
        let why = match self.lacks_memory() {
            Some(lacks) => lacks,
            None => {
                // Store its output first, in case its memory is lost later.
                self.output.catch_up(record, WORDS_PATIENCE).await;
                match self.engine.hibernate(record.id).await {
                    Ok(()) => return Ok("; its memory is on disk".to_string()),
                    Err(error) => why_no_memory(error)?,
                }
            }
        };
        self.engine.freeze(record.id).await?;
        Ok(format!("; its memory stays in the host's memory: {why}"))
    }

    /// Resumes a paused sandbox; a running one is refused.
    pub async fn resume(
        self: &Arc<Self>,
        record: Arc<Record>,
        timeout_ms: Millis,
        boot: Boot,
        on_timeout: Option<OnTimeout>,
    ) -> Result<SandboxRow, FleetError> {
        let place = self.host_calls.take(record.project).await?;
        let claim = record.claim(Step::Resume).await?;
        let fleet = self.clone();
        self.carry_through(async move {
            let _place = place;
            let resumed = fleet.resume_claimed(&claim, timeout_ms, boot, on_timeout).await;
            drop(claim);
            fleet.heal(&record).await;
            resumed
        })
        .await
    }

    /// Resumes a paused sandbox, or keeps a running one alive for at least `timeout_ms` more. Waits for a
    /// pause or resume in progress.
    pub async fn connect(
        self: &Arc<Self>,
        record: Arc<Record>,
        timeout_ms: Millis,
        boot: Boot,
    ) -> Result<Connected, FleetError> {
        if record.live().row.sealed {
            return Err(SecretUse::SandboxSealed.into());
        }
        let (claim, paused) = loop {
            let is_paused = || record.live().row.state.name() == StateName::Paused;
            let paused = is_paused();
            // Extending a running sandbox is a short step that blocks no others.
            let claim = record.claim_in_turn(if paused { Step::Resume } else { Step::Update }).await?;
            if paused == is_paused() {
                break (claim, paused);
            }
        };
        let place = match paused {
            true => Some(self.host_calls.take(record.project).await?),
            false => None,
        };
        let fleet = self.clone();
        self.carry_through(async move {
            let _place = place;
            if !paused {
                return fleet.extend_claimed(&claim, timeout_ms).await.map(Connected::Running);
            }
            let resumed = fleet.resume_claimed(&claim, timeout_ms, boot, None).await;
            drop(claim);
            fleet.heal(&record).await;
            resumed.map(Connected::Resumed)
        })
        .await
    }

    async fn resume_claimed(
        &self,
        claim: &Claim,
        timeout_ms: Millis,
        boot: Boot,
        on_timeout: Option<OnTimeout>,
    ) -> Result<SandboxRow, FleetError> {
        let mut span = self.span("sandbox.resume", &claim.record);
        let resumed = self.resume_now(claim, timeout_ms, boot, on_timeout).await;
        if let Err(error) = &resumed {
            span.fail(|| chain(error));
        }
        resumed
    }

    async fn resume_now(
        &self,
        claim: &Claim,
        timeout_ms: Millis,
        boot: Boot,
        on_timeout: Option<OnTimeout>,
    ) -> Result<SandboxRow, FleetError> {
        let record = &claim.record;
        self.usage.admits(record.project, Some(record.id))?;
        let state = record.live().row.state.clone();
        state.clone().after(Cause::Thawed)?;
        let SandboxState::Paused { kept } = state else { return Err(FleetError::Broken) };
        let (limits, bounds) = {
            let live = record.live();
            (live.row.limits, live.row.bounds)
        };
        self.expect_room(record.project, &limits, Asking::ToResume).await?;
        let kept = match boot {
            Boot::Cold if kept == Kept::MemoryAndFiles => {
                match self.engine.stop(record.id).await {
                    // Its processes are on disk, or gone: the start discards them.
                    Ok(()) | Err(EngineError::WrongState(_)) => {}
                    Err(error) => return Err(error.into()),
                }
                Kept::FilesOnly
            }
            Boot::Cold | Boot::AsPaused => kept,
        };
        let placement = match self.wake(claim, kept).await {
            Ok(placement) => placement,
            Err(error) => return Err(self.give_up_waking(claim, kept, error).await),
        };
        let now = now_ms();
        let changes = Changes {
            started_ms: Some(now),
            deadline_ms: Some(self.policy_for(&bounds).deadline(now, now, timeout_ms)),
            on_timeout,
            placement,
            ..Changes::default()
        };
        if let Err(error) = self.advance(claim, Cause::Thawed, changes).await {
            self.put_back(claim, kept).await;
            return Err(match error {
                FleetError::OverQuota(over) => self.over_quota(record.project, over),
                error => error,
            });
        }
        record.activity.note();
        self.sample_soon.notify_one();
        let mut live = record.live();
        if live.ending.is_none() {
            live.begin_run();
            self.output.wake(record);
        }
        let id = record.id;
        tracing::info!(sandbox.id = %id, "sandbox {id} resumed");
        Ok(live.row.clone())
    }

    /// Asks the engine to run the sandbox again and waits for its agentd. Returns a placement only after a
    /// new boot.
    pub(super) async fn wake(&self, claim: &Claim, kept: Kept) -> Result<Option<Placement>, FleetError> {
        let record = &claim.record;
        let booted = match kept {
            Kept::MemoryAndFiles => match self.engine.thaw(record.id).await {
                Ok(()) => None,
                // Its processes are on disk, or gone, as after a restart of the host; its files remain.
                Err(EngineError::WrongState(_)) => Some(self.engine.start(record.id, Boot::AsPaused).await?),
                Err(error) => return Err(error.into()),
            },
            Kept::FilesOnly => Some(self.engine.start(record.id, Boot::Cold).await?),
        };
        let Some(placement) = booted.map(stored) else {
            let socket = record.live().socket().ok_or(FleetError::Broken)?;
            coffer_guest::health(&socket, WAKE_PATIENCE).await.map_err(FleetError::NotReady)?;
            return Ok(None);
        };
        record.live().row.placement = Some(placement.clone());
        let init = self.init_of(record).await?;
        coffer_guest::init(&placement.socket, &init, INIT_PATIENCE).await.map_err(FleetError::NotReady)?;
        Ok(Some(placement))
    }

    /// Handles a failed resume: the sandbox stays paused if possible.
    async fn give_up_waking(&self, claim: &Claim, kept: Kept, error: FleetError) -> FleetError {
        let record = &claim.record;
        match &error {
            FleetError::Engine(EngineError::UnknownSandbox) => {
                // The caller holds the claim; the next step carries out the end.
                self.doom(record, Fault::Lost);
            }
            // The engine has not begun.
            FleetError::Engine(_) => {}
            _ => self.put_back(claim, kept).await,
        }
        let id = record.id;
        tracing::warn!(sandbox.id = %id, "could not resume sandbox {id}: {}", chain(&error));
        error
    }

    /// Makes the engine agree with the recorded pause again.
    async fn put_back(&self, claim: &Claim, kept: Kept) {
        let id = claim.record.id;
        let put_back = match kept {
            Kept::MemoryAndFiles => self.keep_memory(&claim.record).await.map(drop),
            Kept::FilesOnly => self.engine.stop(id).await.map_err(FleetError::from),
        };
        if let Err(error) = put_back {
            tracing::warn!(sandbox.id = %id, "could not pause sandbox {id} again: {}", chain(&error));
        }
    }

    /// Marks a sandbox that this task has claimed as failed; [`heal`](Self::heal) ends it.
    pub(super) fn doom(&self, record: &Arc<Record>, fault: Fault) {
        record.live().ending.get_or_insert(Ending::Failed(fault));
        record.doomed.cancel();
    }
}
