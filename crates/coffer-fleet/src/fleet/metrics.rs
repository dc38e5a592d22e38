//! Samples the resource usage of sandboxes.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::Fleet;

const INTERVAL: Duration = Duration::from_secs(5);

/// A new run has its first sample after about this long; several that begin together share one.
const FIRST: Duration = Duration::from_secs(1);

impl Fleet {
    /// Samples all sandboxes regularly until `stop`, and soon after a run begins.
    pub(super) async fn keep_sampling(self: Arc<Self>, stop: CancellationToken) {
        let mut ticks = tokio::time::interval_at(Instant::now() + INTERVAL, INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
                () = self.sample_soon.notified() => tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(FIRST) => {}
                },
            }
            match self.engine.stats().await {
                Ok(samples) => {
                    for sample in samples {
                        let Some(record) = self.any(sample.sandbox) else { continue };
                        let (started_ms, cpu_count) = {
                            let live = record.live();
                            (live.row.lifetime.started_ms, live.row.limits.cpu_count)
                        };
                        record.samples().add(&sample, started_ms, cpu_count);
                        self.usage.sample(&sample);
                        self.take_down(&record, sample.traffic).await;
                    }
                }
                Err(error) => tracing::debug!("could not sample sandboxes, trying again: {error}"),
            }
        }
    }
}
