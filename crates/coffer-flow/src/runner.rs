//! The runner of a process: takes runs, sends heartbeats, and removes dead runners.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coffer_core::{Millis, RunId, RunnerId};
use coffer_store::{Store, StoreError};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::execute::execute;
use crate::{Kind, Settings};

/// The pause before a removed runner registers again.
const REENTER_PAUSE: Duration = Duration::from_secs(1);

/// Executes runs until it is stopped.
#[derive(Debug)]
pub struct Runner {
    wake: Arc<Notify>,
    stop: CancellationToken,
    owner: JoinHandle<()>,
}

impl Runner {
    /// Registers, takes over the runs of an earlier runner of the same place, and starts.
    #[expect(clippy::disallowed_methods, reason = "`stop` awaits the handle")]
    pub async fn start(
        store: Store,
        settings: Settings,
        kinds: Vec<Arc<dyn Kind>>,
    ) -> Result<Self, StoreError> {
        let (wake, stop) = (Arc::new(Notify::new()), CancellationToken::new());
        let first = enter(&store, &settings).await?;
        let worker = Worker { store, settings, kinds: kinds.into(), wake: wake.clone(), stop: stop.clone() };
        Ok(Self { wake, stop, owner: tokio::spawn(worker.work(first)) })
    }

    /// Makes it check at once: a run was queued, signalled or cancelled.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// The handle that wakes it.
    pub fn waker(&self) -> Arc<Notify> {
        self.wake.clone()
    }

    /// Stops in order: steps in progress are dropped, and the next runner runs them again.
    pub async fn stop(self) {
        self.stop.cancel();
        let _ = self.owner.await;
    }

    /// Ends at once and leaves everything as it is, like a crash.
    pub async fn kill(self) {
        self.owner.abort();
        let _ = self.owner.await;
    }
}

async fn enter(store: &Store, settings: &Settings) -> Result<RunnerId, StoreError> {
    store.enter_runner(&store.operator(), &settings.place, unit_ms(settings)).await
}

fn unit_ms(settings: &Settings) -> Millis {
    Millis::try_from(settings.retake_unit.as_millis()).unwrap_or(Millis::MAX / 1000)
}

struct Worker {
    store: Store,
    settings: Settings,
    kinds: Arc<[Arc<dyn Kind>]>,
    wake: Arc<Notify>,
    stop: CancellationToken,
}

impl Worker {
    async fn work(self, first: RunnerId) {
        let mut next = Some(first);
        while !self.stop.is_cancelled() {
            let entered = match next.take() {
                Some(entered) => Ok(entered),
                None => enter(&self.store, &self.settings).await,
            };
            match entered {
                Ok(runner) => self.serve(runner).await,
                Err(StoreError::Closed) => return,
                Err(error) => tracing::error!("could not register the runner of runs: {error}"),
            }
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = tokio::time::sleep(REENTER_PAUSE) => {}
            }
        }
    }

    /// Acts as this runner until it is removed or stopped.
    async fn serve(&self, runner: RunnerId) {
        let alive = CancellationToken::new();
        // Ends with this function.
        let mut heart = JoinSet::new();
        heart.spawn(beat(self.store.clone(), self.settings.clone(), runner, alive.clone()));
        let mut executing = JoinSet::new();
        let mut cancels: HashMap<RunId, CancellationToken> = HashMap::new();
        let mut watch = Watch::default();
        while !alive.is_cancelled() && !self.stop.is_cancelled() {
            cancels.retain(|_, cancel| !cancel.is_cancelled());
            if let Err(error) = self.look(runner, &alive, &mut executing, &mut cancels, &mut watch).await {
                tracing::warn!("could not query runs: {error}");
            }
            tokio::select! {
                () = alive.cancelled() => {}
                () = self.stop.cancelled() => {}
                () = self.wake.notified() => {}
                () = tokio::time::sleep(self.settings.look_every) => {}
                Some(over) = executing.join_next() => {
                    if let Ok(run) = over {
                        cancels.remove(&run);
                    }
                }
            }
        }
        // A removed runner must stop: drop its futures.
        executing.shutdown().await;
        heart.shutdown().await;
        if !alive.is_cancelled()
            && let Err(error) = self.store.leave_runner(&self.store.operator(), runner).await
        {
            tracing::warn!("could not release this server's runs; others take them over later: {error}");
        }
    }

    async fn look(
        &self,
        runner: RunnerId,
        alive: &CancellationToken,
        executing: &mut JoinSet<RunId>,
        cancels: &mut HashMap<RunId, CancellationToken>,
        watch: &mut Watch,
    ) -> Result<(), StoreError> {
        let operator = self.store.operator();
        for run in self.store.runs_to_cancel(&operator, runner).await? {
            if let Some(cancel) = cancels.get(&run) {
                cancel.cancel();
            }
        }
        watch.look(&self.store, &self.settings, runner).await?;
        let room = self.settings.most_here.saturating_sub(executing.len());
        let names: Vec<&'static str> = self.kinds.iter().map(|kind| kind.name()).collect();
        let now = self.settings.clock.now();
        let taken = self.store.take_runs(&operator, runner, &names, self.settings.slots, room, now).await?;
        for taken in taken {
            let run = taken.run.id;
            let Some(kind) = self.kinds.iter().find(|kind| kind.name() == taken.run.kind) else { continue };
            let cancel = CancellationToken::new();
            cancels.insert(run, cancel.clone());
            let (store, settings, kind, alive) =
                (self.store.clone(), self.settings.clone(), kind.clone(), alive.clone());
            executing.spawn(async move {
                execute(store, settings, kind, taken, alive, cancel).await;
                run
            });
        }
        Ok(())
    }
}

/// Sends heartbeats, and cancels `alive` when this runner must stop.
async fn beat(store: Store, settings: Settings, runner: RunnerId, alive: CancellationToken) {
    let operator = store.operator();
    let mut last = tokio::time::Instant::now();
    loop {
        tokio::time::sleep(settings.beat_every).await;
        let sent = tokio::time::Instant::now();
        let beaten = tokio::time::timeout_at(last + settings.stop_after, store.beat(&operator, runner)).await;
        match beaten {
            Ok(Ok(true)) => last = sent,
            Ok(Ok(false)) => {
                tracing::warn!("another server took over this server's runs");
                break;
            }
            Ok(Err(error)) => tracing::warn!("could not write the heartbeat: {error}"),
            Err(_) => {}
        }
        if last.elapsed() >= settings.stop_after {
            tracing::error!("database unreachable; releasing runs");
            break;
        }
    }
    alive.cancel();
}

/// Other runners: their heartbeats, and since when those have not changed, by our clock.
#[derive(Debug, Default)]
struct Watch {
    seen: HashMap<RunnerId, (i64, Instant)>,
    last: Option<Instant>,
}

impl Watch {
    async fn look(&mut self, store: &Store, settings: &Settings, own: RunnerId) -> Result<(), StoreError> {
        // Often enough to notice in time, and no more often.
        if self.last.is_some_and(|last| last.elapsed() < settings.bury_after / 10) {
            return Ok(());
        }
        let operator = store.operator();
        let asked = Instant::now();
        let runners = store.runners(&operator).await?;
        self.last = Some(asked);
        self.seen.retain(|known, _| runners.iter().any(|(runner, _)| runner == known));
        for (runner, beat) in runners.into_iter().filter(|(runner, _)| *runner != own) {
            let seen = self.seen.entry(runner).or_insert((beat, asked));
            if seen.0 != beat {
                *seen = (beat, asked);
            } else if seen.1.elapsed() >= settings.bury_after
                && store.bury_runner(&operator, runner, beat, unit_ms(settings)).await?
            {
                tracing::warn!("another server is dead: its runs can be taken over");
            }
        }
        Ok(())
    }
}
