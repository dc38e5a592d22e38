//! Reconciles the engine with the store.
//!
//! The store has the wanted state, the engine the actual one. Both are compared at the start, whenever the
//! engine was unreachable, and regularly:
//!
//! | on record | engine | then |
//! |---|---|---|
//! | creating (and no step in progress) | running and initialised | `running`: its owner may have got the answer |
//! | creating (and no step in progress) | anything else but dead | destroyed, `error` |
//! | running, paused | nothing | `error`: lost |
//! | any | dead | `error` with its cause, destroyed |
//! | running | frozen | thawed |
//! | running | stopped | `paused` with its files: its processes are gone |
//! | running | hibernated | restored |
//! | paused with memory | running | paused again |
//! | paused with files only | running, frozen | stopped |
//! | ended or unknown | anything | destroyed |
//!
//! Sandboxes that the engine is still changing, for an earlier server, are compared when that is done.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use coffer_core::{Cause, Fault, Kept, SandboxId, SandboxState};
use coffer_engine::{RunState, SandboxStatus};
use coffer_store::Changes;
use tokio::task::JoinSet;

use super::end::fault_of;
use super::record::Claim;
use super::{Fleet, FleetError, Record, Step};
use coffer_core::chain;

/// How long to wait for the agentd of a sandbox whose create was interrupted.
const NAME_PATIENCE: Duration = Duration::from_secs(5);

/// Sandboxes compared at a time. No request waits for them, and projects take turns.
const MOST_REPAIRS: usize = 32;

/// How often to ask the engine whether it is done with a sandbox, and for how long.
const LOOK: Duration = Duration::from_millis(50);
const SETTLED_WITHIN: Duration = Duration::from_secs(180);

impl Fleet {
    /// Loads every sandbox that is live in the store.
    pub(super) async fn load(&self) -> Result<(), FleetError> {
        let marks = self.usage.marks().await?;
        for row in self.store.live_sandboxes(&self.store.operator()).await? {
            self.usage.adopt(&row, marks.get(&row.id).copied());
            self.enrol(Arc::new(Record::new(row)));
        }
        // Before reading any output of the meantime.
        for (sandbox, agent) in self.store.agents_in_sandboxes(&self.store.operator()).await? {
            if let (Some(record), Some(definition)) = (self.any(sandbox), agent.definition) {
                record.hidden.add(definition.hidden_values());
            }
        }
        Ok(())
    }

    /// Compares the engine's sandboxes with the records and repairs differences.
    pub(super) async fn reconcile(self: &Arc<Self>) -> Result<(), FleetError> {
        let _turn = self.comparing.lock().await;
        let asked = Instant::now();
        let mut listed: HashMap<SandboxId, SandboxStatus> =
            self.engine.list().await?.into_iter().map(|status| (status.sandbox, status)).collect();
        // After a restart of the host all of them need repair.
        let mut repairs = JoinSet::new();
        for record in self.everyone() {
            let status = listed.remove(&record.id);
            // The list does not have changes since it was requested.
            let comparable = {
                let live = record.live();
                live.under_way.is_none() && live.ending.is_none() && live.settled <= asked
            };
            if comparable && status.as_ref().is_some_and(|status| status.changing) {
                self.await_host(&record);
            } else if comparable && let Some(claim) = record.try_claim(Step::Update) {
                if repairs.len() >= MOST_REPAIRS {
                    repairs.join_next().await;
                }
                let fleet = self.clone();
                repairs.spawn(async move {
                    fleet.compare(claim, status).await;
                    fleet.heal(&record).await;
                });
            }
        }
        while repairs.join_next().await.is_some() {}
        for id in listed.into_keys() {
            // Skip sandboxes that were registered since the list was requested.
            if self.any(id).is_none() && !self.keepers.has(id) {
                tracing::warn!(sandbox.id = %id, "the engine has sandbox {id}, which should not exist: destroying it");
                self.destroy_quietly(id).await;
                self.record_orphan(id, &["a whole sandbox".into()]).await;
            }
        }
        self.hear_of_engine().await;
        self.reconcile_snapshots().await?;
        self.reconcile_volumes().await?;
        self.end_forgotten_rows().await
    }

    /// Compares a sandbox once its host has finished what an earlier server requested. Other steps wait
    /// meanwhile: the sandbox may be about to be hibernated, which closes every connection.
    fn await_host(self: &Arc<Self>, record: &Arc<Record>) {
        let Some(claim) = record.try_claim(Step::Settle) else { return };
        let fleet = self.clone();
        self.steps.spawn(async move {
            let record = claim.record.clone();
            let settled = async {
                loop {
                    tokio::time::sleep(LOOK).await;
                    let Ok(listed) = fleet.engine.list().await else { continue };
                    let status = listed.into_iter().find(|status| status.sandbox == record.id);
                    if status.as_ref().is_none_or(|status| !status.changing) {
                        return status;
                    }
                }
            };
            match tokio::time::timeout(SETTLED_WITHIN, settled).await {
                Ok(status) => fleet.compare(claim, status).await,
                // The next reconciliation checks again.
                Err(_) => drop(claim),
            }
            fleet.heal(&record).await;
        });
    }

    pub(super) async fn compare(&self, claim: Claim, status: Option<SandboxStatus>) {
        let record = claim.record.clone();
        let state = record.live().row.state.clone();
        let Some(status) = status else {
            let fault = match state {
                SandboxState::Creating => {
                    Fault::CreateFailed { message: "the server was stopped before it finished".into() }
                }
                _ => Fault::Lost,
            };
            self.found.lost.fetch_add(1, Ordering::Relaxed);
            return self.doom(&record, fault);
        };
        let repaired = match (&state, &status.run) {
            // Includes one whose create was not recorded as done: its owner may have got the answer.
            (_, RunState::Dead { cause }) => return self.doom(&record, fault_of(cause)),
            (SandboxState::Creating, RunState::Running) if was_named(&record, &status).await => {
                let placement = Some(super::ledger::stored(status.placement.clone()));
                let begun = self.advance(&claim, Cause::Ready, Changes { placement, ..Changes::default() }).await;
                record.live().begin_run();
                begun
            }
            (SandboxState::Creating, _) => {
                let message = "the server was stopped before it finished".to_string();
                return self.doom(&record, Fault::CreateFailed { message });
            }
            (SandboxState::Running, RunState::Running)
            // A resume boots it again if its memory turns out to be gone.
            | (
                SandboxState::Paused { kept: Kept::MemoryAndFiles },
                RunState::Frozen | RunState::Hibernated | RunState::Stopped,
            )
            | (SandboxState::Paused { kept: Kept::FilesOnly }, RunState::Hibernated | RunState::Stopped) => {
                return self.adopt_placement(&record, status);
            }
            (SandboxState::Running, RunState::Frozen | RunState::Hibernated) => {
                self.wake(&claim, Kept::MemoryAndFiles).await.map(drop)
            }
            (SandboxState::Running, RunState::Stopped) => {
                let paused = self.advance(&claim, Cause::Froze(Kept::FilesOnly), Changes::default()).await;
                record.live().gone.cancel();
                paused
            }
            (SandboxState::Paused { kept: Kept::MemoryAndFiles }, RunState::Running) => {
                self.keep_memory(&record).await.map(drop)
            }
            (SandboxState::Paused { kept: Kept::FilesOnly }, RunState::Running | RunState::Frozen) => {
                self.engine.stop(record.id).await.map_err(FleetError::from)
            }
            // Ended records are not kept in memory.
            (SandboxState::Terminated { .. } | SandboxState::Error { .. }, _) => return,
        };
        let id = record.id;
        match repaired {
            Ok(()) => {
                self.found.repaired.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(sandbox.id = %id, "sandbox {id} was {:?} on its host instead of {state:?}: repaired", status.run);
            }
            Err(error) => {
                tracing::error!(sandbox.id = %id, "sandbox {id} is {:?} on its host instead of {state:?}, and could not be repaired: {}", status.run, chain(&error));
            }
        }
    }

    /// Takes over the address at which the engine says the sandbox answers.
    fn adopt_placement(&self, record: &Record, status: SandboxStatus) {
        let mut live = record.live();
        if live.socket().as_ref() != Some(&status.placement.socket) {
            live.row.placement = Some(super::ledger::stored(status.placement));
        }
    }

    /// Ends rows that are live in the store but unknown here: their end could not be recorded when it
    /// happened.
    async fn end_forgotten_rows(&self) -> Result<(), FleetError> {
        let operator = self.store.operator();
        for id in self.store.live_ids(&operator).await? {
            if self.any(id).is_some() {
                continue;
            }
            let Some(row) = self.store.sandbox(&operator, id).await? else { continue };
            let (before, fault) = (row.state.name(), Fault::Lost);
            let Ok(after) = row.state.after(Cause::Failed(fault.clone())) else { continue };
            let reason = super::end::describe(&fault);
            match self.store.transition(&operator, id, before, after, &reason, Changes::default()).await {
                Ok(_) => {
                    self.found.lost.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(sandbox.id = %id, "sandbox {id} was live only in the store; ended it there");
                }
                // It ended properly meanwhile.
                Err(
                    coffer_store::ChangeError::Raced { .. }
                    | coffer_store::ChangeError::NotFound
                    | coffer_store::ChangeError::OverQuota(_),
                ) => {}
                Err(coffer_store::ChangeError::Store(error)) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Whether the agentd of a sandbox was initialised, which is the last step before its owner gets the answer.
async fn was_named(record: &Record, status: &SandboxStatus) -> bool {
    let row = record.row();
    let token = row.access_token.as_ref().map(coffer_store::Secret::reveal);
    let named = coffer_guest::variables(&status.placement.socket, token, NAME_PATIENCE).await;
    named.is_ok_and(|variables| variables.get("E2B_SANDBOX_ID") == Some(&row.id.to_string()))
}
