//! How many events a second the log takes on SQLite, and what the disk alone would take. For `bench/run`.
//!
//! `event_rate DIR EVENTS` prints one line of JSON.
#![expect(clippy::print_stdout, reason = "its answer")]
#![expect(clippy::disallowed_methods, reason = "the callers are awaited")]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use coffer_core::event::{Event, OrphanRemoved};
use coffer_core::{Lifetime, Limits, OnTimeout, SandboxId};
use coffer_store::{Authenticated, Bounds, ChangeError, KeySource, NewSandbox, Store};

/// Callers at a time; the writer makes groups of what waits, at most this many.
const CALLERS: usize = 256;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().ok_or("no directory")?);
    let events: usize = arguments.next().ok_or("no number of events")?.parse()?;
    let keys = KeySource::File(dir.join("master-key"));
    let store = Store::open(&format!("sqlite:{}", dir.join("events.db").display()), keys).await?;
    let operator = store.operator();
    let project = store.create_project(&operator, "bench").await?;
    let key = store.create_key(&operator, project, "bench").await?;
    let Some(Authenticated::Project(principal)) = store.authenticate(key.reveal()).await? else {
        return Err("the key is not good".into());
    };
    let sandbox = sandbox();
    let about = sandbox.id;
    store.insert_sandbox(&principal.scope, sandbox, None).await?;
    let event = Event::SandboxOrphanRemoved(OrphanRemoved { had: vec!["x".repeat(100)] });
    let record = async |count: usize| -> Result<f64, Box<dyn std::error::Error>> {
        let since = Instant::now();
        let callers = (0..CALLERS).map(|_| {
            let (store, event) = (store.clone(), event.clone());
            tokio::spawn(async move {
                for _ in 0..count / CALLERS {
                    store.record_event_of(&store.operator(), about, event.clone(), 0).await?;
                }
                Ok::<(), ChangeError>(())
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            caller.await??;
        }
        Ok(since.elapsed().as_secs_f64())
    };
    record(events / 10).await?;
    let before = resident_kib();
    let took = record(events).await?;
    let grown = resident_kib().saturating_sub(before);
    store.close().await;
    let each = event.payload().to_string().len() + 120;
    let disk = append(&dir.join("append"), events, each)?;
    let rate = |seconds: f64| (events as f64 / seconds).round();
    println!(
        "{}",
        serde_json::json!({
            "events": events, "callers": CALLERS, "events_per_s": rate(took), "append_per_s": rate(disk),
            "grown_kib": grown,
        })
    );
    Ok(())
}

/// What the events are about.
fn sandbox() -> NewSandbox {
    NewSandbox {
        id: SandboxId::generate(),
        agent: None,
        task: None,
        template: "base".into(),
        template_id: "base".into(),
        alias: None,
        metadata: BTreeMap::new(),
        env_vars: BTreeMap::new(),
        secrets: BTreeMap::new(),
        limits: Limits::default(),
        lifetime: Lifetime { started_ms: 0, deadline_ms: 60_000, on_timeout: OnTimeout::Destroy },
        timeout_s: 60,
        auto_resume: false,
        secure: true,
        access_token: None,
        traffic_token: None,
        network: Default::default(),
        allow_internet_access: None,
        envd_version: "0.5.0".into(),
        created_ms: 0,
        bounds: Bounds::default(),
        origin: None,
        purpose: coffer_core::SandboxPurpose::Use,
        volumes: Vec::new(),
    }
}

/// The same bytes, appended to a file and flushed as often as the largest groups would be.
fn append(path: &Path, records: usize, each: usize) -> std::io::Result<f64> {
    let mut file = std::fs::File::create(path)?;
    let record = vec![b'x'; each];
    let since = Instant::now();
    for number in 1..=records {
        file.write_all(&record)?;
        if number % CALLERS == 0 {
            file.sync_data()?;
        }
    }
    file.sync_data()?;
    Ok(since.elapsed().as_secs_f64())
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
}
