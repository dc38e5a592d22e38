//! The same request twice creates one sandbox.

use coffer_core::{Fault, SandboxState, StateName};
use coffer_store::{Changes, Idempotency, Inserted, ListFilter};
use futures_util::future::join_all;

use crate::databases::on_both;
use crate::fixtures::{project, sandbox};

const KEY: Option<Idempotency<'static>> = Some(Idempotency { key: "retry-1", fingerprint: "abc" });

on_both! {
    async fn of_equal_requests_at_once_one_makes_the_sandbox(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let requests = (0..40).map(|_| {
            let (store, new) = (store.clone(), sandbox());
            tokio::spawn(async move { (new.id, store.insert_sandbox(&scope, new, KEY).await.unwrap()) })
        });
        let answers: Vec<_> = join_all(requests).await.into_iter().map(Result::unwrap).collect();
        let made: Vec<_> = answers.iter().filter(|(_, inserted)| *inserted == Inserted::New).collect();
        let [(made, _)] = made.as_slice() else { panic!("{} were made", made.len()) };
        for (_, inserted) in &answers {
            match inserted {
                Inserted::New => {}
                Inserted::Existing(row) => assert_eq!(row.id, *made),
                Inserted::KeyReusedDifferently => panic!("all asked for the same"),
                Inserted::OverQuota(over) => panic!("{over}"),
                Inserted::VolumeGone => panic!("none was asked for"),
            }
        }
        assert_eq!(store.list(&scope, &ListFilter::default()).await.unwrap().rows.len(), 1);
        assert_eq!(store.events(&scope, 0, 100).await.unwrap().len(), 1);
    }

    async fn a_key_serves_one_request_of_one_project(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        assert_eq!(store.insert_sandbox(&mine, sandbox(), KEY).await.unwrap(), Inserted::New);
        let other = Some(Idempotency { key: "retry-1", fingerprint: "something else" });
        let reused = store.insert_sandbox(&mine, sandbox(), other).await.unwrap();
        assert_eq!(reused, Inserted::KeyReusedDifferently);
        assert_eq!(store.insert_sandbox(&theirs, sandbox(), other).await.unwrap(), Inserted::New);
        assert_eq!(store.list(&mine, &ListFilter::default()).await.unwrap().rows.len(), 1);
    }

    async fn an_expired_key_is_free_again(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let (first, second) = (sandbox(), sandbox());
        let second_id = second.id;
        assert_eq!(store.insert_sandbox(&scope, first, KEY).await.unwrap(), Inserted::New);
        let mut connection = database.connect().await;
        sqlx::query("UPDATE idempotency_keys SET expires_ms = 1").execute(&mut connection).await.unwrap();
        assert_eq!(store.insert_sandbox(&scope, second, KEY).await.unwrap(), Inserted::New);
        let third = store.insert_sandbox(&scope, sandbox(), KEY).await.unwrap();
        assert!(matches!(&third, Inserted::Existing(row) if row.id == second_id), "{third:?}");
    }

    async fn a_create_that_failed_gives_its_key_back(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let first = sandbox();
        let id = first.id;
        store.insert_sandbox(&scope, first, KEY).await.unwrap();
        let fault = SandboxState::Error { fault: Fault::CreateFailed { message: "no room".into() } };
        store.transition(&scope, id, StateName::Creating, fault, "no room", Changes::default()).await.unwrap();
        assert_eq!(store.insert_sandbox(&scope, sandbox(), KEY).await.unwrap(), Inserted::New);
    }
}
