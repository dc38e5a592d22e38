//! Timeouts, idle windows and longest lifetimes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coffer_core::{DestroyReason, Fault, Kept};
use coffer_engine::EngineError;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::create::chain;
use super::record::{Ending, Live};
use super::{Fleet, FleetError, Record, Step};

/// How late a deadline may be noticed.
const RESOLUTION: Duration = Duration::from_millis(100);

/// A pause at the deadline that fails is tried again after this, and given up after so many tries.
const PAUSE_AGAIN: Duration = Duration::from_secs(2);
const MOST_PAUSE_TRIES: u32 = 5;

/// What has come for a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Destroy(DestroyReason),
    Pause(Kept),
}

impl Fleet {
    /// Looks for sandboxes whose time has come until `stop`.
    pub(super) async fn keep_deadlines(self: Arc<Self>, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(RESOLUTION);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let now = Instant::now();
            for record in self.everyone() {
                if let Some(due) = self.due(&record, now) {
                    self.carry_out(record, due);
                }
            }
        }
    }

    fn due(&self, record: &Record, now: Instant) -> Option<Due> {
        let live = record.live();
        if !live.is_steady() || live.pause_again.is_some_and(|(at, _)| now < at) {
            return None;
        }
        let reason = if live.deadline <= now {
            let lifetime = live.row.lifetime;
            let at_maximum =
                lifetime.deadline_ms >= lifetime.started_ms.saturating_add(self.policy.maximum_ms);
            if at_maximum { DestroyReason::MaximumLifetime } else { DestroyReason::Timeout }
        } else if self.policy.idle_ms.is_some_and(|window| record.activity.idle_ms() >= window) {
            DestroyReason::Idle
        } else {
            return None;
        };
        Some(Live::kept_at_deadline(&live).map_or(Due::Destroy(reason), Due::Pause))
    }

    fn carry_out(self: &Arc<Self>, record: Arc<Record>, due: Due) {
        match due {
            Due::Destroy(reason) => {
                // Marked at once, so that the next look does not find it again.
                let mut live = record.live();
                live.ending.get_or_insert(Ending::Destroyed(reason));
                drop(live);
                let fleet = self.clone();
                self.in_background(async move {
                    if let Some(claim) = record.claim_end(Ending::Destroyed(reason)).await {
                        fleet.end(claim).await;
                    }
                });
            }
            Due::Pause(kept) => {
                let Some(claim) = record.try_claim(Step::Pause) else { return };
                let fleet = self.clone();
                self.in_background(async move {
                    let mut paused = fleet.pause_claimed(&claim, kept).await;
                    if let Err(FleetError::Engine(EngineError::Unsupported(_))) = paused {
                        // Nobody is there to be told that this host cannot freeze: files are better
                        // than nothing.
                        paused = fleet.pause_claimed(&claim, Kept::FilesOnly).await;
                    }
                    if let Err(error) = paused {
                        fleet.pause_failed(&record, &error);
                    }
                    drop(claim);
                    fleet.heal(&record).await;
                });
            }
        }
    }

    fn pause_failed(&self, record: &Arc<Record>, error: &FleetError) {
        let id = record.id;
        let tries = record.live().pause_again.map_or(0, |(_, tries)| tries) + 1;
        tracing::warn!(sandbox.id = %id, "could not pause sandbox {id} at its timeout: {}", chain(error));
        record.live().pause_again = Some((Instant::now() + PAUSE_AGAIN, tries));
        let hopeless = !matches!(error, FleetError::Engine(EngineError::Unavailable(_)));
        if hopeless && tries >= MOST_PAUSE_TRIES {
            self.doom(record, Fault::TransitionFailed { message: chain(error) });
        }
    }

    /// Ends a sandbox that a step has doomed while it held the claim.
    pub(super) async fn heal(&self, record: &Arc<Record>) {
        let ending = record.live().ending.clone();
        if let Some(ending) = ending
            && let Some(claim) = record.claim_end(ending).await
        {
            self.end(claim).await;
        }
    }
}
