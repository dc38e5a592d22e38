//! Deletes old records, a few at a time, so that other writes hardly wait.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use coffer_core::ProjectId;
use coffer_core::settings::Period;
use coffer_store::{Cutoffs, ProjectSettings, Pruned, Store, StoreError};
use tokio_util::sync::CancellationToken;

use super::limiter::Limiter;
use super::projects::{InForce, Kept};
use coffer_core::clock::now_ms;

/// Rows of a kind that one transaction deletes; other writes wait no longer than for these.
const BATCH: u32 = 500;
/// Transactions for one project in one sweep. The next sweep continues.
const MOST_BATCHES: u32 = 100;
/// Pause between two of them, so that a long sweep takes a small share of the database.
const BREATHER: Duration = Duration::from_millis(20);
const PROJECTS: u32 = 200;

/// Sweeps until `stop`.
pub(super) async fn keep_sweeping(limiter: Arc<Limiter>, store: Store, stop: CancellationToken) {
    let every = Duration::from(limiter.settings.sweep_every).max(Duration::from_millis(100));
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(every) => {}
        }
        let swept = tokio::select! {
            () = stop.cancelled() => return,
            swept = sweep(&limiter, &store) => swept,
        };
        limiter.counts.sweeps.fetch_add(1, Ordering::Relaxed);
        match swept {
            Ok(()) => {}
            Err(StoreError::Closed) => return,
            Err(error) => {
                limiter.counts.failed_sweeps.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    "could not delete old records, trying again at the next sweep: {}",
                    coffer_core::chain(&error)
                );
            }
        }
    }
}

async fn sweep(limiter: &Limiter, store: &Store) -> Result<(), StoreError> {
    let server = InForce::new(&ProjectSettings::default(), &limiter.settings, limiter.logs);
    sweep_one(limiter, store, None, server.retention).await?;
    let mut after = None;
    loop {
        let projects = store.projects(&store.operator(), after, PROJECTS).await?;
        let Some(last) = projects.last() else { return Ok(()) };
        after = Some(last.id);
        for project in projects {
            let kept = limiter.of(project.id).retention;
            sweep_one(limiter, store, Some(project.id), kept).await?;
        }
    }
}

async fn sweep_one(
    limiter: &Limiter,
    store: &Store,
    project: Option<ProjectId>,
    kept: Kept,
) -> Result<(), StoreError> {
    let now = now_ms();
    let before = |age: Period| now.saturating_sub(age.as_millis());
    let cutoffs = Cutoffs {
        records_ms: before(kept.records),
        events_ms: before(kept.events),
        audit_ms: before(kept.audit),
    };
    let mut all = Pruned::default();
    for _ in 0..MOST_BATCHES {
        let pruned = store.prune(&store.operator(), project, cutoffs, BATCH).await?;
        let counts = &limiter.counts;
        counts.swept_sandboxes.fetch_add(pruned.sandboxes, Ordering::Relaxed);
        counts.swept_events.fetch_add(pruned.events, Ordering::Relaxed);
        counts.swept_audit.fetch_add(pruned.audit, Ordering::Relaxed);
        all.sandboxes += pruned.sandboxes;
        all.events += pruned.events;
        all.audit += pruned.audit;
        all.runs += pruned.runs;
        all.competitions += pruned.competitions;
        all.patches += pruned.patches;
        all.model_calls += pruned.model_calls;
        if !pruned.reached(BATCH) {
            break;
        }
        tokio::time::sleep(BREATHER).await;
    }
    if let Some(project) = project {
        // A transcript is what output says: it stays no longer than that.
        let operator = store.operator();
        for _ in 0..MOST_BATCHES {
            let pruned = store.prune_transcripts(&operator, project, before(kept.logs), BATCH).await?;
            if pruned < u64::from(BATCH) {
                break;
            }
            tokio::time::sleep(BREATHER).await;
        }
    }
    if all != Pruned::default() {
        let Pruned { sandboxes, events, audit, runs, competitions, patches, model_calls } = all;
        let whose = project.map_or_else(|| "operators".to_string(), |project| project.to_string());
        tracing::info!(
            sandboxes,
            events,
            audit,
            runs,
            competitions,
            patches,
            model_calls,
            "deleted old records of {whose}"
        );
    }
    Ok(())
}
