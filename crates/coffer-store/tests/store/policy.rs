//! Command policies, and idempotency keys of executions.

use coffer_core::ExecutionId;
use coffer_core::command::{CommandPolicy, Effect, Rule};
use coffer_store::{Idempotency, TakenKey, VersionedPolicy};

use crate::databases::on_both;
use crate::fixtures::{create, project, sandbox};

fn policy(pattern: &str) -> CommandPolicy {
    let rule = Rule { effect: Effect::Deny, pattern: pattern.parse().unwrap(), note: Some("é".into()) };
    CommandPolicy { default: Effect::Allow, rules: vec![rule] }
}

on_both! {
    async fn a_policy_is_its_projects_and_changes_by_version(database: &TestDatabase) {
        let store = database.open().await;
        let operator = store.operator();
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        assert_eq!(store.command_policy(&mine).await.unwrap(), VersionedPolicy::default());
        assert_eq!(store.command_policies_version(&operator).await.unwrap(), 0);

        let first = store.set_command_policy(&mine, Some(0), policy("rm")).await.unwrap().unwrap();
        assert_eq!((first.version, &first.policy), (1, &policy("rm")));
        assert_eq!(store.set_command_policy(&mine, Some(0), policy("no")).await.unwrap(), None);
        let second = store.set_command_policy(&mine, None, policy("mv")).await.unwrap().unwrap();
        assert_eq!(store.command_policy(&mine).await.unwrap(), second);
        assert_eq!(store.command_policy(&theirs).await.unwrap(), VersionedPolicy::default());
        assert_eq!(store.command_policies_version(&operator).await.unwrap(), 2);
        let all = store.command_policies(&operator).await.unwrap();
        assert_eq!(all.into_iter().collect::<Vec<_>>(), [(mine.project(), second)]);

        let told = store.events(&mine, 0, 10).await.unwrap();
        let kinds: Vec<_> = told.iter().map(|event| (&*event.kind, event.payload["version"].as_i64())).collect();
        assert_eq!(kinds, [("policy.changed", Some(1)), ("policy.changed", Some(2))]);
        assert!(store.events(&theirs, 0, 10).await.unwrap().is_empty());
    }

    async fn of_those_who_set_the_first_policy_at_once_one_wins(database: &TestDatabase) {
        let store = database.open().await;
        let mine = project(&store, "mine").await;
        let set = |pattern: &'static str| {
            let store = store.clone();
            async move { store.set_command_policy(&mine, Some(0), policy(pattern)).await.unwrap() }
        };
        let (one, two) = tokio::join!(set("a"), set("b"));
        assert_eq!(one.is_some() as u8 + two.is_some() as u8, 1);
    }

    async fn a_key_starts_one_execution(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let place = create(&store, &mine, sandbox()).await;
        let other_place = create(&store, &mine, sandbox()).await;
        let foreign = create(&store, &theirs, sandbox()).await;
        let key = |fingerprint| Idempotency { key: "k", fingerprint };
        let first = ExecutionId::generate();
        let take = async |scope, place, fingerprint, execution| {
            store.take_execution_key(scope, place, key(fingerprint), execution).await.unwrap()
        };
        let another = ExecutionId::generate;
        assert_eq!(take(&mine, place, "f", first).await, TakenKey::New);
        assert_eq!(take(&mine, place, "f", another()).await, TakenKey::Earlier(first));
        assert_eq!(take(&mine, place, "g", another()).await, TakenKey::UsedDifferently);
        assert_eq!(take(&mine, other_place, "f", another()).await, TakenKey::UsedDifferently);
        assert_eq!(take(&theirs, foreign, "f", another()).await, TakenKey::New);
        // Only the execution that took it releases it.
        store.release_execution_key(&mine, "k", another()).await.unwrap();
        assert_eq!(take(&mine, place, "f", another()).await, TakenKey::Earlier(first));
        store.release_execution_key(&mine, "k", first).await.unwrap();
        assert_eq!(take(&mine, other_place, "g", another()).await, TakenKey::New);
    }
}
