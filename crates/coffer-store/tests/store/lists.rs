//! Pages, filters and their order.

use std::collections::BTreeSet;

use coffer_core::{DestroyReason, Kept, SandboxId, SandboxState, StateName};
use coffer_store::{BadCursor, Changes, Cursor, ListFilter, NewSandbox, Order, StoreError};

use crate::databases::on_both;
use crate::fixtures::{START, create, pairs, project, running, sandbox};

fn started(at_ms: i64) -> NewSandbox {
    let mut new = sandbox();
    new.lifetime.started_ms = at_ms;
    new
}

on_both! {
    async fn pages_are_stable_while_sandboxes_come_and_go(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let mut expected = Vec::new();
        for n in 0..25 {
            // Several start in the same millisecond, so that the id must decide.
            expected.push(running(&store, &scope, started(START + n / 4)).await);
        }
        expected.sort_by_key(|row| (row.lifetime.started_ms, row.id));
        for order in [Order::OldestFirst, Order::NewestFirst] {
            let mut filter = ListFilter { limit: 4, order, ..ListFilter::default() };
            filter.states = vec![StateName::Running, StateName::Paused];
            let mut seen = Vec::new();
            loop {
                let page = store.list(&scope, &filter).await.unwrap();
                assert!(page.rows.len() <= 4);
                seen.extend(page.rows);
                // New sandboxes at both ends, and one that was already listed ends.
                let comer = match order {
                    Order::NewestFirst => running(&store, &scope, started(START + 1_000_000)).await,
                    Order::OldestFirst => running(&store, &scope, started(START - 1_000_000)).await,
                };
                let gone = SandboxState::Terminated { reason: DestroyReason::Requested };
                store
                    .transition(&scope, comer.id, StateName::Running, gone, "", Changes::default())
                    .await
                    .unwrap();
                let Some(next) = page.next else { break };
                // As a client holds it: text.
                filter.cursor = Some(next.to_string().parse().unwrap());
            }
            let mut wanted = expected.clone();
            if order == Order::NewestFirst {
                wanted.reverse();
            }
            assert_eq!(seen, wanted);
        }
    }

    async fn a_last_page_that_is_full_has_no_next(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        for n in 0..4 {
            create(&store, &scope, started(START + n)).await;
        }
        let filter = ListFilter { limit: 4, ..ListFilter::default() };
        let page = store.list(&scope, &filter).await.unwrap();
        assert_eq!((page.rows.len(), page.next), (4, None));
    }

    async fn all_pairs_of_a_metadata_filter_must_match(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        // Longer than an index entry of PostgreSQL, and with a character that its text cannot contain.
        let long = "x".repeat(10_000);
        let made = [
            pairs([("team", "red"), ("stage", "dev")]),
            pairs([("team", "red"), ("stage", "prod")]),
            pairs([("team", "blue"), ("stage", "dev"), ("long", &long)]),
            pairs([("nul\0", "\0")]),
            pairs([]),
        ];
        let mut ids = Vec::new();
        for metadata in made {
            ids.push(create(&store, &scope, NewSandbox { metadata, ..sandbox() }).await);
        }
        let listed = async |metadata| {
            let filter = ListFilter { metadata, ..ListFilter::default() };
            let page = store.list(&scope, &filter).await.unwrap();
            page.rows.into_iter().map(|row| row.id).collect::<BTreeSet<SandboxId>>()
        };
        assert_eq!(listed(pairs([("team", "red")])).await, BTreeSet::from([ids[0], ids[1]]));
        assert_eq!(listed(pairs([("team", "red"), ("stage", "dev")])).await, BTreeSet::from([ids[0]]));
        assert_eq!(listed(pairs([("long", &long)])).await, BTreeSet::from([ids[2]]));
        assert_eq!(listed(pairs([("nul\0", "\0")])).await, BTreeSet::from([ids[3]]));
        assert_eq!(listed(pairs([("team", "red"), ("long", &long)])).await, BTreeSet::new());
        assert_eq!(listed(pairs([("team", "re%")])).await, BTreeSet::new());
        assert_eq!(listed(pairs([])).await, ids.into_iter().collect());
    }

    async fn states_template_and_start_narrow_a_list(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let base = running(&store, &scope, started(START)).await;
        let aliased = running(&store, &scope, NewSandbox { alias: Some("mine".into()), ..started(START + 10) }).await;
        let node = running(&store, &scope, NewSandbox { template: "node".into(), ..started(START + 20) }).await;
        let paused = SandboxState::Paused { kept: Kept::FilesOnly };
        let node = store
            .transition(&scope, node.id, StateName::Running, paused, "asked", Changes::default())
            .await
            .unwrap();
        let listed = async |filter: ListFilter| {
            let page = store.list(&scope, &filter).await.unwrap();
            (page.rows.into_iter().map(|row| row.id).collect::<Vec<_>>(), page.total_running)
        };
        let all = ListFilter::default();
        let by_state = |states: &[StateName]| ListFilter { states: states.to_vec(), ..ListFilter::default() };
        let by_template = |name: &str| ListFilter { template: Some(name.into()), ..ListFilter::default() };
        assert_eq!(listed(all).await, (vec![node.id, aliased.id, base.id], 2));
        assert_eq!(listed(by_state(&[StateName::Paused])).await, (vec![node.id], 2));
        assert_eq!(listed(by_state(&[StateName::Running])).await, (vec![aliased.id, base.id], 2));
        assert_eq!(listed(by_state(&[StateName::Error])).await, (vec![], 2));
        assert_eq!(listed(by_template("node")).await, (vec![node.id], 0));
        assert_eq!(listed(by_template("mine")).await, (vec![aliased.id], 1));
        assert_eq!(listed(by_template("none\0such")).await, (vec![], 0));
        let after = ListFilter { started_after_ms: Some(START), ..ListFilter::default() };
        assert_eq!(listed(after).await, (vec![node.id, aliased.id], 1));
    }

    async fn a_template_is_found_in_each_column_and_each_sandbox_once(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let named = |template: &str, id: &str, alias: Option<&str>, at| NewSandbox {
            template: template.into(),
            template_id: id.into(),
            alias: alias.map(String::from),
            ..started(at)
        };
        let mut all = Vec::new();
        for (at, (template, id, alias)) in [
            ("x", "x", Some("x")),
            ("x", "y", None),
            ("y", "x", Some("z")),
            ("y", "z", Some("x")),
            ("y", "x", Some("x")),
            ("y", "y", Some("y")),
        ]
        .into_iter()
        .enumerate()
        {
            all.push(running(&store, &scope, named(template, id, alias, START + at as i64)).await.id);
        }
        let gone = SandboxState::Terminated { reason: DestroyReason::Requested };
        store.transition(&scope, all[0], StateName::Running, gone, "", Changes::default()).await.unwrap();
        for order in [Order::OldestFirst, Order::NewestFirst] {
            let mut filter =
                ListFilter { template: Some("x".into()), limit: 2, order, ..ListFilter::default() };
            let mut seen = Vec::new();
            loop {
                let page = store.list(&scope, &filter).await.unwrap();
                assert_eq!(page.total_running, 4);
                seen.extend(page.rows.into_iter().map(|row| row.id));
                filter.cursor = page.next;
                if filter.cursor.is_none() {
                    break;
                }
            }
            if order == Order::NewestFirst {
                seen.reverse();
            }
            assert_eq!(seen, all[..5]);
        }
        let ended = vec![StateName::Terminated, StateName::Error];
        let filter = ListFilter { template: Some("x".into()), states: ended, ..ListFilter::default() };
        let page = store.list(&scope, &filter).await.unwrap();
        assert_eq!(page.rows.into_iter().map(|row| row.id).collect::<Vec<_>>(), [all[0]]);
    }

    async fn a_sandbox_is_found_by_its_task_until_that_is_deleted(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let task = store.create_task(&mine, crate::tasks::new("a")).await.unwrap().id;
        let foreign = store.create_task(&theirs, crate::tasks::new("b")).await.unwrap().id;
        let first = running(&store, &mine, NewSandbox { task: Some(task), ..started(START) }).await;
        let second = create(&store, &mine, NewSandbox { task: Some(task), ..started(START + 1) }).await;
        running(&store, &mine, started(START + 2)).await;
        assert_eq!(first.task, Some(task));
        // Neither another project's task nor one that does not exist.
        for task in [foreign, coffer_core::TaskId::generate()] {
            let made = create(&store, &mine, NewSandbox { task: Some(task), ..sandbox() }).await;
            assert_eq!(store.sandbox(&mine, made).await.unwrap().unwrap().task, None);
        }
        let found = async |scope, task, states: &[StateName]| {
            let filter = ListFilter { task: Some(task), states: states.to_vec(), ..ListFilter::default() };
            let page = store.list(scope, &filter).await.unwrap();
            page.rows.into_iter().map(|row| row.id).collect::<Vec<_>>()
        };
        assert_eq!(found(&mine, task, &[]).await, [second, first.id]);
        assert_eq!(found(&mine, task, &[StateName::Running]).await, [first.id]);
        assert!(found(&theirs, task, &[]).await.is_empty());
        assert!(found(&mine, foreign, &[]).await.is_empty());
        store.delete_task(&mine, task).await.unwrap();
        assert!(found(&mine, task, &[]).await.is_empty());
        assert_eq!(store.sandbox(&mine, first.id).await.unwrap().unwrap().task, None);
    }

    async fn the_last_use_is_recorded_and_never_goes_back(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let (one, other) = (running(&store, &scope, sandbox()).await.id, create(&store, &scope, sandbox()).await);
        let last = async |id| store.sandbox(&scope, id).await.unwrap().unwrap().last_used_ms;
        assert_eq!((last(one).await, last(other).await), (None, None));
        let operator = store.operator();
        store.record_use(&operator, vec![(one, START + 5), (SandboxId::generate(), START)]).await.unwrap();
        store.record_use(&operator, vec![(one, START + 3), (other, START + 1)]).await.unwrap();
        assert_eq!((last(one).await, last(other).await), (Some(START + 5), Some(START + 1)));
        let gone = SandboxState::Terminated { reason: DestroyReason::Requested };
        let changes = Changes { last_used_ms: Some(START + 9), ..Changes::default() };
        let row = store.transition(&scope, one, StateName::Running, gone, "", changes).await.unwrap();
        assert_eq!((row.last_used_ms, last(one).await), (Some(START + 9), Some(START + 9)));
    }

    async fn a_huge_filter_is_refused(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let metadata = (0..10_000).map(|n| (n.to_string(), String::new())).collect();
        let listed = store.list(&scope, &ListFilter { metadata, ..ListFilter::default() }).await;
        assert!(matches!(listed, Err(StoreError::TooManyPairs { .. })), "{listed:?}");
    }
}

#[test]
fn only_our_own_cursors_are_read() {
    for text in ["", "_", "1_", "x_0", "1_'; DROP TABLE sandboxes", "99999999999999999999_0"] {
        assert_eq!(text.parse::<Cursor>(), Err(BadCursor), "{text}");
    }
}
