//! Snapshots, forks and lineages.

use coffer_core::{DestroyReason, Limits, SandboxId, SandboxState, SnapshotId, StateName};
use coffer_store::{
    Changes, FinishedSnapshot, Idempotency, Inserted, InsertedSnapshot, NewSandbox, NewSnapshot, Origin,
    ProjectScope, Quota, Quotas, SnapshotFacts, SnapshotFilter, SnapshotRow, SnapshotState, Store,
};
use futures_util::future::join_all;

use crate::databases::on_both;
use crate::fixtures::{comes_in, project, running, sandbox};

const MIB: u64 = 1 << 20;

fn snapshot(of: SandboxId, name: Option<&str>) -> NewSnapshot {
    NewSnapshot {
        id: SnapshotId::generate(),
        sandbox: of,
        agent: None,
        name: name.map(String::from),
        tag: "default".into(),
        memory: true,
        template: "base".into(),
        limits: Limits::default(),
        secrets: [("TOKEN".to_string(), "github".to_string())].into(),
        purpose: coffer_core::SnapshotPurpose::Use,
        created_by: Some("key".into()),
    }
}

fn sized(files_mib: u64) -> SnapshotFacts {
    SnapshotFacts { files_bytes: files_mib * MIB, ..SnapshotFacts::default() }
}

async fn insert(store: &Store, scope: &ProjectScope, new: NewSnapshot) -> SnapshotId {
    let id = new.id;
    assert_eq!(store.insert_snapshot(scope, new, None).await.unwrap(), InsertedSnapshot::New);
    id
}

async fn finish(store: &Store, id: SnapshotId, facts: SnapshotFacts) -> SnapshotRow {
    match store.finish_snapshot(&store.operator(), id, facts).await.unwrap() {
        FinishedSnapshot::Ready(row) => *row,
        other => panic!("{other:?}"),
    }
}

async fn ready(store: &Store, scope: &ProjectScope, new: NewSnapshot) -> SnapshotRow {
    let id = insert(store, scope, new).await;
    finish(store, id, sized(1)).await
}

async fn kinds(store: &Store, scope: &ProjectScope) -> Vec<String> {
    let events = store.events(scope, 0, 1000).await.unwrap();
    events.into_iter().map(|event| event.kind).filter(|kind| kind.starts_with("snapshot.")).collect()
}

fn fork(parent: SandboxId, position: i64) -> NewSandbox {
    let origin = Origin { parent, snapshot: SnapshotId::generate(), fork_position: Some(position) };
    NewSandbox { origin: Some(origin), ..sandbox() }
}

on_both! {
    async fn a_snapshot_is_made_found_and_deleted(database: &TestDatabase) {
        let store = database.open().await;
        let (scope, other) = (project(&store, "p").await, project(&store, "q").await);
        let operator = store.operator();
        let source = running(&store, &scope, sandbox()).await.id;
        let id = insert(&store, &scope, snapshot(source, None)).await;
        let unfinished = store.unfinished_snapshots(&operator).await.unwrap();
        assert_eq!(unfinished.iter().map(|row| (row.id, row.state)).collect::<Vec<_>>(), [(id, SnapshotState::Creating)]);
        let usable = SnapshotFilter { usable_only: true, limit: 10, ..SnapshotFilter::default() };
        assert_eq!(store.snapshots(&scope, &usable).await.unwrap(), [], "it is not made yet");

        let facts = SnapshotFacts {
            memory: false, note: Some("no CRIU\0".into()), files_bytes: 5, memory_bytes: 7, paused_us: 9,
        };
        let row = finish(&store, id, facts).await;
        assert_eq!((row.state, row.memory, row.note.as_deref()), (SnapshotState::Ready, false, Some("no CRIU\u{fffd}")));
        assert_eq!((row.files_bytes, row.memory_bytes, row.paused_us), (5, 7, 9));
        assert_eq!((row.sandbox, row.is_current, row.limits), (source, false, Limits::default()));
        assert_eq!(row.secrets, snapshot(source, None).secrets);
        assert_eq!(store.snapshot(&scope, id).await.unwrap().as_ref(), Some(&row));
        assert_eq!(store.snapshots(&scope, &usable).await.unwrap(), std::slice::from_ref(&row));
        assert_eq!(store.finish_snapshot(&operator, id, sized(1)).await.unwrap(), FinishedSnapshot::Gone);

        // Another project can neither see nor delete it.
        assert_eq!(store.snapshot(&other, id).await.unwrap(), None);
        assert_eq!(store.snapshots(&other, &usable).await.unwrap(), []);
        assert_eq!(store.begin_snapshot_deletion(&other, id).await.unwrap(), None);

        // It outlives the sandbox.
        let over = SandboxState::Terminated { reason: DestroyReason::Requested };
        store.transition(&operator, source, StateName::Running, over, "t", Changes::default()).await.unwrap();
        let deleting = store.begin_snapshot_deletion(&scope, id).await.unwrap().unwrap();
        assert_eq!(deleting.state, SnapshotState::Deleting);
        assert_eq!(store.snapshots(&scope, &usable).await.unwrap(), []);
        let stranger = SnapshotId::generate();
        let known = store.known_snapshots(&operator, &[stranger, id]).await.unwrap();
        assert_eq!(known.into_iter().collect::<Vec<_>>(), [id]);
        assert!(store.remove_snapshot(&operator, id, "asked for").await.unwrap());
        assert!(!store.remove_snapshot(&operator, id, "asked for").await.unwrap());
        assert_eq!(
            kinds(&store, &scope).await,
            ["snapshot.creating", "snapshot.ready", "snapshot.deleting", "snapshot.deleted"]
        );
        let failed = insert(&store, &scope, snapshot(source, None)).await;
        assert!(store.remove_snapshot(&operator, failed, "the host failed").await.unwrap());
        assert_eq!(kinds(&store, &scope).await.last().unwrap(), "snapshot.failed");
    }

    async fn a_name_stands_for_the_newest_that_is_ready(database: &TestDatabase) {
        let store = database.open().await;
        let (scope, other) = (project(&store, "p").await, project(&store, "q").await);
        let source = running(&store, &scope, sandbox()).await.id;
        let first = ready(&store, &scope, snapshot(source, Some("work"))).await;
        let second = insert(&store, &scope, snapshot(source, Some("work"))).await;
        let tagged = ready(&store, &scope, NewSnapshot { tag: "v1".into(), ..snapshot(source, Some("work")) }).await;
        let named = |name: &'static str, tag: &'static str| store.snapshot_named(&scope, name, tag);
        assert_eq!(named("work", "default").await.unwrap().unwrap().id, first.id, "the second is not ready");
        assert_eq!(named("work", "v1").await.unwrap(), Some(tagged.clone()));
        finish(&store, second, sized(1)).await;
        assert_eq!(named("work", "default").await.unwrap().unwrap().id, second);
        assert_eq!(store.snapshot_named(&other, "work", "default").await.unwrap(), None);
        let theirs = running(&store, &other, sandbox()).await.id;
        ready(&store, &other, snapshot(theirs, Some("work"))).await;
        assert_eq!(named("work", "default").await.unwrap().unwrap().id, second, "names are a project's own");

        let ids = |rows: Vec<SnapshotRow>| rows.into_iter().map(|row| row.id).collect::<Vec<_>>();
        let all = SnapshotFilter { limit: 10, ..SnapshotFilter::default() };
        assert_eq!(ids(store.snapshots(&scope, &all).await.unwrap()), [tagged.id, second, first.id]);
        let usable = SnapshotFilter { usable_only: true, ..all.clone() };
        assert_eq!(ids(store.snapshots(&scope, &usable).await.unwrap()), [tagged.id, second]);
        let builds = SnapshotFilter { name: Some("work".into()), tag: Some("default".into()), ..all.clone() };
        assert_eq!(ids(store.snapshots(&scope, &builds).await.unwrap()), [second, first.id]);
        let page = SnapshotFilter { limit: 1, before: Some(tagged.id), ..all.clone() };
        assert_eq!(ids(store.snapshots(&scope, &page).await.unwrap()), [second]);
        let of_another = SnapshotFilter { sandbox: Some(theirs), ..all };
        assert_eq!(ids(store.snapshots(&scope, &of_another).await.unwrap()), []);
        // Many with one name at once: the name refers to one of them.
        let many = join_all((0..6).map(|_| insert(&store, &scope, snapshot(source, Some("race"))))).await;
        join_all(many.iter().map(|id| finish(&store, *id, sized(1)))).await;
        let current = named("race", "default").await.unwrap().unwrap();
        assert!(many.contains(&current.id));
    }

    /// Otherwise an agent could replace the files that others use.
    async fn an_agent_has_names_of_its_own(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let source = running(&store, &scope, sandbox()).await.id;
        let agent = store.create_agent(&scope, "a").await.unwrap().id;
        let new = coffer_store::NewKey { agent: Some(agent), role: coffer_core::Role::Write, ..coffer_store::NewKey::from("k") };
        let key = store.create_key(&store.operator(), scope.project(), new).await.unwrap();
        let agents = comes_in(&store, key.reveal()).await.scope;
        let ours = ready(&store, &scope, snapshot(source, Some("n"))).await;
        let its = ready(&store, &agents, NewSnapshot { agent: Some(agent), ..snapshot(source, Some("n")) }).await;
        assert_eq!(store.snapshot_named(&scope, "n", "default").await.unwrap().unwrap().id, ours.id);
        assert_eq!(store.snapshot_named(&agents, "n", "default").await.unwrap().unwrap().id, its.id);
        assert_eq!(store.snapshot(&agents, ours.id).await.unwrap(), None);
        assert_eq!(store.begin_snapshot_deletion(&agents, ours.id).await.unwrap(), None);
    }

    async fn the_same_key_makes_one_snapshot(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let source = running(&store, &scope, sandbox()).await.id;
        let key = |fingerprint| Some(Idempotency { key: "k", fingerprint });
        let new = snapshot(source, None);
        let id = new.id;
        assert_eq!(store.insert_snapshot(&scope, new, key("f")).await.unwrap(), InsertedSnapshot::New);
        let again = store.insert_snapshot(&scope, snapshot(source, None), key("f")).await.unwrap();
        assert!(matches!(again, InsertedSnapshot::Existing(row) if row.id == id));
        let differs = store.insert_snapshot(&scope, snapshot(source, None), key("g")).await.unwrap();
        assert_eq!(differs, InsertedSnapshot::KeyReusedDifferently);
        assert_eq!(kinds(&store, &scope).await, ["snapshot.creating"]);
        // A failed one releases its key.
        store.remove_snapshot(&store.operator(), id, "failed").await.unwrap();
        let retried = store.insert_snapshot(&scope, snapshot(source, None), key("f")).await.unwrap();
        assert_eq!(retried, InsertedSnapshot::New);
    }

    async fn a_snapshot_uses_disk_by_its_size(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let limits = Limits { disk_mib: 100, ..Limits::default() };
        let source = running(&store, &scope, NewSandbox { limits, ..sandbox() }).await.id;
        let quotas = Quotas { disk_mib: Some(130), ..Quotas::default() };
        store.set_quotas(&store.operator(), scope.project(), None, quotas).await.unwrap().unwrap();
        let id = insert(&store, &scope, snapshot(source, None)).await;
        let facts = SnapshotFacts { files_bytes: 19 * MIB + 1, memory_bytes: 5, ..SnapshotFacts::default() };
        finish(&store, id, facts).await;
        let used = store.quotas(&scope, scope.project()).await.unwrap().unwrap().in_use;
        assert_eq!(used.disk_mib, 120);
        let large = insert(&store, &scope, snapshot(source, Some("n"))).await;
        let refused = store.finish_snapshot(&store.operator(), large, sized(11)).await.unwrap();
        let FinishedSnapshot::OverQuota(over) = refused else { panic!("{refused:?}") };
        assert_eq!((over.quota, over.limit, over.used, over.asked), (Quota::DiskMib, 130, 120, 11));
        let row = store.snapshot(&scope, large).await.unwrap().unwrap();
        assert_eq!((row.state, row.is_current), (SnapshotState::Creating, false), "nothing of it stays");
        finish(&store, large, sized(10)).await;
        let refused = store.insert_snapshot(&scope, snapshot(source, None), None).await.unwrap();
        let InsertedSnapshot::OverQuota(over) = refused else { panic!("{refused:?}") };
        assert_eq!((over.quota, over.used, over.asked), (Quota::DiskMib, 130, 1));
        let small = NewSandbox { limits: Limits { disk_mib: 1, ..Limits::default() }, ..sandbox() };
        let refused = store.insert_sandbox(&scope, small, None).await.unwrap();
        assert!(matches!(refused, Inserted::OverQuota(_)), "sandboxes and snapshots share the disk");
    }

    async fn of_many_forks_at_once_no_more_begin_than_may(database: &TestDatabase) {
        let (here, there) = (database.open().await, database.open().await);
        let scope = project(&here, "p").await;
        for store in [&here, &there] {
            store.set_default_quotas(Quotas { forks: Some(3), ..Quotas::default() });
        }
        let source = running(&here, &scope, sandbox()).await;
        let forks = (1..=10).map(|position| {
            let store = if position % 2 == 0 { here.clone() } else { there.clone() };
            tokio::spawn(async move { store.insert_sandbox(&scope, fork(source.id, position), None).await.unwrap() })
        });
        let answers: Vec<_> = join_all(forks).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(answers.iter().filter(|answer| **answer == Inserted::New).count(), 3);
        let over = answers.iter().find_map(|answer| match answer {
            Inserted::OverQuota(over) => Some((over.quota, over.limit, over.used, over.asked)),
            _ => None,
        });
        assert_eq!(over, Some((Quota::Forks, 3, 3, 1)));
        let project = scope.project();
        let foreseen = here.fork_refusal(&scope, project, &[source.limits]).await.unwrap().unwrap();
        assert_eq!((foreseen.quota, foreseen.used), (Quota::Forks, 3));
        // Forks of another sandbox count as well: more sandboxes do not mean more forks.
        let other = running(&here, &scope, sandbox()).await;
        let refused = here.insert_sandbox(&scope, fork(other.id, 1), None).await.unwrap();
        assert!(matches!(refused, Inserted::OverQuota(over) if over.quota == Quota::Forks && over.used == 3));
        // Those of another project do not count, nor do sandboxes from a snapshot.
        let elsewhere = crate::fixtures::project(&here, "q").await;
        let of_other = elsewhere.project();
        assert_eq!(here.fork_refusal(&elsewhere, of_other, &[other.limits; 3]).await.unwrap(), None);
        let over = here.fork_refusal(&elsewhere, of_other, &[other.limits; 4]).await.unwrap().unwrap();
        assert_eq!((over.used, over.asked), (0, 4));
        let origin = Origin { parent: source.id, snapshot: SnapshotId::generate(), fork_position: None };
        let made = NewSandbox { origin: Some(origin), ..sandbox() };
        assert_eq!(here.insert_sandbox(&scope, made, None).await.unwrap(), Inserted::New);
        // Quotas of sandboxes count all forks at once.
        here.set_default_quotas(Quotas { sandboxes: Some(7), ..Quotas::default() });
        let over = here.fork_refusal(&scope, project, &[other.limits; 2]).await.unwrap().unwrap();
        assert_eq!((over.quota, over.used, over.asked), (Quota::Sandboxes, 6, 2));
        assert!(!over.is_hopeless(), "once others end there is room");
        // Each by its requested size.
        here.set_default_quotas(Quotas { cpus: Some(3), ..Quotas::default() });
        let sizes = [1, 4].map(|cpu_count| Limits { cpu_count, ..other.limits });
        let over = here.fork_refusal(&scope, project, &sizes).await.unwrap().unwrap();
        assert_eq!((over.quota, over.asked, over.is_hopeless()), (Quota::Cpus, 5, true));
    }

    async fn a_lineage_is_a_tree(database: &TestDatabase) {
        let store = database.open().await;
        let (scope, other) = (project(&store, "p").await, project(&store, "q").await);
        let root = running(&store, &scope, sandbox()).await;
        let left = running(&store, &scope, fork(root.id, 1)).await;
        let right = running(&store, &scope, fork(root.id, 2)).await;
        let leaf = running(&store, &scope, fork(left.id, 1)).await;
        running(&store, &scope, sandbox()).await;
        running(&store, &other, fork(root.id, 3)).await;
        assert_eq!(leaf.origin.unwrap().parent, left.id);
        for seen_from in [root.id, left.id, right.id, leaf.id] {
            let lineage = store.lineage(&scope, seen_from, 100).await.unwrap().unwrap();
            let shape: Vec<_> = lineage.relatives.iter().map(|one| (one.id, one.depth)).collect();
            assert_eq!(shape, [(root.id, 0), (left.id, 1), (leaf.id, 2), (right.id, 1)], "from {seen_from}");
            assert_eq!(lineage.relatives[3].origin, right.origin);
            assert!(!lineage.truncated);
        }
        let some = store.lineage(&scope, leaf.id, 2).await.unwrap().unwrap();
        assert_eq!((some.relatives.len(), some.truncated), (2, true));
        assert_eq!(store.lineage(&other, root.id, 100).await.unwrap(), None);
        // Rows deleted by retention are gone; their descendants stay.
        let over = SandboxState::Terminated { reason: DestroyReason::Requested };
        store.transition(&scope, root.id, StateName::Running, over, "t", Changes::default()).await.unwrap();
        let cutoffs = coffer_store::Cutoffs { records_ms: i64::MAX, events_ms: 0, audit_ms: 0 };
        store.prune(&store.operator(), Some(scope.project()), cutoffs, 10).await.unwrap();
        let rest = store.lineage(&scope, leaf.id, 100).await.unwrap().unwrap();
        let shape: Vec<_> = rest.relatives.iter().map(|one| (one.id, one.depth)).collect();
        assert_eq!(shape, [(left.id, 0), (leaf.id, 1)]);
    }

    async fn a_key_tells_what_it_was_used_for(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let key = |fingerprint| Idempotency { key: "fork/k/1", fingerprint };
        assert_eq!(store.earlier_sandbox(&scope, key("f")).await.unwrap(), Inserted::New);
        let new = sandbox();
        let id = new.id;
        store.insert_sandbox(&scope, new, Some(key("f"))).await.unwrap();
        let found = store.earlier_sandbox(&scope, key("f")).await.unwrap();
        assert!(matches!(found, Inserted::Existing(row) if row.id == id));
        assert_eq!(store.earlier_sandbox(&scope, key("g")).await.unwrap(), Inserted::KeyReusedDifferently);
    }

    async fn each_installation_finishes_its_own(database: &TestDatabase) {
        let (here, there) = (database.open().await, database.open().await);
        here.act_for(&here.operator(), "here").await.unwrap();
        there.act_for(&there.operator(), "there").await.unwrap();
        let scope = project(&here, "p").await;
        let source = running(&here, &scope, sandbox()).await.id;
        let ours = insert(&here, &scope, snapshot(source, None)).await;
        let theirs = ready(&there, &scope, snapshot(source, None)).await;
        assert_eq!(theirs.installation.as_deref(), Some("there"));
        let unfinished = here.unfinished_snapshots(&here.operator()).await.unwrap();
        assert_eq!(unfinished.iter().map(|row| row.id).collect::<Vec<_>>(), [ours]);
        assert!(there.unfinished_snapshots(&there.operator()).await.unwrap().is_empty());
        assert_eq!(here.snapshot_holder_elsewhere(&theirs), Some("there"));
        assert_eq!(there.snapshot_holder_elsewhere(&theirs), None);
        let known = here.known_snapshots(&here.operator(), &[ours, theirs.id]).await.unwrap();
        assert_eq!(known.len(), 2, "whoever has it, it is known");
    }
}
