//! Rolls a sandbox back to one of its snapshots, in place.
//!
//! The sandbox is stopped first, and recorded as paused. A crash at any point leaves it paused with its old
//! files or the snapshot's, never a mixture, and the same request can be repeated.

use std::sync::Arc;

use coffer_core::{Cause, Kept, Memory, Millis, SandboxState, SnapshotId, StateName};
use coffer_engine::EngineError;
use coffer_store::{Asking, Changes, ProjectScope, SandboxRow, SnapshotRow, SnapshotState};

use super::create::INIT_PATIENCE;
use super::ledger::stored;
use super::record::Claim;
use super::{Fleet, FleetError, Record, Step};
use coffer_core::chain;
use coffer_core::clock::now_ms;

impl Fleet {
    /// Gives a sandbox the files of one of its snapshots. It runs afterwards: until its deadline if it ran
    /// before, for `timeout_ms` if it was paused.
    pub async fn rollback(
        self: &Arc<Self>,
        scope: ProjectScope,
        record: Arc<Record>,
        snapshot: SnapshotId,
        memory: Option<Memory>,
        timeout_ms: Millis,
    ) -> Result<SandboxRow, FleetError> {
        let unknown = || FleetError::NoSnapshot(snapshot.to_string());
        let found = self.store.snapshot(&scope, snapshot).await?.ok_or_else(unknown)?;
        // Its own snapshot, or the one it started from.
        let began_with = record.live().row.origin.map(|origin| origin.snapshot);
        let is_its = found.sandbox == record.id || began_with == Some(snapshot);
        if !is_its || found.state != SnapshotState::Ready {
            return Err(unknown());
        }
        // By the same rules as a create from it.
        let memory = Memory::from(self.base_of(&found, memory.map(bool::from))?.memory);
        let place = self.host_calls.take(record.project).await?;
        let claim = record.claim(Step::Rollback).await?;
        let fleet = self.clone();
        self.carry_through(async move {
            let _place = place;
            let mut span = fleet.span("sandbox.rollback", &record);
            let done = fleet.rollback_claimed(&claim, &found, memory, timeout_ms).await;
            if let Err(error) = &done {
                span.fail(|| chain(error));
                let id = record.id;
                tracing::warn!(sandbox.id = %id, "could not roll back sandbox {id}: {}", chain(error));
            }
            drop(claim);
            record.git.outdate();
            fleet.gates.notify_one();
            fleet.heal(&record).await;
            done
        })
        .await
    }

    async fn rollback_claimed(
        &self,
        claim: &Claim,
        to: &SnapshotRow,
        memory: Memory,
        timeout_ms: Millis,
    ) -> Result<SandboxRow, FleetError> {
        let record = &claim.record;
        let _working = self.at_work.begin(to.id);
        self.usage.admits(record.project, Some(record.id))?;
        let before = record.row();
        let ran = before.state == SandboxState::Running;
        if ran {
            // Check before anything is stopped: if the host has lost the snapshot, nothing changes.
            let there = self.engine.snapshots().await?.iter().any(|info| info.snapshot == to.id);
            if !there {
                return Err(FleetError::NoSnapshot(to.id.to_string()));
            }
            let why = format!("stopped to be rolled back to snapshot {}", to.id);
            self.pause_for(claim, Kept::FilesOnly, Some(&why)).await?;
        } else if before.state.name() != StateName::Paused {
            return Err(coffer_core::Refused { state: before.state.name(), asked: "be rolled back" }.into());
        }
        self.expect_room(record.project, &before.limits, Asking::ToResume).await?;
        let placement =
            self.engine.rollback(record.id, to.id, memory).await.map_err(|error| match error {
                EngineError::UnknownSnapshot => FleetError::NoSnapshot(to.id.to_string()),
                other => other.into(),
            })?;
        let placement = stored(placement);
        record.live().row.placement = Some(placement.clone());
        let begun = self.begin_again(claim, to.id, &placement.socket).await;
        if let Err(error) = begun {
            self.stop_quietly(record).await;
            return Err(error);
        }
        let now = now_ms();
        let deadline_ms = match ran {
            true => before.lifetime.deadline_ms,
            false => self.policy_for(&before.bounds).deadline(now, now, timeout_ms),
        };
        let changes = Changes {
            // A run that continues keeps its start.
            started_ms: (!ran).then_some(now),
            deadline_ms: Some(deadline_ms),
            placement: Some(placement),
            ..Changes::default()
        };
        let why = format!("rolled back to snapshot {}", to.id);
        if let Err(error) = self.advance_for(claim, Cause::Thawed, changes, &why).await {
            self.stop_quietly(record).await;
            return Err(match error {
                FleetError::OverQuota(over) => self.over_quota(record.project, over),
                error => error,
            });
        }
        record.activity.note();
        self.sample_soon.notify_one();
        let mut live = record.live();
        if live.ending.is_none() {
            let began = live.began;
            live.begin_run();
            if ran {
                live.began = began;
            }
            self.output.wake(record);
        }
        let id = record.id;
        tracing::info!(sandbox.id = %id, "sandbox {id} rolled back to snapshot {}", to.id);
        Ok(live.row.clone())
    }

    async fn begin_again(
        &self,
        claim: &Claim,
        from: SnapshotId,
        socket: &std::path::Path,
    ) -> Result<(), FleetError> {
        // Repositories cloned since are gone.
        self.store.restore_git_remotes(&self.store.operator(), claim.record.id, from).await?;
        let init = self.init_of(&claim.record).await?;
        coffer_guest::init(socket, &init, INIT_PATIENCE).await.map_err(FleetError::NotReady)?;
        Ok(())
    }

    /// The record says that it is paused with its files.
    async fn stop_quietly(&self, record: &Record) {
        let id = record.id;
        if let Err(error) = self.engine.stop(id).await {
            tracing::warn!(sandbox.id = %id, "could not stop sandbox {id} again: {error}");
        }
    }
}
