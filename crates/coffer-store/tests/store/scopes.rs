//! A project cannot see or change another's data.

use coffer_core::event::{Event, EventKind, Gap, SecretVersion};
use coffer_core::{DestroyReason, SandboxState, StateName};
use coffer_store::{ChangeError, Changes, Deadline, ListFilter};

use crate::databases::on_both;
use crate::fixtures::{START, pairs, project, running, sandbox};

on_both! {
    async fn another_project_sees_nothing(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let mut new = sandbox();
        new.metadata = pairs([("shared", "pair")]);
        let row = running(&store, &mine, new).await;

        assert_eq!(store.sandbox(&theirs, row.id).await.unwrap(), None);
        assert_eq!(store.transitions(&theirs, row.id).await.unwrap(), []);
        assert_eq!(store.events(&theirs, 0, 100).await.unwrap(), []);
        let filter = ListFilter { metadata: pairs([("shared", "pair")]), ..ListFilter::default() };
        let page = store.list(&theirs, &filter).await.unwrap();
        assert_eq!((page.rows, page.next, page.total_running), (vec![], None, 0));

        assert_eq!(store.sandbox(&mine, row.id).await.unwrap().as_ref(), Some(&row));
        assert_eq!(store.list(&mine, &filter).await.unwrap().rows, [row]);
    }

    async fn the_last_event_of_a_kind_is_its_own_projects(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let row = running(&store, &mine, sandbox()).await;
        let other = running(&store, &mine, sandbox()).await;
        let seen = |number| Event::SecretReplaced(SecretVersion { name: "seen".into(), version: number });
        for number in 1..=2 {
            store.record_event_of(&mine, row.id, seen(number), START).await.unwrap();
        }
        store.record_event_of(&mine, other.id, seen(3), START).await.unwrap();
        let last = store.last_event_of(&mine, row.id, EventKind::SecretReplaced).await.unwrap().unwrap();
        assert_eq!((last.event(), last.subject), (Some(seen(2)), row.id.to_string()));
        assert_eq!(store.last_event_of(&theirs, row.id, EventKind::SecretReplaced).await.unwrap(), None);
        assert_eq!(store.last_event_of(&mine, row.id, EventKind::SecretDeleted).await.unwrap(), None);
    }

    async fn another_project_changes_nothing(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let row = running(&store, &mine, sandbox()).await;

        let gone = SandboxState::Terminated { reason: DestroyReason::Requested };
        let destroyed =
            store.transition(&theirs, row.id, StateName::Running, gone, "mischief", Changes::default()).await;
        let refusals = [
            destroyed.map(drop),
            store.set_deadline(&theirs, row.id, Deadline::Exactly(START)).await.map(drop),
            store.set_timeout(&theirs, row.id, 1, Deadline::Exactly(START)).await.map(drop),
            store.set_network(&theirs, row.id, Default::default(), Some(false)).await,
            store.record_event_of(&theirs, row.id, Event::Gap(Gap { after: 0, until: 0 }), START).await,
        ];
        for refusal in refusals {
            // Not even that it exists.
            assert!(matches!(refusal, Err(ChangeError::NotFound)), "{refusal:?}");
        }
        assert_eq!(store.sandbox(&mine, row.id).await.unwrap(), Some(row));
    }

    async fn another_project_cannot_list_or_revoke_keys(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let [key] = store.keys(&mine).await.unwrap().try_into().unwrap();
        assert!(!store.revoke_key(&theirs, key.id).await.unwrap());
        assert_eq!(store.keys(&mine).await.unwrap()[0].revoked_ms, None);
        assert_eq!(store.keys(&store.operator()).await.unwrap().len(), 2);
    }

    async fn an_operator_sees_every_project(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let one = running(&store, &mine, sandbox()).await;
        let other = running(&store, &theirs, sandbox()).await;
        let operator = store.operator();
        assert_eq!(store.sandbox(&operator, one.id).await.unwrap().as_ref(), Some(&one));
        let gone = SandboxState::Terminated { reason: DestroyReason::Idle };
        let ended = store
            .transition(&operator, one.id, StateName::Running, gone, "idle", Changes::default())
            .await
            .unwrap();
        assert_eq!(ended.project, mine.project());
        assert_eq!(store.live_ids(&operator).await.unwrap(), [other.id]);
        assert_eq!(store.live_sandboxes(&operator).await.unwrap(), [other]);
    }
}
