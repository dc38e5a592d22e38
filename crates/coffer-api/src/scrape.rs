//! Metrics that are computed when they are scraped.

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use coffer_core::clock::now_ms;
use coffer_core::compete::{CompetitionState, EntryState};
use coffer_engine::Pressure;
use coffer_fleet::Fleet;
use coffer_fleet::events::Events;
use coffer_forge::Forges;
use coffer_store::{Store, WriteLoad};
use coffer_telemetry::{Labels, Level, Levels, Telemetry, label};

/// A node that does not answer within this time counts as down.
const PATIENCE: Duration = Duration::from_secs(1);
/// Projects with a budget that get their own series; their number is otherwise unbounded.
const MOST_BUDGETS: usize = 200;

/// All metrics, in the OpenMetrics text format.
pub(crate) async fn scrape(
    telemetry: &Telemetry,
    fleet: &Fleet,
    store: &Store,
    events: &Events,
    forges: &Forges,
) -> String {
    let mut now = Registry::default();
    let build: Levels<1> = Levels::default();
    build.get_or_create(&label([("version", env!("CARGO_PKG_VERSION"))])).set(1.0);
    now.register("coffer_build_info", "The running version, as a label", build);
    sandboxes(&mut now, fleet);
    node(&mut now, fleet).await;
    breakers(telemetry, &mut now, forges);
    gauge(&mut now, "coffer_event_readers", "Open event streams", events.readers() as f64);
    let load = store.write_load();
    gauge(
        &mut now,
        "coffer_store_write_queue",
        "Writes that wait for the database or are in progress",
        load.waiting as f64,
    );
    now.register_collector(Box::new(WriteTimes(load)));
    forge(&mut now, forges);
    webhooks(&mut now, store).await;
    queue(&mut now, store).await;
    competitions(&mut now, store).await;
    let mut text = String::new();
    encode_registry(&mut text, &telemetry.metrics.registry).expect("text takes all");
    encode_registry(&mut text, &now).expect("text takes all");
    encode_eof(&mut text).expect("text takes all");
    text
}

fn breakers(telemetry: &Telemetry, now: &mut Registry, forges: &Forges) {
    let standing: Levels<1> = Levels::default();
    for breaker in telemetry.breakers() {
        let level = standing.get_or_create(&label([("dependency", breaker.name())]));
        level.set(f64::from(breaker.standing() as u8));
    }
    let (name, github) = forges.github_standing();
    standing.get_or_create(&label([("dependency", name)])).set(f64::from(github as u8));
    let help = "State of a dependency's circuit breaker: 0 closed, 1 half open, 2 open";
    now.register("coffer_circuit_breaker_state", help, standing);
}

fn sandboxes(now: &mut Registry, fleet: &Fleet) {
    let active: Levels<2> = Levels::default();
    let of = |state: &'static str, template: Cow<'static, str>| -> Labels<2> {
        [("state", state.into()), ("template", template)]
    };
    for state in ["creating", "running", "paused"] {
        active.get_or_create(&of(state, "base".into())).set(0.0);
    }
    for (state, template) in fleet.census() {
        active.get_or_create(&of(state, template.into())).inc();
    }
    now.register("sandbox_active_count", "Live sandboxes, by state and template", active);
    let used: Levels<3> = Levels::default();
    for (budget, ratio) in fleet.usage.spending().into_iter().take(MOST_BUDGETS) {
        let labels = [
            ("project", budget.project.to_string().into()),
            ("period", budget.period.as_str().into()),
            ("scope", if budget.sandbox.is_some() { "sandbox" } else { "project" }.into()),
        ];
        let level = used.get_or_create(&labels);
        // Of several sandboxes' budgets, the one with the highest ratio counts.
        level.set(level.get().max(ratio));
    }
    now.register("sandbox_budget_used_ratio", "How much of a budget is spent; 1 is all", used);
}

async fn node(now: &mut Registry, fleet: &Fleet) {
    let info = tokio::time::timeout(PATIENCE, fleet.engine_info()).await;
    let info = info.ok().and_then(Result::ok);
    gauge(
        now,
        "coffer_node_up",
        "Whether the host of the sandboxes answers",
        f64::from(u8::from(info.is_some())),
    );
    let Some(info) = info else { return };
    if let (Some(size), Some(free)) = (info.pool_bytes, info.pool_free_bytes) {
        gauge(now, "coffer_pool_size_bytes", "Size of the disk pool that sandboxes share", size as f64);
        gauge(now, "coffer_pool_free_bytes", "Free space in the disk pool", free as f64);
    }
    let pressure: Levels<1> = Levels::default();
    for Pressure { resource, waiting_bp } in info.pressure {
        pressure.get_or_create(&[("resource", resource.into())]).set(f64::from(waiting_bp) / 10_000.0);
    }
    let help = "The part of the last ten seconds in which some process of a sandbox waited for a resource (cgroup v2)";
    now.register("sandbox_pressure_ratio", help, pressure);
    gauge(now, "coffer_warm_sandboxes", "Sandboxes in the warm pool", info.warm_ready as f64);
}

fn forge(now: &mut Registry, forges: &Forges) {
    let (git, github) = (forges.git_figures(), forges.github_figures());
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let served: Family<Labels<2>, Counter> = Family::default();
    for (service, outcome, count) in [
        ("fetch", "succeeded", &git.fetched),
        ("fetch", "failed", &git.fetch_failed),
        ("push", "succeeded", &git.pushed),
        ("push", "refused", &git.push_refused),
        ("push", "failed", &git.push_failed),
    ] {
        served.get_or_create(&label([("service", service), ("outcome", outcome)])).inc_by(read(count));
    }
    now.register("coffer_git_served", "Fetches and pushes of local repositories, by how they ended", served);
    let count = |now: &mut Registry, name: &'static str, help: &'static str, value: u64| {
        let counter = Counter::<u64>::default();
        counter.inc_by(value);
        now.register(name, help, counter);
    };
    count(now, "coffer_forge_requests", "Requests sent to GitHub", read(&github.requests));
    count(
        now,
        "coffer_forge_failures",
        "Requests to GitHub that failed: no answer, or 5xx",
        read(&github.failures),
    );
    count(
        now,
        "coffer_forge_rate_limited",
        "Requests to GitHub that met a rate limit",
        read(&github.rate_limited),
    );
    count(
        now,
        "coffer_forge_unchanged",
        "Requests to GitHub whose answer had not changed",
        read(&github.unchanged),
    );
    let help = "Time spent waiting for rate limits, in milliseconds";
    count(now, "coffer_forge_waited_milliseconds", help, read(&github.waited_ms));
}

/// If the database does not answer, there is no value; an alert on its absence is about the database.
async fn webhooks(now: &mut Registry, store: &Store) {
    let Ok(load) = store.webhook_load(&store.operator()).await else { return };
    gauge(now, "coffer_webhook_waiting", "Waiting deliveries to webhooks", load.waiting as f64);
    let oldest = load.oldest_ms.map_or(0, |oldest| (now_ms() - oldest).max(0));
    let help = "Age of the oldest waiting delivery";
    gauge(now, "coffer_webhook_oldest_wait_seconds", help, oldest as f64 / 1000.0);
    gauge(now, "coffer_webhooks_failing", "Webhooks whose last delivery failed", load.failing as f64);
    let help = "Webhooks that were disabled because they failed or answered 410";
    gauge(now, "coffer_webhooks_disabled", help, load.disabled as f64);
}

async fn queue(now: &mut Registry, store: &Store) {
    let Ok(load) = store.queue_load(&store.operator(), None).await else { return };
    gauge(now, "coffer_runs_queued", "Runs that wait for a slot", load.queued as f64);
    gauge(now, "coffer_runs_active", "Runs that hold a slot", load.held as f64);
    let help = "Runs that wait for a person or a time, and hold no slot";
    gauge(now, "coffer_runs_parked", help, load.parked as f64);
    let oldest = load.oldest_ms.map_or(0, |oldest| (now_ms() - oldest).max(0));
    let help = "How long the oldest queued run has waited for a slot";
    gauge(now, "coffer_run_oldest_wait_seconds", help, oldest as f64 / 1000.0);
}

async fn competitions(now: &mut Registry, store: &Store) {
    let Ok(load) = store.competition_load(&store.operator()).await else { return };
    let (all, entries): (Levels<1>, Levels<1>) = (Levels::default(), Levels::default());
    for &state in CompetitionState::ALL.iter().filter(|state| !state.is_over()) {
        let found = load.competitions.iter().find(|(known, _)| *known == state);
        let level = all.get_or_create(&label([("state", state.as_str())]));
        level.set(found.map_or(0, |(_, number)| *number) as f64);
    }
    for &state in EntryState::ALL {
        let found = load.entries.iter().find(|(known, _)| *known == state);
        let level = entries.get_or_create(&label([("state", state.as_str())]));
        level.set(found.map_or(0, |(_, number)| *number) as f64);
    }
    now.register("coffer_competitions", "Competitions that are not over, by state", all);
    now.register(
        "coffer_competition_entries",
        "Entries of competitions that are not over, by state",
        entries,
    );
}

fn gauge(now: &mut Registry, name: &'static str, help: &'static str, value: f64) {
    let level = Level::default();
    level.set(value);
    now.register(name, help, level);
}

/// Durations of writes, as the store measured them.
struct WriteTimes(WriteLoad);

impl fmt::Debug for WriteTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WriteTimes")
    }
}

impl Collector for WriteTimes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut metric = encoder.encode_descriptor(
            "coffer_store_write_duration_seconds",
            "From the request of a write to its commit",
            None,
            MetricType::Histogram,
        )?;
        let WriteLoad { seconds, count, buckets, .. } = &self.0;
        metric.encode_histogram::<NoLabelSet>(*seconds, *count, buckets, None)
    }
}
