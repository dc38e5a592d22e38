//! Telemetry of the server: metrics for Prometheus, spans for OpenTelemetry.
//!
//! [`Telemetry`] is created once and shared. Counters are updated as things happen and cost a few
//! nanoseconds; other values are computed when `/metrics` is read. Spans are off unless a destination is set,
//! and then cost nothing.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

mod export;
mod metrics;
mod otlp;
mod settings;
mod trace;

use std::sync::Arc;
use std::time::Duration;

use coffer_core::sync::Mutex;
use coffer_store::ExecutionRow;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use coffer_http::breaker::Breaker;
use metrics::Outcome;
pub use metrics::{Labels, Level, Levels, Metrics, ModelCalled, Snapshotted, label};
pub use otlp::Value;
pub use settings::{BadTraceSetting, MetricsSettings, TraceSettings};
pub use trace::{Active, RecordedIds, Traces, Whose, current, parse_traceparent, within};

/// How long a stop waits for spans to be sent.
const LAST_SPANS: Duration = Duration::from_secs(5);

/// Metrics and spans of one server.
#[derive(Debug)]
pub struct Telemetry {
    pub metrics: Metrics,
    pub traces: Traces,
    pub public: bool,
    breakers: Mutex<Vec<Arc<Breaker>>>,
    exporters: TaskTracker,
    stop: CancellationToken,
}

impl Telemetry {
    /// Starts the exporters.
    pub fn start(settings: &MetricsSettings, traces: &TraceSettings) -> Result<Self, BadTraceSetting> {
        let (metrics, exporters, stop) = (Metrics::new(), TaskTracker::new(), CancellationToken::new());
        let destinations = export::destinations(traces)?;
        let breakers = destinations.iter().map(|destination| destination.breaker.clone()).collect();
        let traces = Traces::start(destinations, &metrics, &exporters, &stop);
        Ok(Self { metrics, traces, public: settings.public, breakers: Mutex::new(breakers), exporters, stop })
    }

    /// Adds a circuit breaker to the metrics.
    pub fn watch(&self, breaker: Arc<Breaker>) {
        self.breakers.lock().push(breaker);
    }

    /// The breakers of this server's dependencies.
    pub fn breakers(&self) -> Vec<Arc<Breaker>> {
        self.breakers.lock().clone()
    }

    /// Counts an ended and recorded execution: its command is redacted there.
    pub fn executed(&self, row: &ExecutionRow) {
        let took = row.ended_ms.unwrap_or(row.started_ms).saturating_sub(row.started_ms);
        let took = Duration::from_millis(u64::try_from(took).unwrap_or(0));
        let outcome = match row.exit_code {
            Some(0) => Outcome::Succeeded,
            // A shell reports a signal by an exit code from 128 on.
            Some(code) if (0..128).contains(&code) => Outcome::Failed,
            _ => Outcome::Killed,
        };
        self.metrics.executed(outcome, took);
        let whose = Whose { id: row.sandbox, project: row.project, agent: row.agent };
        let mut span = self.traces.step("sandbox.execution", &whose);
        span.began(row.started_ms);
        span.set("execution.id", || row.id.to_string().into());
        span.set("process.command_line", || row.command.clone().into());
        span.set("execution.outcome", || outcome.as_str().into());
        if let Some(code) = row.exit_code {
            span.set("process.exit.code", || code.into());
        }
        if outcome != Outcome::Succeeded {
            span.fail(|| row.status.clone().unwrap_or_default());
        }
        span.ended_after(took);
    }

    /// Makes the exporters send what they have, and waits briefly.
    pub async fn finish(&self) {
        self.stop.cancel();
        self.exporters.close();
        let _ = tokio::time::timeout(LAST_SPANS, self.exporters.wait()).await;
    }
}
