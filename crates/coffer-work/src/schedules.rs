//! Starts the tasks of schedules when their time has come.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::clock::now_ms;
use coffer_core::schedule::next_start;
use coffer_fleet::Follower;
use coffer_store::{Fired, Firing, ScheduleRow, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::tasks::Tasks;

const LOOK: Duration = Duration::from_secs(1);
/// Schedules started in one look; the longest overdue come first.
const PAGE: u32 = 100;

/// A start of a schedule by hand.
pub fn by_hand(row: ScheduleRow, actor: String) -> Firing {
    Firing {
        template: row.template.at(now_ms(), &row.time_zone),
        then_ms: row.next_ms,
        by: Some(actor),
        schedule: row,
    }
}

/// Starts what is due, until `stop`.
pub async fn follow(store: Store, tasks: Arc<Tasks>, stop: CancellationToken) {
    let mut follower = Follower::new("could not start tasks by schedule, trying again", LOOK, stop.clone());
    loop {
        let looked = tokio::select! {
            () = stop.cancelled() => return,
            looked = look(&store, &tasks) => looked,
        };
        if !follower.again(looked).await {
            return;
        }
    }
}

async fn look(store: &Store, tasks: &Tasks) -> Result<(), StoreError> {
    let now = now_ms();
    for row in store.due_schedules(&store.operator(), now, PAGE).await? {
        let (schedule, name) = (row.id, row.name.clone());
        // From now on: times that were missed are one start.
        let then_ms = match next_start(&row.cron, &row.time_zone, now) {
            Ok(then) => then,
            Err(error) => {
                // A zone that another host knows, for example.
                tracing::warn!("schedule {name} ({schedule}) is paused: {error}");
                None
            }
        };
        let firing =
            Firing { template: row.template.at(now, &row.time_zone), then_ms, by: None, schedule: row };
        match store.fire_schedule(firing).await? {
            Fired::Started(task, _) => {
                tracing::info!(task.id = %task, "schedule {name} started task {task}");
                tasks.wake();
            }
            Fired::Skipped(why) => tracing::info!("schedule {name} started nothing: {why}"),
            Fired::Failed(why) => tracing::warn!("schedule {name} could not start its task: {why}"),
            Fired::Gone => {}
        }
    }
    Ok(())
}
