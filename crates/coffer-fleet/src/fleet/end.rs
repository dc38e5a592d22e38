//! Ends sandboxes, on request or after a failure.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::{Cause, DestroyReason, Fault, SandboxId};
use coffer_engine::DeathCause;
use coffer_store::Changes;

use super::record::{Claim, Ending};
use super::{Fleet, FleetError, Record};
use coffer_core::chain;

/// How often to retry recording an end, with growing pauses.
const STORE_TRIES: u32 = 5;

impl Fleet {
    /// Destroys a sandbox. This wins over any step in progress and is idempotent: a second caller waits for
    /// the first.
    pub async fn destroy(
        self: &Arc<Self>,
        record: Arc<Record>,
        reason: DestroyReason,
    ) -> Result<(), FleetError> {
        let fleet = self.clone();
        self.carry_through(async move {
            let _place = fleet.ends.take(record.project).await;
            if let Some(claim) = record.claim_end(Ending::Destroyed(reason)).await {
                fleet.end(claim).await;
            }
            Ok(())
        })
        .await
    }

    /// Records a sandbox as failed and lets the engine release its resources.
    pub(super) async fn fail(&self, record: &Arc<Record>, fault: Fault) {
        if let Some(claim) = record.claim_end(Ending::Failed(fault)).await {
            self.end(claim).await;
        }
    }

    /// Carries out the end that the record asks for.
    ///
    /// It always succeeds: the next reconciliation destroys what the engine could not release now, and ends
    /// rows that the store could not change.
    pub(super) async fn end(&self, claim: Claim) {
        let record = claim.record.clone();
        let id = record.id;
        let ending = {
            let mut live = record.live();
            live.under_way = Some(super::Step::End);
            live.gone.cancel();
            live.ending.clone().unwrap_or(Ending::Destroyed(DestroyReason::Requested))
        };
        let cause = match &ending {
            Ending::Destroyed(reason) => Cause::Destroyed(*reason),
            Ending::Failed(fault) => Cause::Failed(fault.clone()),
        };
        let _span = self.span("sandbox.end", &record);
        let ((), last_words) =
            tokio::join!(self.take_down_the_last(&record), self.output.last_words(&record));
        match ending {
            // After a crash in between, the row has ended, or the sandbox is lost, which is what its owner
            // asked for.
            Ending::Destroyed(_) => {
                tokio::join!(
                    self.destroy_quietly(id),
                    self.record_end(&claim, cause.clone()),
                    self.output.conclude(&record, last_words)
                );
            }
            // The engine knows the cause of death until the sandbox is destroyed there.
            Ending::Failed(_) => {
                self.record_end(&claim, cause.clone()).await;
                tokio::join!(self.destroy_quietly(id), self.output.conclude(&record, last_words));
            }
        }
        {
            // A caller that waits for this claim sees by the state that nothing is left to do.
            let mut live = record.live();
            if live.row.state.is_live()
                && let Ok(after) = live.row.state.clone().after(cause)
            {
                live.row.state = after;
            }
        }
        self.forget(id);
        match ending {
            Ending::Destroyed(reason) => {
                tracing::info!(sandbox.id = %id, ?reason, "sandbox {id} destroyed ({reason:?})");
            }
            Ending::Failed(fault) => {
                tracing::warn!(sandbox.id = %id, "sandbox {id} failed: {}", describe(&fault))
            }
        }
    }

    async fn record_end(&self, claim: &Claim, cause: Cause) {
        let id = claim.record.id;
        for attempt in 1..=STORE_TRIES {
            match self.advance(claim, cause.clone(), Changes::default()).await {
                Ok(()) => return,
                // Without a row, or if another task has ended it, there is nothing to write.
                Err(error @ (FleetError::NotFound | FleetError::Raced | FleetError::Refused(_))) => {
                    tracing::warn!(sandbox.id = %id, "skipped recording the end of sandbox {id}: {error}");
                    return;
                }
                Err(error) if attempt == STORE_TRIES => {
                    tracing::error!(sandbox.id = %id, "could not record the end of sandbox {id}: {}", chain(&error));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100) * attempt).await,
            }
        }
    }

    /// Asks the engine to release all resources of a sandbox.
    pub(super) async fn destroy_quietly(&self, id: SandboxId) {
        if let Err(error) = self.engine.destroy(id).await {
            tracing::warn!(sandbox.id = %id, "the engine could not destroy sandbox {id} yet: {error}");
        }
    }
}

/// The cause of a sandbox's death, as recorded.
pub(super) fn fault_of(cause: &DeathCause) -> Fault {
    match cause {
        DeathCause::OutOfMemory => Fault::OutOfMemory,
        DeathCause::Signal { signal } => {
            Fault::Died { message: format!("its first process was killed by signal {signal}") }
        }
        DeathCause::Exit { code } => {
            Fault::Died { message: format!("its first process ended with code {code}") }
        }
        DeathCause::Unseen => Fault::Died { message: "it ended while no node was running".into() },
    }
}

/// Describes a fault in words.
pub fn describe(fault: &Fault) -> String {
    match fault {
        Fault::CreateFailed { message } => format!("it never became ready: {message}"),
        Fault::OutOfMemory => "it ran out of memory".into(),
        Fault::Died { message } => message.clone(),
        Fault::Unresponsive => "it no longer answered".into(),
        Fault::Lost => "its host no longer has it".into(),
        Fault::TransitionFailed { message } => format!("it could not be paused or resumed: {message}"),
    }
}
