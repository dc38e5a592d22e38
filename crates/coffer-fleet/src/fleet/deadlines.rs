//! Timeouts, idle windows and longest lifetimes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use coffer_core::{DestroyReason, Fault, Kept, LifetimePolicy, Millis};
use coffer_engine::EngineError;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::record::{Ending, Live};
use super::{Fleet, FleetError, Record, Step};
use coffer_core::chain;

/// How late a deadline may be noticed.
const RESOLUTION: Duration = Duration::from_millis(100);

/// A failed pause at the deadline is retried after this time, and given up after this many tries.
const PAUSE_AGAIN: Duration = Duration::from_secs(2);
const MOST_PAUSE_TRIES: u32 = 5;

/// Deadlines are stored in whole milliseconds: one this close to the longest lifetime counts as that.
const ROUNDING: Duration = Duration::from_millis(500);

/// The action due for a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Destroy(DestroyReason),
    Pause(Kept, DestroyReason),
}

/// The reason in the history for an automatic pause.
const fn why(reason: DestroyReason) -> &'static str {
    match reason {
        DestroyReason::Idle => "paused because nothing used it",
        DestroyReason::LeaseExpired => "paused: lease expired",
        DestroyReason::MaximumLifetime => "paused at the longest lifetime allowed",
        _ => "paused at its timeout",
    }
}

impl Fleet {
    /// Finds sandboxes whose deadline has passed, until `stop`.
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
        let policy = self.policy_for(&live.row.bounds);
        let reason = if live.deadline <= now {
            let maximum = u64::try_from(policy.maximum_ms).map_or(Duration::ZERO, Duration::from_millis);
            let at_maximum = live.deadline + ROUNDING >= live.began + maximum;
            if at_maximum { DestroyReason::MaximumLifetime } else { DestroyReason::Timeout }
        } else if live.lease.is_some_and(|until| until <= now) {
            DestroyReason::LeaseExpired
        } else if policy.idle_ms.is_some_and(|window| record.activity.idle_ms() >= window) {
            DestroyReason::Idle
        } else {
            return None;
        };
        let kept = Live::kept_at_deadline(&live);
        Some(kept.map_or(Due::Destroy(reason), |kept| Due::Pause(kept, reason)))
    }

    /// How much longer a sandbox may live if `timeout_ms` is requested.
    pub(super) fn allowed_ms(&self, live: &Live, timeout_ms: Millis, now: Instant) -> Millis {
        allowed_ms(&self.policy_for(&live.row.bounds), live, timeout_ms, now)
    }

    fn carry_out(self: &Arc<Self>, record: Arc<Record>, due: Due) {
        let (Due::Destroy(reason) | Due::Pause(_, reason)) = due;
        if reason == DestroyReason::LeaseExpired {
            self.found.expired_leases.fetch_add(1, Ordering::Relaxed);
        }
        match due {
            Due::Destroy(reason) => {
                // Mark it at once, so that the next check does not find it again.
                let mut live = record.live();
                live.ending.get_or_insert(Ending::Destroyed(reason));
                drop(live);
                let fleet = self.clone();
                self.in_background(Some(record.project), async move {
                    if let Some(claim) = record.claim_end(Ending::Destroyed(reason)).await {
                        fleet.end(claim).await;
                    }
                });
            }
            Due::Pause(kept, reason) => {
                let Some(claim) = record.try_claim(Step::Pause) else { return };
                let fleet = self.clone();
                self.in_background(Some(record.project), async move {
                    let mut paused = fleet.pause_for(&claim, kept, Some(why(reason))).await;
                    if let Err(FleetError::Engine(EngineError::Unsupported(_))) = paused {
                        // No client waits for an answer that this host cannot freeze: keeping the files is
                        // better than nothing.
                        paused = fleet.pause_for(&claim, Kept::FilesOnly, Some(why(reason))).await;
                    }
                    if paused.is_ok() {
                        fleet.telemetry.metrics.paused_at_timeout();
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
        let hopeless = !matches!(error, FleetError::Engine(error) if error.is_away());
        if hopeless && tries >= MOST_PAUSE_TRIES {
            self.doom(record, Fault::TransitionFailed { message: chain(error) });
        }
    }

    /// Ends a sandbox that a step marked as failed while it held the claim.
    pub(super) async fn heal(&self, record: &Arc<Record>) {
        let ending = record.live().ending.clone();
        if let Some(ending) = ending
            && let Some(claim) = record.claim_end(ending).await
        {
            self.end(claim).await;
        }
    }
}

/// Uses the monotonic clock: by the wall clock the longest lifetime may seem over, or never to end.
fn allowed_ms(policy: &LifetimePolicy, live: &Live, timeout_ms: Millis, now: Instant) -> Millis {
    let lived = now.saturating_duration_since(live.began).as_millis();
    let left = policy.maximum_ms.saturating_sub(Millis::try_from(lived).unwrap_or(Millis::MAX));
    timeout_ms.min(left).max(0)
}

#[cfg(test)]
mod tests {
    use coffer_core::{Lifetime, OnTimeout, ProjectId, SandboxId};
    use coffer_store::{Bounds, NewSandbox};

    use super::*;
    use coffer_core::clock::now_ms;
    use coffer_core::clock::test::STEP;

    const HOUR: Millis = 3_600_000;

    fn record(timeout_ms: Millis) -> Record {
        let now = now_ms();
        let new = NewSandbox {
            id: SandboxId::generate(),
            agent: None,
            task: None,
            template: "base".into(),
            template_id: "base".into(),
            alias: None,
            metadata: Default::default(),
            env_vars: Default::default(),
            secrets: Default::default(),
            limits: coffer_core::Limits::default(),
            lifetime: Lifetime {
                started_ms: now,
                deadline_ms: now + timeout_ms,
                on_timeout: OnTimeout::Destroy,
            },
            timeout_s: timeout_ms / 1000,
            auto_resume: false,
            secure: true,
            access_token: None,
            traffic_token: None,
            network: Default::default(),
            allow_internet_access: None,
            envd_version: String::new(),
            created_ms: now,
            bounds: Bounds { lease_s: Some(60), ..Bounds::default() },
            origin: None,
            purpose: coffer_core::SandboxPurpose::Use,
            volumes: Vec::new(),
        };
        Record::new(super::super::create::creating(&new, ProjectId::generate(), None))
    }

    fn seconds_until(at: Instant) -> u64 {
        at.saturating_duration_since(Instant::now()).as_secs()
    }

    #[test]
    fn a_step_of_the_wall_clock_moves_nothing_that_runs() {
        let policy = LifetimePolicy { maximum_ms: 2 * HOUR, ..LifetimePolicy::default() };
        for step in [26 * HOUR, -26 * HOUR] {
            STEP.set(0);
            let record = record(HOUR);
            STEP.set(step);
            let mut live = record.live();
            assert!((3590..=3600).contains(&seconds_until(live.deadline)), "{step}");
            assert!((50..=60).contains(&seconds_until(live.lease.unwrap())), "{step}");
            // A change to other fields keeps the deadline.
            let row = live.row.clone();
            live.adopt(row);
            assert!((3590..=3600).contains(&seconds_until(live.deadline)), "{step}");
            // The requested time, though by the wall clock it is a day too old, or not created yet.
            let allowed = allowed_ms(&policy, &live, HOUR / 2, Instant::now());
            assert_eq!(allowed, HOUR / 2, "{step}");
            let mut row = live.row.clone();
            row.lifetime.deadline_ms = now_ms() + allowed;
            live.adopt(row);
            assert!((1790..=1800).contains(&seconds_until(live.deadline)), "{step}");
            // And never more than the longest lifetime, whatever the clock says.
            let most = allowed_ms(&policy, &live, 24 * HOUR, Instant::now() + Duration::from_secs(3600));
            assert!((HOUR - 10_000..=HOUR).contains(&most), "{most}");
            let over = allowed_ms(&policy, &live, HOUR, Instant::now() + Duration::from_secs(3 * 3600));
            assert_eq!(over, 0);
        }
        STEP.set(0);
    }
}
