//! Watches running sandboxes: deaths that the engine reports, and regular checks.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coffer_core::Fault;
use coffer_engine::{EngineError, EngineNotice, RunState};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::end::fault_of;
use super::{Fleet, Record, Step};
use coffer_core::chain;
use coffer_guest as agent;
use coffer_guest::AgentError;

/// How often each running sandbox is checked.
pub(super) const INTERVAL: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(8);
/// After a failed check.
const AGAIN: Duration = Duration::from_secs(2);
const MOST_FAILURES: u32 = 3;

/// How often the engine's list and the store are compared even if nothing seems wrong.
const COMPARE: Duration = Duration::from_secs(60);

impl Fleet {
    /// Handles notices of the engine.
    pub(super) async fn heed(
        self: Arc<Self>,
        mut notices: broadcast::Receiver<EngineNotice>,
        stop: CancellationToken,
    ) {
        let mut compare = tokio::time::interval_at(tokio::time::Instant::now() + COMPARE, COMPARE);
        compare.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let notice = tokio::select! {
                () = stop.cancelled() => return,
                notice = notices.recv() => notice,
                _ = compare.tick() => Ok(EngineNotice::Reconnected),
            };
            match notice {
                Ok(EngineNotice::Died { sandbox, cause }) => {
                    // In a separate task: the next death must not wait until this one is recorded.
                    if let Some(record) = self.any(sandbox) {
                        let fleet = self.clone();
                        self.steps.spawn(async move { fleet.fail(&record, fault_of(&cause)).await });
                    } else {
                        let fleet = self.clone();
                        self.in_background(None, async move { fleet.destroy_quietly(sandbox).await });
                    }
                }
                // Notices may have been missed: only the list shows.
                Ok(EngineNotice::Reconnected) | Err(RecvError::Lagged(_)) => {
                    let fleet = self.clone();
                    self.steps.spawn(async move {
                        if let Err(error) = fleet.reconcile().await {
                            tracing::warn!(
                                "could not compare the engine's sandboxes with ours: {}",
                                chain(&error)
                            );
                        }
                    });
                }
                Err(RecvError::Closed) => return,
            }
        }
    }

    /// Checks running sandboxes in turn until `stop`.
    pub(super) async fn keep_checking(self: Arc<Self>, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let now = Instant::now();
            for record in self.everyone() {
                {
                    let mut live = record.live();
                    if !live.is_steady() || now < live.health.next_check {
                        continue;
                    }
                    live.health.next_check = now + INTERVAL;
                }
                let (fleet, room) = (self.clone(), self.checks.clone());
                self.steps.spawn(async move {
                    let _place = room.take(record.project).await;
                    fleet.check(&record).await;
                });
            }
        }
    }

    async fn check(&self, record: &Arc<Record>) {
        let (socket, run) = {
            let live = record.live();
            let Some(socket) = live.socket().filter(|_| live.is_steady()) else { return };
            (socket, live.gone.clone())
        };
        let answer = agent::health(&socket, PATIENCE).await;
        let fault = {
            let mut live = record.live();
            // The sandbox was paused, resumed or ended meanwhile: the answer is about an earlier run.
            if run.is_cancelled() || !live.is_steady() {
                return;
            }
            match &answer {
                Ok(()) => {
                    live.health.failures = 0;
                    return;
                }
                Err(AgentError::Refused(_)) => None,
                Err(_) => {
                    live.health.failures += 1;
                    live.health.next_check = Instant::now() + AGAIN;
                    if live.health.failures < MOST_FAILURES {
                        return;
                    }
                    Some(Fault::Unresponsive)
                }
            }
        };
        self.look_closer(record, &socket, fault).await;
    }

    /// The sandbox does not answer, or nothing listens on its socket. That happens when its agentd has ended,
    /// and also while it is frozen or being hibernated, which an earlier server may have requested.
    async fn look_closer(&self, record: &Arc<Record>, socket: &Path, fault: Option<Fault>) {
        let Some(claim) = record.try_claim(Step::Update) else { return };
        // The engine answers once any operation in progress is done.
        match self.engine.thaw(record.id).await {
            Ok(()) => {
                let answer = agent::health(socket, PATIENCE).await;
                drop(claim);
                let fault = match (answer, fault) {
                    (Err(AgentError::Refused(_)), _) => self.why_refused(record).await,
                    (Err(_), Some(fault)) => fault,
                    (Ok(()), _) | (Err(_), None) => return,
                };
                self.fail(record, fault).await;
            }
            // The engine's state differs from the recorded one.
            Err(EngineError::WrongState(_) | EngineError::UnknownSandbox) => {
                let Ok(listed) = self.engine.list().await else { return };
                let status = listed.into_iter().find(|status| status.sandbox == record.id);
                self.compare(claim, status).await;
                self.heal(record).await;
            }
            // The next check decides.
            Err(_) => {}
        }
    }

    /// Nothing listens on the sandbox's socket: the engine may know why.
    async fn why_refused(&self, record: &Record) -> Fault {
        let unknown = Fault::Died { message: "its agentd ended".into() };
        let Ok(listed) = self.engine.list().await else { return unknown };
        match listed.into_iter().find(|status| status.sandbox == record.id).map(|status| status.run) {
            Some(RunState::Dead { cause }) => fault_of(&cause),
            Some(_) => unknown,
            None => Fault::Lost,
        }
    }
}
