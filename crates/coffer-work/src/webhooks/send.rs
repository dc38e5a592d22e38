//! Sends deliveries: chooses which and how many at once, and records each outcome.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use coffer_core::{Millis, ProjectId, WebhookId};
use coffer_shares::{Place, Shares};
use coffer_store::{DueDelivery, SendOutcome, SendReport, StoreError, WebhookDue, WebhookKey};
use http::header::{CONTENT_TYPE, HOST, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::Full;
use tokio::task::{Id, JoinSet};

use super::post::{Answer, post};
use super::service::{LOOK, Webhooks};
use super::sign;
use super::target::{BadTarget, Target};
use coffer_core::clock::now_ms;
use coffer_http::{Client, Failure};

/// Deliveries at once to a working webhook.
const PER_WEBHOOK: usize = 4;
const WEBHOOKS: u32 = 1000;
/// Longer than the longest try: recording it may have to wait for the database.
const HOLD_MS: Millis = 180_000;

/// How long to wait for deliveries in progress when the server stops.
const FAREWELL: Duration = Duration::from_secs(3);

/// The webhook of a try.
#[derive(Debug)]
struct Slot {
    webhook: WebhookId,
    _place: Option<Place<ProjectId>>,
}

/// Tries in progress, by their task.
#[derive(Debug, Default)]
struct Places(HashMap<Id, Slot>);

impl Places {
    /// How many more deliveries may be sent to a webhook now.
    fn room(&self, due: &WebhookDue, lane: &Shares<ProjectId>) -> usize {
        let of_webhook = if due.failures > 0 { 1 } else { PER_WEBHOOK };
        let taken = self.0.values().filter(|slot| slot.webhook == due.webhook).count();
        of_webhook.saturating_sub(taken).min(lane.room(due.project))
    }
}

/// Sends until the server stops, and then waits for tries in progress.
pub(super) async fn keep_sending(webhooks: Arc<Webhooks>) {
    let client = Client::new(None);
    let mut under_way: JoinSet<()> = JoinSet::new();
    let mut places = Places::default();
    while !webhooks.stop.is_cancelled() {
        match hand_out(&webhooks, &client, &mut under_way, &mut places).await {
            Ok(()) => {}
            Err(StoreError::Closed) => return,
            Err(error) => tracing::warn!(
                "could not send webhook deliveries, trying again: {}",
                coffer_core::chain(&error)
            ),
        }
        tokio::select! {
            () = webhooks.stop.cancelled() => {}
            () = webhooks.wake.notified() => {}
            () = tokio::time::sleep(LOOK) => {}
            Some(over) = under_way.join_next_with_id() => {
                let task = over.map_or_else(|error| error.id(), |(task, ())| task);
                places.0.remove(&task);
            }
        }
        // Remove all tries that have ended.
        while let Some(over) = under_way.try_join_next_with_id() {
            let task = over.map_or_else(|error| error.id(), |(task, ())| task);
            places.0.remove(&task);
        }
    }
    // The next server sends tries again that do not end soon.
    let over = async { while under_way.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(FAREWELL, over).await;
}

async fn hand_out(
    webhooks: &Arc<Webhooks>,
    client: &Client,
    under_way: &mut JoinSet<()>,
    places: &mut Places,
) -> Result<(), StoreError> {
    let operator = webhooks.store.operator();
    for due in webhooks.store.webhooks_due(&operator, now_ms(), WEBHOOKS).await? {
        let lane = if due.failures > 0 { &webhooks.retries } else { &webhooks.sends };
        let room = places.room(&due, lane);
        if room == 0 {
            continue;
        }
        let now = now_ms();
        let claimed = webhooks
            .store
            .claim_deliveries(&operator, due.webhook, &webhooks.holder, now, now + HOLD_MS, room)
            .await?;
        for delivery in claimed {
            // There is room: no other task takes places of this pool.
            let slot = Slot { webhook: delivery.webhook, _place: lane.try_take(delivery.project).ok() };
            let task = under_way.spawn(deliver(webhooks.clone(), client.clone(), delivery));
            places.0.insert(task.id(), slot);
        }
    }
    Ok(())
}

async fn deliver(webhooks: Arc<Webhooks>, client: Client, due: DueDelivery) {
    let began = Instant::now();
    let answered = attempt(&webhooks, &client, &due).await;
    let took = began.elapsed();
    let report = judge(&webhooks, &due, answered, took);
    let outcome = match report.outcome {
        SendOutcome::Delivered => "delivered",
        SendOutcome::Failed { next_ms: Some(_), .. } => "retried",
        SendOutcome::Failed { next_ms: None, .. } | SendOutcome::Gone => "failed",
    };
    webhooks.telemetry.metrics.webhook(outcome, took);
    if let Some(error) = &report.error {
        let (delivery, webhook) = (due.id, due.webhook);
        tracing::debug!("delivery {delivery} to webhook {webhook} failed: {error}");
    }
    settle(&webhooks, &due, report).await;
}

/// Retries until the outcome is recorded or the claim expires: then the database allows another try.
async fn settle(webhooks: &Webhooks, due: &DueDelivery, report: SendReport) {
    let operator = webhooks.store.operator();
    for pause_s in [1, 2, 5, 10, 20] {
        let settled =
            webhooks.store.settle_delivery(&operator, &webhooks.holder, due, report.clone(), now_ms()).await;
        match settled {
            Ok(true) | Err(StoreError::Closed) => return,
            Ok(false) => {
                tracing::warn!("delivery {} was taken over by another server, or requested again", due.id);
                return;
            }
            Err(error) => {
                tracing::warn!("could not record the outcome of delivery {}, trying again: {error}", due.id)
            }
        }
        tokio::time::sleep(Duration::from_secs(pause_s)).await;
    }
}

/// Why a delivery has no answer.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error("its URL {0}")]
    Target(BadTarget),
    #[error("could not read the project's secrets")]
    Secrets,
    #[error("the secret `{0}`, which signs deliveries, does not exist")]
    NoSecret(String),
    #[error("its key is sealed under a missing master key")]
    Sealed,
    #[error("the request cannot be built: {0}")]
    Request(#[from] http::Error),
    #[error(transparent)]
    Unanswered(#[from] Failure),
}

async fn attempt(webhooks: &Webhooks, client: &Client, due: &DueDelivery) -> Result<Answer, SendError> {
    let reach = webhooks.settings.reach();
    // Check again: the operator's settings may have changed since it was created.
    let target = Target::parse(&due.url, reach).map_err(SendError::Target)?;
    let secret = match &due.key {
        Some(WebhookKey::Own(secret)) => secret.clone(),
        Some(WebhookKey::Stored(name)) => {
            let values = webhooks.store.secret_values(due.project).await;
            let values = values.map_err(|_| SendError::Secrets)?;
            let value = values.get(name).and_then(|secret| secret.value.clone());
            value.ok_or_else(|| SendError::NoSecret(name.clone()))?
        }
        None => return Err(SendError::Sealed),
    };
    let (id, at) = (due.id.to_string(), now_ms() / 1000);
    let signed = sign::sign(secret.reveal(), &id, at, &due.body);
    let request = Request::post(target.address.path_and_query())
        .header(HOST, target.address.host_header())
        .header(CONTENT_TYPE, "application/json")
        .header(USER_AGENT, concat!("coffer/", env!("CARGO_PKG_VERSION")))
        .header("x-coffer-event", &due.kind)
        .header("x-coffer-delivery", &id)
        .header("x-coffer-timestamp", at)
        .header("x-coffer-signature", signed.own)
        .header("webhook-id", &id)
        .header("webhook-timestamp", at)
        .header("webhook-signature", signed.standard)
        .body(Full::new(Bytes::from(due.body.clone())))?;
    Ok(post(&target, reach, client, request, webhooks.settings.patience()).await?)
}

/// The outcome of a try, from its answer or error.
fn judge(
    webhooks: &Webhooks,
    due: &DueDelivery,
    answered: Result<Answer, SendError>,
    took: Duration,
) -> SendReport {
    let settings = &webhooks.settings;
    let patterns = webhooks.output.patterns(due.project);
    let duration_ms = i64::try_from(took.as_millis()).unwrap_or(i64::MAX);
    let (now, jitter) = (now_ms(), rand::random_range(0.0..1.0));
    let failed = |wait| SendOutcome::Failed {
        next_ms: settings.next_try(due.tries, wait, jitter, now),
        rest_until_ms: settings.rest(due.failures + 1, jitter, now),
        disable_before_ms: now.saturating_sub(settings.disable_after.as_millis()),
    };
    let answer = match answered {
        Ok(answer) => answer,
        Err(why) => {
            let error = Some(patterns.redact(&why.to_string()));
            return SendReport { status: None, response: None, error, duration_ms, outcome: failed(None) };
        }
    };
    let (outcome, error) = match answer.status {
        status if status.is_success() => (SendOutcome::Delivered, None),
        StatusCode::GONE => (SendOutcome::Gone, Some("the receiver wants no more events (410)".to_string())),
        status if status.is_redirection() => {
            (failed(None), Some(format!("it answered {status}; redirects are not followed")))
        }
        status => (failed(answer.retry_after), Some(format!("it answered {status}"))),
    };
    SendReport {
        status: Some(answer.status.as_u16()),
        response: Some(patterns.redact(&answer.body)),
        error,
        duration_ms,
        outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coffer_shares::pool;

    fn due(webhook: WebhookId, project: ProjectId, failures: i64) -> WebhookDue {
        WebhookDue { webhook, project, failures }
    }

    #[tokio::test]
    async fn those_that_fail_take_no_places_of_those_that_work() {
        let mut tasks = JoinSet::new();
        let mut places = Places::default();
        let (sends, retries) = (Shares::new(pool::WEBHOOK_SENDS), Shares::new(pool::WEBHOOK_RETRIES));
        let dead: Vec<_> =
            (0..retries.total()).map(|_| due(WebhookId::generate(), ProjectId::generate(), 3)).collect();
        for one in &dead {
            assert_eq!(places.room(one, &retries), 1);
            let task = tasks.spawn(std::future::pending::<()>());
            let slot = Slot { webhook: one.webhook, _place: retries.try_take(one.project).ok() };
            places.0.insert(task.id(), slot);
            assert_eq!(places.room(one, &retries), 0, "one at a time while it fails");
        }
        assert_eq!(places.room(&due(WebhookId::generate(), ProjectId::generate(), 1), &retries), 0);
        let (webhook, project) = (WebhookId::generate(), ProjectId::generate());
        for left in (0..PER_WEBHOOK).rev() {
            assert_eq!(places.room(&due(webhook, project, 0), &sends), left + 1);
            let task = tasks.spawn(std::future::pending::<()>());
            places.0.insert(task.id(), Slot { webhook, _place: sends.try_take(project).ok() });
        }
        assert_eq!(places.room(&due(webhook, project, 0), &sends), 0);
        assert_eq!(places.room(&due(WebhookId::generate(), project, 0), &sends), PER_WEBHOOK);
    }

    #[test]
    fn a_project_whose_webhooks_all_fail_leaves_room_for_retries_of_others() {
        let (places, retries) = (Places::default(), Shares::new(pool::WEBHOOK_RETRIES));
        let (project, other) = (ProjectId::generate(), ProjectId::generate());
        let held: Vec<_> = std::iter::from_fn(|| retries.try_take(project).ok()).collect();
        assert_eq!(held.len(), retries.share());
        assert_eq!(places.room(&due(WebhookId::generate(), project, 3), &retries), 0);
        assert_eq!(places.room(&due(WebhookId::generate(), other, 3), &retries), 1);
    }
}
