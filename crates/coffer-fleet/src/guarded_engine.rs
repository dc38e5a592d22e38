//! An engine behind a circuit breaker.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use coffer_core::network::{Policy as NetworkPolicy, Refusals};
use coffer_core::sync::Mutex;
use coffer_core::{Boot, Memory, SandboxId, SnapshotId, TemplateDefaults, VolumeId};
use coffer_engine::{
    CreateSandbox, Engine, EngineError, EngineNotice, NodeInfo, Placement, Sample, SandboxStatus,
    SnapshotInfo, TemplateInfo, VolumeInfo,
};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use coffer_core::clock::now_ms;
use coffer_http::breaker::{Breaker, Policy};

/// A call waits half a minute for an unreachable node, so these are five such waits; a restart of the node
/// takes a second and fails none.
const POLICY: Policy =
    Policy { failures: 5, pause: Duration::from_secs(1), longest_pause: Duration::from_secs(30) };

/// How many failures are remembered for operators.
const REMEMBERED: usize = 20;

/// A request that failed on the host, with the reason: for operators, never for tenants.
#[derive(Debug, Clone)]
pub struct HostFailure {
    pub at_ms: i64,
    pub request_id: Option<String>,
    pub why: String,
}

/// The latest failures of the host, oldest first.
#[derive(Debug, Clone, Default)]
pub struct HostFailures(Arc<Mutex<VecDeque<HostFailure>>>);

impl HostFailures {
    fn note(&self, why: &str) {
        let request_id = coffer_engine::on_behalf().map(|id| id.to_string());
        let failure = HostFailure { at_ms: now_ms(), request_id, why: why.to_string() };
        let mut failures = self.0.lock();
        if failures.len() == REMEMBERED {
            failures.pop_front();
        }
        failures.push_back(failure);
    }

    pub fn list(&self) -> Vec<HostFailure> {
        self.0.lock().iter().cloned().collect()
    }
}

/// An engine that is not called while it does not answer.
#[derive(Debug)]
pub struct GuardedEngine {
    engine: Arc<dyn Engine>,
    breaker: Arc<Breaker>,
    failures: HostFailures,
}

impl GuardedEngine {
    /// Guards `engine`, until `stop`. The breaker closes as soon as the engine reports that it is connected
    /// again.
    pub fn start(
        engine: Arc<dyn Engine>,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> (Arc<Self>, Arc<Breaker>) {
        let breaker = Arc::new(Breaker::new("node", POLICY));
        let (mut notices, closing) = (engine.notices(), breaker.clone());
        tasks.spawn(async move {
            loop {
                let notice = tokio::select! {
                    () = stop.cancelled() => return,
                    notice = notices.recv() => notice,
                };
                match notice {
                    Ok(EngineNotice::Reconnected) => closing.close(),
                    Ok(EngineNotice::Died { .. }) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                }
            }
        });
        (Arc::new(Self { engine, breaker: breaker.clone(), failures: HostFailures::default() }), breaker)
    }

    /// Recent failures of the host; the list keeps growing.
    pub fn failures(&self) -> HostFailures {
        self.failures.clone()
    }

    async fn ask<T>(&self, call: impl Future<Output = Result<T, EngineError>>) -> Result<T, EngineError> {
        let leave = self.breaker.admit().map_err(|open| EngineError::Resting {
            // Round up: a client that waits less is refused again.
            retry_after_s: u32::try_from(open.retry_after.as_millis().div_ceil(1000))
                .unwrap_or(u32::MAX)
                .max(1),
        })?;
        let answer = call.await;
        match &answer {
            Err(EngineError::Unavailable(_)) => leave.failed(),
            Err(EngineError::Failed(why)) => {
                self.failures.note(why);
                leave.answered();
            }
            _ => leave.answered(),
        }
        answer
    }
}

#[async_trait]
impl Engine for GuardedEngine {
    async fn info(&self) -> Result<NodeInfo, EngineError> {
        self.ask(self.engine.info()).await
    }

    async fn templates(&self) -> Result<Vec<TemplateInfo>, EngineError> {
        self.ask(self.engine.templates()).await
    }

    async fn create(&self, spec: &CreateSandbox) -> Result<Placement, EngineError> {
        self.ask(self.engine.create(spec)).await
    }

    async fn destroy(&self, sandbox: SandboxId) -> Result<(), EngineError> {
        self.ask(self.engine.destroy(sandbox)).await
    }

    async fn freeze(&self, sandbox: SandboxId) -> Result<(), EngineError> {
        self.ask(self.engine.freeze(sandbox)).await
    }

    async fn thaw(&self, sandbox: SandboxId) -> Result<(), EngineError> {
        self.ask(self.engine.thaw(sandbox)).await
    }

    async fn stop(&self, sandbox: SandboxId) -> Result<(), EngineError> {
        self.ask(self.engine.stop(sandbox)).await
    }

    async fn start(&self, sandbox: SandboxId, boot: Boot) -> Result<Placement, EngineError> {
        self.ask(self.engine.start(sandbox, boot)).await
    }

    async fn hibernate(&self, sandbox: SandboxId) -> Result<(), EngineError> {
        self.ask(self.engine.hibernate(sandbox)).await
    }

    async fn snapshot(
        &self,
        sandbox: SandboxId,
        snapshot: SnapshotId,
        memory: Memory,
    ) -> Result<SnapshotInfo, EngineError> {
        self.ask(self.engine.snapshot(sandbox, snapshot, memory)).await
    }

    async fn delete_snapshot(&self, snapshot: SnapshotId) -> Result<(), EngineError> {
        self.ask(self.engine.delete_snapshot(snapshot)).await
    }

    async fn snapshots(&self) -> Result<Vec<SnapshotInfo>, EngineError> {
        self.ask(self.engine.snapshots()).await
    }

    async fn create_volume(&self, volume: VolumeId, limit_mib: u64) -> Result<(), EngineError> {
        self.ask(self.engine.create_volume(volume, limit_mib)).await
    }

    async fn delete_volume(&self, volume: VolumeId) -> Result<(), EngineError> {
        self.ask(self.engine.delete_volume(volume)).await
    }

    async fn volumes(&self) -> Result<Vec<VolumeInfo>, EngineError> {
        self.ask(self.engine.volumes()).await
    }

    async fn rollback(
        &self,
        sandbox: SandboxId,
        snapshot: SnapshotId,
        memory: Memory,
    ) -> Result<Placement, EngineError> {
        self.ask(self.engine.rollback(sandbox, snapshot, memory)).await
    }

    async fn set_network(&self, sandbox: SandboxId, policy: &NetworkPolicy) -> Result<(), EngineError> {
        self.ask(self.engine.set_network(sandbox, policy)).await
    }

    async fn set_defaults(&self, sandbox: SandboxId, defaults: &TemplateDefaults) -> Result<(), EngineError> {
        self.ask(self.engine.set_defaults(sandbox, defaults)).await
    }

    async fn refusals(&self, sandbox: SandboxId, after: u64) -> Result<Refusals, EngineError> {
        self.ask(self.engine.refusals(sandbox, after)).await
    }

    async fn list(&self) -> Result<Vec<SandboxStatus>, EngineError> {
        self.ask(self.engine.list()).await
    }

    async fn stats(&self) -> Result<Vec<Sample>, EngineError> {
        self.ask(self.engine.stats()).await
    }

    fn notices(&self) -> broadcast::Receiver<EngineNotice> {
        self.engine.notices()
    }
}
