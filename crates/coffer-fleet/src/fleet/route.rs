//! Routes the proxy's traffic, and resumes paused sandboxes for it.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::{Kept, Millis, SandboxId, SandboxState};
use coffer_engine::EngineError;

use super::{Boot, Fleet, FleetError, Record};
use coffer_guest::{Activity, Route, Target, Wake};

/// How long a request waits for a step in progress before the client must retry.
const PATIENCE: Duration = Duration::from_secs(10);

/// A sandbox that traffic resumed runs at least this long.
const SHORTEST_AWAKE_MS: Millis = 5 * 60_000;

/// The decision about a request, by the current state.
enum Verdict {
    Go(Box<Target>),
    NotFound,
    Wait,
    Wake,
}

fn verdict(record: &Record) -> Verdict {
    let live = record.live();
    if live.ending.is_some() {
        return Verdict::NotFound;
    }
    match (&live.row.state, live.under_way) {
        (SandboxState::Running, Some(step)) if !step.leaves_it_alone() => Verdict::Wait,
        (SandboxState::Running, _) => {
            let Some(socket) = live.socket() else { return Verdict::NotFound };
            Verdict::Go(Box::new(Target {
                sandbox: record.id,
                project: record.project,
                socket,
                spare: record.spare.clone(),
                traffic_token: live.row.traffic_token.as_ref().map(|token| token.reveal().to_string()),
                mask_host: live.row.network.inbound.mask_host.clone(),
                https_ports: live.row.network.inbound.https_ports.clone(),
                activity: record.activity.clone(),
                gone: live.gone.clone(),
            }))
        }
        (SandboxState::Paused { .. }, Some(_)) => Verdict::Wait,
        // A pause that kept only files is not ended by traffic: a reboot would surprise its owner.
        (SandboxState::Paused { kept: Kept::MemoryAndFiles }, None) if live.row.auto_resume => Verdict::Wake,
        (SandboxState::Paused { .. }, None) => Verdict::NotFound,
        (SandboxState::Creating | SandboxState::Terminated { .. } | SandboxState::Error { .. }, _) => {
            Verdict::NotFound
        }
    }
}

impl Fleet {
    /// Finds the target for traffic to `sandbox`. Any text is allowed; what is not an id is not found.
    pub async fn route(self: &Arc<Self>, sandbox: &str, wake: Wake) -> Route {
        let Ok(id) = sandbox.parse::<SandboxId>() else { return Route::NotFound };
        let find = async {
            loop {
                // Look it up again each time: it may end while this waits.
                let Some(record) = self.any(id) else { return Route::NotFound };
                match verdict(&record) {
                    Verdict::Go(mut target) if wake == Wake::LooksOn => {
                        // Do not count this as activity.
                        target.activity = Activity::default();
                        return Route::Running(*target);
                    }
                    Verdict::Go(target) => {
                        record.activity.note();
                        self.output.wake(&record);
                        return Route::Running(*target);
                    }
                    Verdict::NotFound => return Route::NotFound,
                    Verdict::Wait => record.settled().await,
                    Verdict::Wake if wake != Wake::ByPolicy => return Route::NotFound,
                    Verdict::Wake => {
                        if let Some(refusal) = self.wake_for_traffic(record).await {
                            return refusal;
                        }
                    }
                }
            }
        };
        tokio::time::timeout(PATIENCE, find).await.unwrap_or(Route::Transitioning)
    }

    /// Running sandboxes with an access token, for signed URLs that name no sandbox.
    pub fn secured(&self) -> Vec<(SandboxId, String)> {
        let everyone = self.everyone();
        let running = everyone.iter().filter_map(|record| {
            let live = record.live();
            let token = live.row.access_token.as_ref().filter(|_| live.row.state == SandboxState::Running)?;
            Some((record.id, token.reveal().to_string()))
        });
        running.collect()
    }
}

impl Fleet {
    /// Resumes a sandbox; `None` if the caller should look again.
    async fn wake_for_traffic(self: &Arc<Self>, record: Arc<Record>) -> Option<Route> {
        let asked_ms = record.live().row.timeout_s.saturating_mul(1000);
        let timeout_ms = asked_ms.max(SHORTEST_AWAKE_MS).min(self.policy.longest_timeout_ms);
        match self.resume(record, timeout_ms, Boot::AsPaused, None).await {
            Ok(_) | Err(FleetError::Busy(_) | FleetError::Refused(_)) => None,
            Err(FleetError::Engine(EngineError::NoCapacity(_))) => Some(Route::Busy),
            Err(FleetError::Engine(EngineError::UnknownSandbox)) => Some(Route::NotFound),
            Err(_) => Some(Route::Transitioning),
        }
    }
}
