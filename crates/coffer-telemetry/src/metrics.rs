//! Metrics that are counted as things happen. Every name and label is in this file and in the API's `scrape`.
//!
//! Labels have few values: states, templates, routes, codes. Projects and sandboxes are not labels, because
//! their number is unbounded; their usage and cost is in `/api/v1/usage`.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use coffer_core::{Code, DestroyReason, Fault};
use coffer_store::RunState;
use http::{Method, StatusCode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use strum::{EnumString, IntoStaticStr, VariantArray};

use coffer_core::clock::now_ms;

pub type Labels<const N: usize> = [(&'static str, Cow<'static, str>); N];
type Counts<const N: usize> = Family<Labels<N>, Counter>;
type Times<const N: usize> = Family<Labels<N>, Histogram, fn() -> Histogram>;
pub type Level = Gauge<f64, std::sync::atomic::AtomicU64>;
pub type Levels<const N: usize> = Family<Labels<N>, Level>;

/// From a warm create (a few milliseconds) to one that waits for a full disk.
const CREATION: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
/// From `true` to a test suite of an hour.
const EXECUTION: [f64; 12] = [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0];
const REQUEST: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];

/// Counters and histograms.
pub struct Metrics {
    pub registry: Registry,
    spawned: Counts<1>,
    failed: Counts<1>,
    ended: Counts<1>,
    timed_out: Counts<1>,
    creation: Times<1>,
    snapshots: Counts<1>,
    snapshot_time: Histogram,
    forks: Counts<1>,
    fork_time: Histogram,
    execution: Histogram,
    commands: Counts<1>,
    git: Counts<2>,
    orphans: Counter,
    orphan_found: Level,
    egress_bytes: Counts<1>,
    egress_refused: Counter,
    requests: Counts<3>,
    request_time: Times<1>,
    refusals: Counts<1>,
    cost: Family<Labels<1>, Counter<f64, std::sync::atomic::AtomicU64>>,
    pub(super) spans: Counts<2>,
    webhooks: Counts<1>,
    webhook_time: Histogram,
    runs_started: Counts<1>,
    runs_ended: Counts<2>,
    model_calls: Counts<4>,
    model_tokens: Counts<4>,
    model_cost: Family<Labels<4>, Counter<f64, std::sync::atomic::AtomicU64>>,
    model_time: Times<1>,
    model_fallbacks: Counts<2>,
}

/// A call of a model that has ended.
#[derive(Debug, Clone, Copy)]
pub struct ModelCalled<'a> {
    pub provider: &'static str,
    /// A name of the price table, or `other`: agents choose names, and labels must be few.
    pub model: &'a str,
    /// The preset of the agent.
    pub agent: &'static str,
    pub outcome: &'static str,
    pub input: u64,
    pub cached: u64,
    pub output: u64,
    pub cost: f64,
    pub currency: &'a str,
    pub took: Duration,
}

/// How an execution ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Outcome {
    /// With code 0.
    Succeeded,
    /// With another code.
    Failed,
    /// By a signal, or with its sandbox.
    Killed,
}

coffer_core::names!(Outcome, Snapshotted);

/// The outcome of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Snapshotted {
    WithMemory,
    FilesOnly,
    Failed,
}

impl Snapshotted {
    pub const fn of(memory: bool) -> Self {
        if memory { Self::WithMemory } else { Self::FilesOnly }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

pub fn label<const N: usize>(pairs: [(&'static str, &'static str); N]) -> Labels<N> {
    pairs.map(|(name, value)| (name, Cow::Borrowed(value)))
}

fn owned(name: &'static str, value: &str) -> Labels<1> {
    [(name, Cow::Owned(value.to_string()))]
}

impl Metrics {
    pub(super) fn new() -> Self {
        let metrics = Self {
            registry: Registry::default(),
            spawned: Family::default(),
            failed: Family::default(),
            ended: Family::default(),
            timed_out: Family::default(),
            creation: Family::new_with_constructor(|| Histogram::new(CREATION)),
            snapshots: Family::default(),
            snapshot_time: Histogram::new(CREATION),
            forks: Family::default(),
            fork_time: Histogram::new(CREATION),
            execution: Histogram::new(EXECUTION),
            commands: Family::default(),
            git: Family::default(),
            orphans: Counter::default(),
            orphan_found: Gauge::default(),
            egress_bytes: Family::default(),
            egress_refused: Counter::default(),
            requests: Family::default(),
            request_time: Family::new_with_constructor(|| Histogram::new(REQUEST)),
            refusals: Family::default(),
            cost: Family::default(),
            spans: Family::default(),
            webhooks: Family::default(),
            webhook_time: Histogram::new(REQUEST),
            runs_started: Family::default(),
            runs_ended: Family::default(),
            model_calls: Family::default(),
            model_tokens: Family::default(),
            model_cost: Family::default(),
            model_time: Family::new_with_constructor(|| Histogram::new(EXECUTION)),
            model_fallbacks: Family::default(),
        };
        metrics.begin_at_zero();
        metrics.registered()
    }

    /// Registers counters used by alerts at zero; a series that starts at 1 has no rate.
    fn begin_at_zero(&self) {
        let _ = self.spawned.get_or_create(&label([("template", "base")]));
        let _ = self.creation.get_or_create(&label([("template", "base")]));
        for kind in FAULTS {
            let _ = self.failed.get_or_create(&label([("kind", kind)]));
        }
        for action in ["destroy", "pause"] {
            let _ = self.timed_out.get_or_create(&label([("action", action)]));
        }
        for &outcome in Outcome::ALL {
            let _ = self.commands.get_or_create(&label([("outcome", outcome.as_str())]));
        }
        for operation in ["clone", "branch", "commit", "push", "pr"] {
            for outcome in ["success", "failure"] {
                let labels = label([("operation", operation), ("outcome", outcome)]);
                let _ = self.git.get_or_create(&labels);
            }
        }
        for &outcome in Snapshotted::ALL {
            let _ = self.snapshots.get_or_create(&label([("outcome", outcome.as_str())]));
        }
        for outcome in ["made", "failed"] {
            let _ = self.forks.get_or_create(&label([("outcome", outcome)]));
        }
        for outcome in ["delivered", "retried", "failed"] {
            let _ = self.webhooks.get_or_create(&label([("outcome", outcome)]));
        }
        for kind in ["task", "compete"] {
            let _ = self.runs_started.get_or_create(&label([("kind", kind)]));
            for outcome in RunState::ALL.iter().filter(|state| state.is_over()) {
                let labels = label([("kind", kind), ("outcome", outcome.as_str())]);
                let _ = self.runs_ended.get_or_create(&labels);
            }
        }
        for direction in ["sent", "received"] {
            let _ = self.egress_bytes.get_or_create(&label([("direction", direction)]));
        }
        for code in [Code::QuotaExceeded, Code::RateLimited, Code::BudgetExceeded, Code::CommandRefused] {
            let _ = self.refusals.get_or_create(&label([("code", code.as_str())]));
        }
    }

    fn registered(mut self) -> Self {
        let registry = &mut self.registry;
        registry.register(
            "sandbox_spawn",
            "Creates of sandboxes that began, by template",
            self.spawned.clone(),
        );
        registry.register(
            "sandbox_error",
            "Sandboxes that failed, while being created or later, by kind",
            self.failed.clone(),
        );
        registry.register("sandbox_ended", "Sandboxes that were destroyed, by reason", self.ended.clone());
        registry.register(
            "sandbox_timeout",
            "Sandboxes that reached their timeout, idle window or longest lifetime",
            self.timed_out.clone(),
        );
        registry.register(
            "sandbox_creation_duration_seconds",
            "From the request to a sandbox that answers",
            self.creation.clone(),
        );
        registry.register(
            "sandbox_snapshot",
            "Requested snapshots, those of forks included, by outcome",
            self.snapshots.clone(),
        );
        registry.register(
            "sandbox_snapshot_duration_seconds",
            "Durations of recorded snapshots",
            self.snapshot_time.clone(),
        );
        registry.register("sandbox_fork", "Forks, by outcome", self.forks.clone());
        registry.register(
            "sandbox_fork_duration_seconds",
            "From the request to the last fork",
            self.fork_time.clone(),
        );
        registry.register(
            "sandbox_execution_duration_seconds",
            "How long commands in sandboxes ran",
            self.execution.clone(),
        );
        registry.register(
            "sandbox_command",
            "Commands in sandboxes that ended, by outcome",
            self.commands.clone(),
        );
        registry.register(
            "git_operation",
            "Git operations in sandboxes, by kind and outcome",
            self.git.clone(),
        );
        registry.register(
            "sandbox_orphan",
            "Removed remains of sandboxes without a record",
            self.orphans.clone(),
        );
        registry.register(
            "sandbox_orphan_found_timestamp_seconds",
            "When the last orphan was found; 0 for never",
            self.orphan_found.clone(),
        );
        registry.register(
            "sandbox_egress_bytes",
            "Bytes that sandboxes sent and received",
            self.egress_bytes.clone(),
        );
        registry.register(
            "sandbox_egress_refused",
            "Connections and name questions of sandboxes that their policy refused",
            self.egress_refused.clone(),
        );
        registry.register(
            "sandbox_cost",
            "Cost of sandboxes at the configured prices, since this server started",
            self.cost.clone(),
        );
        registry.register("coffer_http_requests", "Requests to the API", self.requests.clone());
        registry.register(
            "coffer_http_request_duration_seconds",
            "How long the API took to begin its answer",
            self.request_time.clone(),
        );
        registry.register("coffer_api_refusals", "Refused requests, by code", self.refusals.clone());
        registry.register(
            "coffer_trace_spans",
            "Spans for OpenTelemetry, by destination and outcome",
            self.spans.clone(),
        );
        registry.register(
            "coffer_webhook_tries",
            "Tries to deliver to webhooks, by outcome: `retried` will be tried again, `failed` will not",
            self.webhooks.clone(),
        );
        registry.register(
            "coffer_webhook_duration_seconds",
            "Time until receivers of webhooks answered or failed",
            self.webhook_time.clone(),
        );
        registry.register(
            "coffer_runs_started",
            "Attempts at tasks (`task`) and competitions (`compete`) that got a slot",
            self.runs_started.clone(),
        );
        registry.register(
            "coffer_runs_ended",
            "Runs that ended after they got a slot, by kind and outcome",
            self.runs_ended.clone(),
        );
        registry.register(
            "coffer_model_calls",
            "Calls of models through the gateway, by provider, model, preset of the agent and outcome",
            self.model_calls.clone(),
        );
        registry.register(
            "coffer_model_tokens",
            "Tokens of calls of models: `input` that no cache had, `cached`, and `output`",
            self.model_tokens.clone(),
        );
        registry.register(
            "coffer_model_cost",
            "Cost of calls of models at the prices of the table, since this server started",
            self.model_cost.clone(),
        );
        registry.register(
            "coffer_model_duration_seconds",
            "How long calls of models took, by provider",
            self.model_time.clone(),
        );
        registry.register(
            "coffer_model_fallbacks",
            "Calls of models that went on to a fallback, by provider and reason",
            self.model_fallbacks.clone(),
        );
        self
    }

    /// Counts a call of a model.
    pub fn model_called(&self, call: &ModelCalled<'_>) {
        let with = |name: &'static str, value: &str| -> Labels<4> {
            [
                ("provider", call.provider.into()),
                ("model", call.model.to_string().into()),
                ("agent", call.agent.into()),
                (name, value.to_string().into()),
            ]
        };
        self.model_calls.get_or_create(&with("outcome", call.outcome)).inc();
        for (kind, tokens) in [("input", call.input), ("cached", call.cached), ("output", call.output)] {
            if tokens > 0 {
                self.model_tokens.get_or_create(&with("kind", kind)).inc_by(tokens);
            }
        }
        if call.cost > 0.0 {
            self.model_cost.get_or_create(&with("currency", call.currency)).inc_by(call.cost);
        }
        self.model_time.get_or_create(&label([("provider", call.provider)])).observe(call.took.as_secs_f64());
    }

    /// A call of a provider went on to another place, for this reason.
    pub fn model_fell_back(&self, provider: &'static str, reason: &'static str) {
        self.model_fallbacks.get_or_create(&label([("provider", provider), ("reason", reason)])).inc();
    }

    pub fn run_started(&self, kind: &'static str) {
        self.runs_started.get_or_create(&label([("kind", kind)])).inc();
    }

    pub fn run_ended(&self, kind: &'static str, how: RunState) {
        self.runs_ended.get_or_create(&label([("kind", kind), ("outcome", how.as_str())])).inc();
    }

    pub fn spawned(&self, template: &str) {
        self.spawned.get_or_create(&owned("template", template)).inc();
    }

    pub fn created(&self, template: &str, took: Duration) {
        self.creation.get_or_create(&owned("template", template)).observe(took.as_secs_f64());
    }

    /// Counts a requested snapshot.
    pub fn snapshotted(&self, outcome: Snapshotted, took: Duration) {
        self.snapshots.get_or_create(&label([("outcome", outcome.as_str())])).inc();
        if outcome != Snapshotted::Failed {
            self.snapshot_time.observe(took.as_secs_f64());
        }
    }

    /// Counts a requested fork.
    pub fn forked(&self, outcome: Snapshotted, took: Duration, made: u32, failed: u32) {
        self.snapshots.get_or_create(&label([("outcome", outcome.as_str())])).inc();
        self.forks.get_or_create(&label([("outcome", "made")])).inc_by(made.into());
        self.forks.get_or_create(&label([("outcome", "failed")])).inc_by(failed.into());
        if made > 0 {
            self.fork_time.observe(took.as_secs_f64());
        }
    }

    pub fn failed(&self, fault: &Fault) {
        self.failed.get_or_create(&label([("kind", kind(fault))])).inc();
    }

    pub fn ended(&self, reason: DestroyReason) {
        self.ended.get_or_create(&label([("reason", reason.as_str())])).inc();
        let by_time =
            matches!(reason, DestroyReason::Timeout | DestroyReason::Idle | DestroyReason::MaximumLifetime);
        if by_time {
            self.timed_out.get_or_create(&label([("action", "destroy")])).inc();
        }
    }

    /// A sandbox was paused because its time had come.
    pub fn paused_at_timeout(&self) {
        self.timed_out.get_or_create(&label([("action", "pause")])).inc();
    }

    pub fn executed(&self, outcome: Outcome, took: Duration) {
        self.execution.observe(took.as_secs_f64());
        self.commands.get_or_create(&label([("outcome", outcome.as_str())])).inc();
    }

    pub fn git(&self, operation: &'static str, success: bool) {
        let outcome = if success { "success" } else { "failure" };
        self.git.get_or_create(&label([("operation", operation), ("outcome", outcome)])).inc();
    }

    /// Counts a try to deliver to a webhook.
    pub fn webhook(&self, outcome: &'static str, took: Duration) {
        self.webhooks.get_or_create(&label([("outcome", outcome)])).inc();
        self.webhook_time.observe(took.as_secs_f64());
    }

    pub fn found_orphan(&self) {
        self.orphans.inc();
        self.orphan_found.set(now_ms() as f64 / 1000.0);
    }

    /// Adds a sandbox's traffic since the last time.
    pub fn passed(&self, sent: u64, received: u64, refused: u64) {
        for (direction, bytes) in [("sent", sent), ("received", received)] {
            if bytes > 0 {
                self.egress_bytes.get_or_create(&label([("direction", direction)])).inc_by(bytes);
            }
        }
        self.egress_refused.inc_by(refused);
    }

    pub fn answered(&self, method: &Method, route: Option<&str>, status: StatusCode, took: Duration) {
        let method = match method.as_str() {
            "GET" => "GET",
            "POST" => "POST",
            "PUT" => "PUT",
            "PATCH" => "PATCH",
            "DELETE" => "DELETE",
            _ => "other",
        };
        let route: Cow<'static, str> = route.map_or("unknown".into(), |route| route.to_string().into());
        let labels = [
            ("method", method.into()),
            ("route", route.clone()),
            ("status", status.as_str().to_string().into()),
        ];
        self.requests.get_or_create(&labels).inc();
        self.request_time.get_or_create(&[("route", route)]).observe(took.as_secs_f64());
    }

    pub fn refused(&self, code: &str) {
        self.refusals.get_or_create(&owned("code", code)).inc();
    }

    pub fn cost(&self, currency: &str, amount: f64) {
        self.cost.get_or_create(&owned("currency", currency)).inc_by(amount);
    }
}

const FAULTS: [&str; 6] =
    ["create_failed", "out_of_memory", "died", "unresponsive", "lost", "transition_failed"];

const fn kind(fault: &Fault) -> &'static str {
    match fault {
        Fault::CreateFailed { .. } => FAULTS[0],
        Fault::OutOfMemory => FAULTS[1],
        Fault::Died { .. } => FAULTS[2],
        Fault::Unresponsive => FAULTS[3],
        Fault::Lost => FAULTS[4],
        Fault::TransitionFailed { .. } => FAULTS[5],
    }
}
