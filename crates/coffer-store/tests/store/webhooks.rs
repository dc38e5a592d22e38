//! Webhooks: every event once, on any number of servers, and claimed deliveries.

use coffer_store::{
    DeliveryState, DueDelivery, NewDelivery, NewTask, NewWebhook, ProjectScope, Redelivery, Secret,
    SendOutcome, SendReport, Store, WebhookChange, WebhookKey, WebhookRecordError, WebhookRow,
};
use serde_json::json;

use crate::databases::on_both;
use crate::fixtures::{project, running, sandbox};

fn new(events: &[&str]) -> NewWebhook {
    NewWebhook {
        url: "https://example.com/hook?token=t".into(),
        events: events.iter().map(ToString::to_string).collect(),
        context_id: None,
        description: String::new(),
        key: WebhookKey::Own(Secret::from("whsec_abc".to_string())),
        enabled: true,
    }
}

async fn made(store: &Store, scope: &ProjectScope) -> WebhookRow {
    store.create_webhook(scope, new(&["*"])).await.unwrap()
}

fn delivery(event: i64) -> NewDelivery {
    NewDelivery { event, kind: "a.b".into(), body: format!("{{\"sequence\":{event}}}") }
}

/// Far beyond any `next_ms` that a test sets.
const LATER: i64 = 9_000_000_000_000;

fn report(outcome: SendOutcome) -> SendReport {
    let error = (outcome != SendOutcome::Delivered).then(|| "no\0".to_string());
    SendReport { status: Some(200), response: Some("ok\0".into()), error, duration_ms: 3, outcome }
}

async fn claim(store: &Store, webhook: &WebhookRow, holder: &str, now: i64) -> Vec<DueDelivery> {
    let operator = store.operator();
    store.claim_deliveries(&operator, webhook.id, holder, now, now + 1000, 10).await.unwrap()
}

on_both! {
    async fn an_event_is_queued_once_whoever_looks(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, operator) = (project(&store, "mine").await, store.operator());
        running(&store, &mine, sandbox()).await;
        let webhook = made(&store, &mine).await;
        assert_eq!(webhook.position, 2, "what was before is not told");
        // Its own creation is an event like any other.
        let behind = store.webhooks_behind(&operator, 10, 10).await.unwrap();
        assert_eq!((behind.len(), behind[0].newest, &behind[0].webhook), (1, 3, &webhook));
        let queue = async |row: &WebhookRow, to, events: &[i64]| {
            let new = events.iter().copied().map(delivery).collect();
            store.queue_deliveries(&operator, row, to, new, 0).await.unwrap()
        };
        let (one, two) = tokio::join!(queue(&webhook, 3, &[3]), queue(&webhook, 3, &[3]));
        assert!(one != two, "of two servers one moves it on");
        assert!(store.webhooks_behind(&operator, 10, 10).await.unwrap().is_empty());
        let now = store.webhook(&mine, webhook.id).await.unwrap().unwrap();
        assert_eq!((now.position, now.waiting), (3, 1));

        // A webhook that was changed meanwhile is read again.
        let change = WebhookChange { events: Some(vec!["x".into()]), ..WebhookChange::default() };
        // The clock may not have moved since.
        tokio::time::sleep(std::time::Duration::from_millis(3)).await;
        let changed = store.change_webhook(&mine, webhook.id, change).await.unwrap();
        assert!(!queue(&now, 4, &[4]).await);
        // A webhook with enough deliveries gets no more for now: the log keeps the rest.
        assert!(store.webhooks_behind(&operator, 1, 10).await.unwrap().is_empty());
        assert_eq!(store.webhooks_behind(&operator, 2, 10).await.unwrap().len(), 1);
        assert!(queue(&changed, 4, &[]).await);

        let events = store.events(&mine, 2, 10).await.unwrap();
        let kinds: Vec<_> = events.iter().map(|event| event.kind.as_str()).collect();
        assert_eq!(kinds, ["webhook.created", "webhook.changed"]);
        assert!(!events[0].payload.to_string().contains("token"), "{:?}", events[0]);
        assert_eq!(events[0].payload["host"], json!("example.com"));
    }

    async fn a_delivery_is_one_servers_at_a_time(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, operator) = (project(&store, "mine").await, store.operator());
        let webhook = made(&store, &mine).await;
        store.queue_deliveries(&operator, &webhook, 9, (1..=3).map(delivery).collect(), 100).await.unwrap();
        assert!(store.webhooks_due(&operator, 99, 10).await.unwrap().is_empty(), "not yet");
        assert_eq!(store.webhooks_due(&operator, 100, 10).await.unwrap().len(), 1);
        let (one, two) = tokio::join!(claim(&store, &webhook, "a", 100), claim(&store, &webhook, "b", 100));
        assert_eq!(one.len() + two.len(), 3, "{one:?} {two:?}");
        assert!(claim(&store, &webhook, "c", 100).await.is_empty());
        let mut all: Vec<_> = one.iter().chain(&two).map(|due| (due.id, due.tries)).collect();
        all.sort();
        all.dedup_by_key(|due| due.0);
        assert_eq!(all.len(), 3);
        let key = one.iter().chain(&two).next().unwrap().key.clone();
        assert!(matches!(key, Some(WebhookKey::Own(key)) if key.reveal() == "whsec_abc"));

        // After a claim has expired, another server has it, and the first one's result changes nothing.
        let again = claim(&store, &webhook, "c", 1100).await;
        assert_eq!(again.len(), 3);
        assert!(again.iter().all(|due| due.tries == 2));
        let (first, holder) = match one.first() {
            Some(first) => (first, "a"),
            None => (&two[0], "b"),
        };
        let late = store.settle_delivery(&operator, holder, first, report(SendOutcome::Delivered), 1200).await;
        assert!(!late.unwrap());
        for due in &again {
            let settled =
                store.settle_delivery(&operator, "c", due, report(SendOutcome::Delivered), 1200).await;
            assert!(settled.unwrap());
        }
        let log = store.deliveries(&mine, webhook.id, None, None, 10).await.unwrap();
        assert!(log.iter().all(|row| row.state == DeliveryState::Delivered && row.ended_ms == Some(1200)));
        assert_eq!(log[0].response.as_deref(), Some("ok\u{fffd}"));
        let row = store.webhook(&mine, webhook.id).await.unwrap().unwrap();
        assert_eq!((row.waiting, row.succeeded_ms), (0, Some(1200)));
        assert_eq!(store.prune_deliveries(&operator, mine.project(), 1200, 10).await.unwrap(), 0);
        assert_eq!(store.prune_deliveries(&operator, mine.project(), 1201, 2).await.unwrap(), 2);
        assert_eq!(store.deliveries(&mine, webhook.id, None, None, 10).await.unwrap().len(), 1);
    }

    async fn a_server_that_starts_again_takes_up_its_own(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, operator) = (project(&store, "mine").await, store.operator());
        let webhook = made(&store, &mine).await;
        store.queue_deliveries(&operator, &webhook, 9, vec![delivery(1), delivery(2)], 0).await.unwrap();
        let claimed = store.claim_deliveries(&operator, webhook.id, "a", 5, LATER, 1).await.unwrap();
        let other = store.claim_deliveries(&operator, webhook.id, "b", 5, LATER, 1).await.unwrap();
        assert_eq!((claimed.len(), other.len()), (1, 1));
        assert_eq!(store.free_deliveries(&operator, "a").await.unwrap(), 1);
        let again = claim(&store, &webhook, "a", 6).await;
        assert_eq!((again.len(), again[0].id, again[0].tries), (1, claimed[0].id, 2));
    }

    async fn failures_rest_a_webhook_and_disable_it_in_the_end(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, operator) = (project(&store, "mine").await, store.operator());
        let webhook = made(&store, &mine).await;
        let start = webhook.created_ms;
        let hour = start + 3_600_000;
        store.queue_deliveries(&operator, &webhook, 9, (1..=3).map(delivery).collect(), start).await.unwrap();
        let fail = |next_ms, disable_before_ms| {
            report(SendOutcome::Failed { next_ms, rest_until_ms: hour, disable_before_ms })
        };
        let due = store.claim_deliveries(&operator, webhook.id, "a", start, LATER, 1).await.unwrap();
        assert!(store.settle_delivery(&operator, "a", &due[0], fail(Some(start), 0), start).await.unwrap());
        // A failing webhook pauses with all its deliveries; those requested by hand are sent.
        assert!(store.webhooks_due(&operator, hour - 1, 10).await.unwrap().is_empty());
        let test = store.queue_test(&mine, webhook.id, "webhook.ping", "{}".into()).await.unwrap().unwrap();
        let due = claim(&store, &webhook, "a", test.created_ms).await;
        assert_eq!(due.iter().map(|due| due.id).collect::<Vec<_>>(), [test.id]);
        assert_eq!(due[0].failures, 1);
        let row = store.webhook(&mine, webhook.id).await.unwrap().unwrap();
        assert_eq!((row.failures, row.failing_since_ms, row.enabled), (1, Some(start), true));

        // On the third day it is disabled, with an event.
        let last = store.claim_deliveries(&operator, webhook.id, "b", hour, LATER, 1).await.unwrap();
        assert!(store.settle_delivery(&operator, "b", &last[0], fail(None, start + 1), hour).await.unwrap());
        let row = store.webhook(&mine, webhook.id).await.unwrap().unwrap();
        assert_eq!((row.enabled, row.disabled_reason.as_deref()), (false, Some("failing")));
        let failed = Some(DeliveryState::Failed);
        let log = store.deliveries(&mine, webhook.id, failed, None, 10).await.unwrap();
        assert_eq!(log.len(), 3, "those that waited too");
        let events = store.events(&mine, 0, 100).await.unwrap();
        let told = events.iter().find(|event| event.kind == "webhook.disabled").unwrap();
        assert_eq!(told.payload, json!({ "reason": "failing" }));
        let load = store.webhook_load(&operator).await.unwrap();
        assert_eq!((load.waiting, load.disabled, load.failing), (1, 1, 0));

        // A delivery requested by hand is sent although it is disabled.
        let Redelivery::Queued(row) = store.redeliver(&mine, webhook.id, log[0].id).await.unwrap() else {
            panic!("it is not under way")
        };
        assert_eq!((row.state, row.tries, row.ended_ms), (DeliveryState::Waiting, 0, None));
        assert_eq!(claim(&store, &webhook, "a", LATER).await.len(), 2);
        assert_eq!(store.redeliver(&mine, webhook.id, log[0].id).await.unwrap(), Redelivery::UnderWay);

        // When it is enabled again, it begins with new events.
        let change = WebhookChange { enabled: Some(true), ..WebhookChange::default() };
        let row = store.change_webhook(&mine, webhook.id, change).await.unwrap();
        let newest = store.newest_event(&mine).await.unwrap();
        assert_eq!((row.position, row.failures, row.disabled_reason), (newest - 1, 0, None));
        assert_eq!((row.failing_since_ms, row.enabled), (None, true));
    }

    async fn a_receiver_that_is_gone_is_sent_nothing_more(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, operator) = (project(&store, "mine").await, store.operator());
        let webhook = made(&store, &mine).await;
        store.queue_deliveries(&operator, &webhook, 9, vec![delivery(1), delivery(2)], 0).await.unwrap();
        let due = store.claim_deliveries(&operator, webhook.id, "a", 1, 9, 1).await.unwrap();
        assert!(store.settle_delivery(&operator, "a", &due[0], report(SendOutcome::Gone), 2).await.unwrap());
        let row = store.webhook(&mine, webhook.id).await.unwrap().unwrap();
        assert_eq!((row.enabled, row.disabled_reason.as_deref(), row.waiting), (false, Some("gone"), 0));
        assert!(store.webhooks_behind(&operator, 10, 10).await.unwrap().is_empty());
        // Its server may have died meanwhile; deleting everything includes deliveries in progress.
        assert!(store.remove_webhook(&mine, webhook.id).await.unwrap());
        assert!(!store.settle_delivery(&operator, "a", &due[0], report(SendOutcome::Gone), 2).await.unwrap());
    }

    async fn webhooks_are_their_projects_alone_and_not_too_many(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let operator = store.operator();
        let webhook = made(&store, &mine).await;
        store.queue_deliveries(&operator, &webhook, 9, vec![delivery(1)], 0).await.unwrap();
        let sent = store.deliveries(&mine, webhook.id, None, None, 10).await.unwrap()[0].id;
        assert_eq!(store.webhook(&theirs, webhook.id).await.unwrap(), None);
        assert!(store.webhooks(&theirs, None, 10).await.unwrap().is_empty());
        assert!(store.deliveries(&theirs, webhook.id, None, None, 10).await.unwrap().is_empty());
        assert_eq!(store.delivery(&theirs, webhook.id, sent).await.unwrap(), None);
        assert_eq!(store.redeliver(&theirs, webhook.id, sent).await.unwrap(), Redelivery::NotFound);
        assert_eq!(store.queue_test(&theirs, webhook.id, "t", "{}".into()).await.unwrap(), None);
        let change = store.change_webhook(&theirs, webhook.id, WebhookChange::default()).await;
        assert!(matches!(change, Err(WebhookRecordError::NotFound)));
        assert!(!store.remove_webhook(&theirs, webhook.id).await.unwrap());

        for _ in 1..coffer_store::MOST_WEBHOOKS {
            made(&store, &mine).await;
        }
        let one_more = store.create_webhook(&mine, new(&["*"])).await;
        assert!(matches!(one_more, Err(WebhookRecordError::TooMany)), "{one_more:?}");
        made(&store, &theirs).await;
        let first = store.webhooks(&mine, None, 2).await.unwrap();
        assert_eq!(first[0].id, webhook.id);
        let rest = store.webhooks(&mine, Some(first[1].id), 100).await.unwrap();
        assert_eq!(rest.len(), 48);
    }

    async fn what_was_removed_is_gone_at_once_and_cleared_bit_by_bit(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, operator) = (project(&store, "mine").await, store.operator());
        let (webhook, other) = (made(&store, &mine).await, made(&store, &mine).await);
        for of in [&webhook, &other] {
            store.queue_deliveries(&operator, of, 9, (1..=5).map(delivery).collect(), 0).await.unwrap();
        }
        let held = store.claim_deliveries(&operator, webhook.id, "a", 5, LATER, 1).await.unwrap();
        let id = store.deliveries(&mine, webhook.id, None, None, 1).await.unwrap()[0].id;
        assert!(store.remove_webhook(&mine, webhook.id).await.unwrap());
        assert!(!store.remove_webhook(&mine, webhook.id).await.unwrap());

        assert_eq!(store.webhook(&mine, webhook.id).await.unwrap(), None);
        assert_eq!(store.webhooks(&mine, None, 10).await.unwrap().len(), 1);
        let enable = WebhookChange { enabled: Some(true), ..WebhookChange::default() };
        let changed = store.change_webhook(&mine, webhook.id, enable).await;
        assert!(matches!(changed, Err(WebhookRecordError::NotFound)), "{changed:?}");
        assert!(store.deliveries(&mine, webhook.id, None, None, 10).await.unwrap().is_empty());
        assert_eq!(store.delivery(&mine, webhook.id, id).await.unwrap(), None);
        assert_eq!(store.redeliver(&mine, webhook.id, id).await.unwrap(), Redelivery::NotFound);
        assert_eq!(store.queue_test(&mine, webhook.id, "webhook.ping", "{}".into()).await.unwrap(), None);
        assert!(claim(&store, &webhook, "b", 100).await.is_empty());
        let due = store.webhooks_due(&operator, 100, 10).await.unwrap();
        assert_eq!(due.iter().map(|due| due.webhook).collect::<Vec<_>>(), [other.id]);
        assert_eq!(store.webhook_load(&operator).await.unwrap().waiting, 5);

        assert_eq!(store.clear_removed_webhooks(&operator, 3).await.unwrap(), 3);
        // A try in progress may end before the rest is deleted, or after.
        for due in &held {
            store.settle_delivery(&operator, "a", due, report(SendOutcome::Gone), 200).await.unwrap();
        }
        assert_eq!(store.clear_removed_webhooks(&operator, 3).await.unwrap(), 2);
        assert_eq!(store.clear_removed_webhooks(&operator, 3).await.unwrap(), 0);
        assert_eq!(store.deliveries(&mine, other.id, None, None, 10).await.unwrap().len(), 5);
        let events = store.events(&mine, 0, 100).await.unwrap();
        let told = |kind: &str| events.iter().filter(|event| event.kind == kind).count();
        assert_eq!((told("webhook.removed"), told("webhook.disabled")), (1, 0));
    }

    async fn a_context_is_that_of_its_tasks(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let task =
            |context: &str| NewTask { context_id: Some(context.into()), ..crate::tasks::new("t") };
        let (ours, other) = (
            store.create_task(&mine, task("h-1")).await.unwrap().id.to_string(),
            store.create_task(&mine, task("h-2")).await.unwrap().id.to_string(),
        );
        let foreign = store.create_task(&theirs, task("h-1")).await.unwrap().id.to_string();
        let mut asked: Vec<String> = (0..250).map(|n| format!("no-{n}")).collect();
        asked.extend([ours.clone(), other, foreign]);
        let operator = store.operator();
        let found = store.subjects_of_context(&operator, mine.project(), "h-1", &asked).await.unwrap();
        assert_eq!(found, [ours]);
    }
}
