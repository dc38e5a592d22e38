//! Watching over running sandboxes: deaths that the engine tells of, and regular checks.

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

/// How often each running sandbox is asked whether it still answers.
pub(super) const INTERVAL: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(8);
/// After a failed check.
const AGAIN: Duration = Duration::from_secs(2);
const MOST_FAILURES: u32 = 3;

/// The engine's list and the store are compared this often even when nothing seems amiss.
const COMPARE: Duration = Duration::from_secs(60);

impl Fleet {
    /// Acts on what the engine tells unasked.
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
                    // Not in this task: the next death must not wait for this one's paperwork.
                    if let Some(record) = self.any(sandbox) {
                        let fleet = self.clone();
                        self.steps.spawn(async move { fleet.fail(&record, fault_of(&cause)).await });
                    } else {
                        let fleet = self.clone();
                        self.in_background(None, async move { fleet.destroy_quietly(sandbox).await });
                    }
                }
                // Notices may have been missed: only the list tells.
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

    /// Checks running sandboxes one after the other until `stop`.
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
            // Paused, resumed or ended meanwhile: the answer is about a run that is over.
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

    /// It does not answer, or nobody listens on its socket at all. That is so when its agentd has ended, and
    /// also while it stands still or its memory is written to disk, which an earlier server may have asked for.
    async fn look_closer(&self, record: &Arc<Record>, socket: &Path, fault: Option<Fault>) {
        let Some(claim) = record.try_claim(Step::Update) else { return };
        // Answered when whatever is being done to it is done.
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
            // It is not what it is on record as.
            Err(EngineError::WrongState(_) | EngineError::UnknownSandbox) => {
                let Ok(listed) = self.engine.list().await else { return };
                let status = listed.into_iter().find(|status| status.sandbox == record.id);
                self.compare(claim, status).await;
                self.heal(record).await;
            }
            // The next look finds out.
            Err(_) => {}
        }
    }

    /// Nobody listens on the sandbox's socket: the engine may know why.
    async fn why_refused(&self, record: &Record) -> Fault {
        let unknown = Fault::Died { message: "its agent ended".into() };
        let Ok(listed) = self.engine.list().await else { return unknown };
        match listed.into_iter().find(|status| status.sandbox == record.id).map(|status| status.run) {
            Some(RunState::Dead { cause }) => fault_of(&cause),
            Some(_) => unknown,
            None => Fault::Lost,
        }
    }
}
