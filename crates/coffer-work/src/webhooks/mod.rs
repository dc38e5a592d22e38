//! Webhooks: sends events to receivers.
//!
//! ```text
//! event log ──gather──► deliveries in the database ──send──► receivers
//!           (position)      (claimed by one server)   (tries, pauses, the log)
//! ```
//!
//! `gather` follows the log for each webhook and writes a delivery for every event that it wants, together
//! with the webhook's new position: a server that dies skips nothing and writes nothing twice. `send` claims
//! deliveries for a while, sends each once and records the outcome. If a server dies, its claimed deliveries
//! are sent again when the claim expires (or when it starts again): a receiver may get an event twice, always
//! under the same id.
//!
//! A receiver that hangs does not delay others: few deliveries are sent to one webhook at once, one while it
//! fails, and failing webhooks have a separate pool.

mod post;
mod send;
mod service;
mod settings;
mod sign;
mod target;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use coffer_core::Millis;
use coffer_core::event::{Event, Nothing};
use coffer_shares::pool;
use coffer_store::{EventRow, NewDelivery, Store, StoreError, WebhookBehind};
use serde_json::Value;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use coffer_core::clock::now_ms;
use coffer_fleet::Follower;
use coffer_fleet::events::{self, Wanted};
use coffer_fleet::output::{Output, Patterns};
use coffer_shares::PoolSettings;
use coffer_telemetry::Telemetry;

use service::LOOK;
pub use service::Webhooks;
pub use settings::WebhookSettings;
pub use sign::new_key;
pub use target::{BadTarget, Reach, Target};

/// Events read in one step.
const PAGE: u32 = 200;
/// A webhook with this many waiting deliveries gets no more for now: the log keeps the events.
const MOST_WAITING: i64 = 1000;
const WEBHOOKS: u32 = 500;
/// The shortest pause between two reads.
const BREATHER: Duration = Duration::from_millis(50);

const PRUNE_EVERY: Duration = Duration::from_secs(600);
const PRUNED_AT_ONCE: u32 = 500;

impl Webhooks {
    /// Continues interrupted deliveries, and runs until `stop`.
    pub async fn start(
        store: Store,
        output: Arc<Output>,
        telemetry: Arc<Telemetry>,
        settings: WebhookSettings,
        pools: &PoolSettings,
        installation: Option<&str>,
        stop: CancellationToken,
    ) -> Result<Arc<Self>, StoreError> {
        let holder = installation.unwrap_or("server").to_string();
        let freed = store.free_deliveries(&store.operator(), &holder).await?;
        if freed > 0 {
            tracing::info!("sending {freed} webhook deliveries again: the server stopped while it sent them");
        }
        let (wake, removed, tasks) = (Notify::new(), Notify::new(), TaskTracker::new());
        let (sends, retries) = (pools.shares(pool::WEBHOOK_SENDS), pools.shares(pool::WEBHOOK_RETRIES));
        let webhooks = Arc::new(Self {
            store,
            output,
            telemetry,
            settings,
            holder,
            wake,
            removed,
            tasks,
            stop,
            sends,
            retries,
        });
        webhooks.tasks.spawn(webhooks.clone().keep_gathering());
        webhooks.tasks.spawn(send::keep_sending(webhooks.clone()));
        webhooks.tasks.spawn(webhooks.clone().keep_pruning());
        webhooks.tasks.spawn(webhooks.clone().keep_clearing());
        webhooks.tasks.close();
        Ok(webhooks)
    }

    async fn keep_gathering(self: Arc<Self>) {
        let follower =
            Follower::new("could not create webhook deliveries, trying again", LOOK, self.stop.clone());
        let mut follower = follower.on_writes(&self.store, BREATHER);
        loop {
            let looked = self.gather().await.map(|any| {
                if any {
                    self.wake();
                }
            });
            if !follower.again(looked).await {
                return;
            }
        }
    }

    /// Deletes old deliveries.
    async fn keep_pruning(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(PRUNE_EVERY) => {}
            }
            match self.prune().await {
                Ok(()) => {}
                Err(StoreError::Closed) => return,
                Err(error) => tracing::warn!("could not delete old webhook deliveries: {error}"),
            }
        }
    }

    /// Deletes the logs of deleted webhooks, including those deleted on a server that is gone.
    async fn keep_clearing(self: Arc<Self>) {
        loop {
            match self.store.clear_removed_webhooks(&self.store.operator(), PRUNED_AT_ONCE).await {
                Ok(0) => tokio::select! {
                    () = self.stop.cancelled() => return,
                    () = self.removed.notified() => {}
                    () = tokio::time::sleep(PRUNE_EVERY) => {}
                },
                Ok(_) => tokio::select! {
                    () = self.stop.cancelled() => return,
                    () = tokio::time::sleep(BREATHER) => {}
                },
                Err(StoreError::Closed) => return,
                Err(error) => {
                    tracing::warn!("could not delete the logs of deleted webhooks: {error}");
                    tokio::select! {
                        () = self.stop.cancelled() => return,
                        () = tokio::time::sleep(PRUNE_EVERY) => {}
                    }
                }
            }
        }
    }

    async fn prune(&self) -> Result<(), StoreError> {
        let operator = self.store.operator();
        let before = now_ms().saturating_sub(self.settings.keep.as_millis());
        let mut after = None;
        loop {
            let projects = self.store.projects(&operator, after, WEBHOOKS).await?;
            let Some(last) = projects.last() else { return Ok(()) };
            after = Some(last.id);
            for project in projects {
                while self.store.prune_deliveries(&operator, project.id, before, PRUNED_AT_ONCE).await?
                    >= u64::from(PRUNED_AT_ONCE)
                    && !self.stop.is_cancelled()
                {
                    tokio::time::sleep(BREATHER).await;
                }
            }
        }
    }

    /// Writes deliveries for new events. Returns whether there are any.
    async fn gather(&self) -> Result<bool, StoreError> {
        let operator = self.store.operator();
        let mut any = false;
        // One step for each webhook in turn, so that one far behind does not delay the others.
        loop {
            let behind = self.store.webhooks_behind(&operator, MOST_WAITING, WEBHOOKS).await?;
            if behind.is_empty() || self.stop.is_cancelled() {
                return Ok(any);
            }
            for one in behind {
                any |= self.step(one).await?;
            }
            if any {
                self.wake();
            }
        }
    }

    async fn step(&self, behind: WebhookBehind) -> Result<bool, StoreError> {
        let WebhookBehind { webhook, newest } = behind;
        let operator = self.store.operator();
        let scope = operator.acting_for(webhook.project, None);
        let events = self.store.events(&scope, webhook.position, PAGE).await?;
        // Empty if all events were deleted because of their age.
        let to = events.last().map_or(newest, |last| last.sequence);
        let wanted = Wanted { subject: None, kinds: webhook.events.clone() };
        let mut events: Vec<EventRow> = events.into_iter().filter(|event| wanted.includes(event)).collect();
        if let Some(context) = &webhook.context_id {
            let subjects: HashSet<&String> = events.iter().map(|event| &event.subject).collect();
            let subjects: Vec<String> = subjects.into_iter().cloned().collect();
            let ours = self.store.subjects_of_context(&operator, webhook.project, context, &subjects).await?;
            let ours: HashSet<String> = ours.into_iter().collect();
            let is_named = |event: &EventRow| event.payload["context_id"].as_str() == Some(context.as_str());
            events.retain(|event| ours.contains(&event.subject) || is_named(event));
        }
        if !events.is_empty() {
            // Load the secrets, so that the patterns include them.
            self.store.secret_values(webhook.project).await?;
        }
        let patterns = self.output.patterns(webhook.project);
        let delivery = |mut event: EventRow| {
            redact(&mut event.payload, &patterns);
            event.subject = patterns.redact(&event.subject);
            NewDelivery { event: event.sequence, body: body(&event), kind: event.kind }
        };
        let deliveries: Vec<NewDelivery> = events.into_iter().map(delivery).collect();
        let any = !deliveries.is_empty();
        let queued = self.store.queue_deliveries(&operator, &webhook, to, deliveries, now_ms()).await?;
        Ok(any && queued)
    }
}

/// Redacts every text before JSON escapes it.
fn redact(value: &mut Value, patterns: &Patterns) {
    match value {
        Value::String(text) => *text = patterns.redact(text),
        Value::Array(values) => values.iter_mut().for_each(|value| redact(value, patterns)),
        Value::Object(fields) => fields.values_mut().for_each(|value| redact(value, patterns)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The body for an event: the same as in `GET /api/v1/events`.
fn body(event: &EventRow) -> String {
    serde_json::to_string(&events::render(event)).expect("an event is plain data")
}

/// The body of a test delivery.
pub fn ping(webhook: coffer_core::WebhookId, now: Millis) -> String {
    body(&EventRow::new(0, webhook, &Event::WebhookPing(Nothing {}), now))
}
