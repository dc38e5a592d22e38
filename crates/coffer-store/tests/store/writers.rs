//! Many writers at once.

use std::time::Duration;

use coffer_core::event::{Event, SecretVersion};
use coffer_core::{SandboxId, SandboxState, StateName};
use coffer_store::{Changes, ListFilter, StoreError};
use futures_util::future::join_all;

use crate::databases::{TestDatabase, on_both};
use crate::fixtures::{create, pairs, project, sandbox};

on_both! {
    async fn four_hundred_writers_at_once_all_succeed(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let writers = (0..400).map(|_| {
            let (store, mut new) = (store.clone(), sandbox());
            new.metadata = pairs([("a", "1"), ("b", "2")]);
            tokio::spawn(async move {
                let id = create(&store, &scope, new).await;
                let state = SandboxState::Running;
                store.transition(&scope, id, StateName::Creating, state, "ready", Changes::default()).await.unwrap();
            })
        });
        for written in join_all(writers).await {
            written.unwrap();
        }
        let page = store.list(&scope, &ListFilter { limit: 1000, ..ListFilter::default() }).await.unwrap();
        assert_eq!((page.rows.len(), page.total_running), (400, 400));
        let events = store.events(&scope, 0, 1000).await.unwrap();
        assert!(events.iter().map(|event| event.sequence).eq(1..=800), "numbers have no gaps");
    }

    async fn a_failed_write_takes_back_only_itself(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let taken = create(&store, &scope, sandbox()).await;
        let writers = (0..60).map(|n| {
            let (store, mut new) = (store.clone(), sandbox());
            if n % 3 == 0 {
                new.id = taken;
            }
            tokio::spawn(async move { store.insert_sandbox(&scope, new, None).await })
        });
        let (kept, failed): (Vec<_>, Vec<_>) =
            join_all(writers).await.into_iter().map(Result::unwrap).partition(Result::is_ok);
        assert_eq!((kept.len(), failed.len()), (40, 20));
        assert!(failed.iter().all(|failed| matches!(failed, Err(StoreError::Database { .. }))), "{failed:?}");
        let page = store.list(&scope, &ListFilter::default()).await.unwrap();
        assert_eq!(page.rows.len(), 41);
        let events = store.events(&scope, 0, 1000).await.unwrap();
        assert!(events.iter().map(|event| event.sequence).eq(1..=41));
    }

    async fn events_of_many_callers_are_in_order_and_without_gaps(database: &TestDatabase) {
        let store = database.open().await;
        let (left, right) = (project(&store, "left").await, project(&store, "right").await);
        let (of_left, of_right) =
            (create(&store, &left, sandbox()).await, create(&store, &right, sandbox()).await);
        let callers = (0..30).map(|caller| {
            let store = store.clone();
            tokio::spawn(async move {
                for number in 0..5 {
                    let said = SecretVersion { name: caller.to_string(), version: number };
                    let about = [of_left, of_right, SandboxId::generate()][caller % 3];
                    let said = Event::SecretReplaced(said);
                    let told = store.record_event_of(&store.operator(), about, said, 7).await;
                    assert_eq!(told.is_ok(), caller % 3 < 2, "{told:?}");
                    if caller % 3 == 0 {
                        create(&store, &right, sandbox()).await;
                    }
                }
            })
        });
        join_all(callers).await.into_iter().for_each(Result::unwrap);
        for (scope, subject, created) in [(left, of_left, 1), (right, of_right, 51)] {
            let events = store.events(&scope, 0, 1000).await.unwrap();
            assert!(events.iter().map(|event| event.sequence).eq(1..=created + 50));
            let said: Vec<_> = events.iter().filter(|event| event.kind == "secret.replaced").collect();
            assert!(said.iter().all(|event| event.subject == subject.to_string() && event.at_ms == 7));
            let mut numbers = std::collections::HashMap::<String, Vec<i64>>::new();
            for event in said {
                let Some(Event::SecretReplaced(said)) = event.event() else { panic!("{event:?}") };
                numbers.entry(said.name).or_default().push(said.version);
            }
            assert_eq!(numbers.len(), 10);
            assert!(numbers.values().all(|numbers| *numbers == [0, 1, 2, 3, 4]), "{numbers:?}");
        }
    }

    async fn a_write_is_carried_through_when_its_caller_leaves(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let new = sandbox();
        let id = new.id;
        {
            let insert = std::pin::pin!(store.insert_sandbox(&scope, new, None));
            assert!(futures_util::poll!(insert).is_pending());
        }
        tokio::time::timeout(Duration::from_secs(10), async {
            while store.sandbox(&scope, id).await.unwrap().is_none() {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("it was asked for, so it is done");
    }

    async fn a_closed_store_says_so(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        store.close().await;
        let inserted = store.insert_sandbox(&scope, sandbox(), None).await;
        assert!(matches!(inserted, Err(StoreError::Closed)), "{inserted:?}");
        let found = store.sandbox(&scope, sandbox().id).await;
        assert!(matches!(found, Err(StoreError::Closed)), "{found:?}");
    }
}

#[tokio::test]
async fn the_writer_recovers_after_another_process_held_the_database() {
    let database = TestDatabase::sqlite();
    let store = database.open().await;
    let scope = project(&store, "p").await;
    let mut holder = database.connect().await;
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut holder).await.unwrap();
    let refused = store.insert_sandbox(&scope, sandbox(), None).await;
    assert!(matches!(refused, Err(StoreError::Transient { .. })), "{refused:?}");
    sqlx::raw_sql("ROLLBACK").execute(&mut holder).await.unwrap();
    create(&store, &scope, sandbox()).await;
    assert_eq!(store.list(&scope, &ListFilter::default()).await.unwrap().rows.len(), 1);
}
