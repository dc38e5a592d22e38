//! Agents: names, keys, and ownership.

use coffer_core::{AgentId, Role};
use coffer_store::{ListFilter, NameError, NewKey, NewSandbox, ProjectScope, Store};

use crate::databases::on_both;
use crate::fixtures::{comes_in, project, running, sandbox};

async fn scope_of(store: &Store, project: &ProjectScope, agent: AgentId) -> ProjectScope {
    let key = NewKey { role: Role::Write, agent: Some(agent), ..NewKey::from("agent") };
    let key = store.create_key(&store.operator(), project.project(), key).await.unwrap();
    comes_in(store, key.reveal()).await.scope
}

on_both! {
    async fn an_agent_sees_its_own_sandboxes_alone(database: &TestDatabase) {
        let store = database.open().await;
        let mine = project(&store, "mine").await;
        let (one, other) =
            (store.create_agent(&mine, "one").await.unwrap(), store.create_agent(&mine, "other").await.unwrap());
        let (ones, others) = (scope_of(&store, &mine, one.id).await, scope_of(&store, &mine, other.id).await);
        let row = running(&store, &mine, NewSandbox { agent: Some(one.id), ..sandbox() }).await;
        let nobodys = running(&store, &mine, sandbox()).await;

        assert_eq!(store.sandbox(&ones, row.id).await.unwrap().as_ref(), Some(&row));
        assert_eq!(store.transitions(&ones, row.id).await.unwrap().len(), 2);
        let subjects = store.events(&ones, 0, 100).await.unwrap();
        assert!(subjects.len() == 2 && subjects.iter().all(|event| event.subject == row.id.to_string()));
        assert_eq!(store.list(&ones, &ListFilter::default()).await.unwrap().rows, std::slice::from_ref(&row));
        for (scope, id) in [(&others, row.id), (&others, nobodys.id), (&ones, nobodys.id)] {
            assert_eq!(store.sandbox(scope, id).await.unwrap(), None);
            assert_eq!(store.transitions(scope, id).await.unwrap(), []);
            assert!(store.set_network(scope, id, Default::default(), None).await.is_err());
        }
        let page = store.list(&others, &ListFilter::default()).await.unwrap();
        assert_eq!((page.rows, page.total_running), (vec![], 0));
        // The project sees them all, and those of one.
        assert_eq!(store.list(&mine, &ListFilter::default()).await.unwrap().rows.len(), 2);
        let of_one = ListFilter { agent: Some(one.id), ..ListFilter::default() };
        assert_eq!(store.list(&mine, &of_one).await.unwrap().rows, [row]);
        assert_eq!(store.list(&others, &of_one).await.unwrap().rows, []);
        assert_eq!(store.agents(&others, None, 10).await.unwrap(), [other]);
    }

    async fn a_removed_agent_cannot_come_in_and_frees_its_name(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let agent = store.create_agent(&mine, "one").await.unwrap();
        assert!(matches!(store.create_agent(&mine, "one").await, Err(NameError::Taken)));
        store.create_agent(&theirs, "one").await.unwrap();
        let key = NewKey { agent: Some(agent.id), ..NewKey::from("agent") };
        let key = store.create_key(&store.operator(), mine.project(), key).await.unwrap();
        comes_in(&store, key.reveal()).await;

        assert_eq!(store.agent(&theirs, agent.id).await.unwrap(), None);
        assert!(!store.remove_agent(&theirs, agent.id).await.unwrap());
        comes_in(&store, key.reveal()).await;
        assert!(store.remove_agent(&mine, agent.id).await.unwrap());
        assert!(!store.remove_agent(&mine, agent.id).await.unwrap());
        assert_eq!(store.authenticate(key.reveal()).await.unwrap(), None, "at once");
        assert_eq!(store.agents(&mine, None, 10).await.unwrap(), []);
        let next = store.create_agent(&mine, "one").await.unwrap();
        assert_ne!(next.id, agent.id);
    }
}
