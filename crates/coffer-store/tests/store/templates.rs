//! Templates: builds, tags, logs, cached steps and uploaded files.

use std::collections::BTreeMap;

use coffer_core::clock::now_ms;
use coffer_core::{
    BuildLogLevel, BuildPlan, BuildSource, BuildState, Limits, SnapshotId, SnapshotPurpose, TemplateDefaults,
};
use coffer_store::{
    BuildFailure, BuildFilter, BuildLogLine, BuildLogPage, BuildRow, FinishedSnapshot, InsertedSnapshot,
    Layer, MOST_LOG_LINES, NewBuild, NewSnapshot, ProjectScope, SnapshotFacts, SnapshotFilter, Store,
    TemplateError, TemplateFiles, TemplateSize, UploadGrant,
};

use crate::databases::on_both;
use crate::fixtures::{project, running, sandbox};

fn new(name: &str, tags: &[&str]) -> NewBuild {
    NewBuild {
        name: Some(name.into()),
        tags: tags.iter().map(ToString::to_string).collect(),
        size: TemplateSize { cpu_count: Some(1), memory_mib: None },
        created_by: Some("key".into()),
    }
}

fn plan() -> BuildPlan {
    let source = BuildSource::Template("base".into());
    BuildPlan { source, steps: vec![], start: None, force: false, platform: None }
}

/// A snapshot of a build, ready to be used.
async fn snapshot(store: &Store, scope: &ProjectScope, purpose: SnapshotPurpose) -> SnapshotId {
    let sandbox = running(store, scope, sandbox()).await;
    let new = NewSnapshot {
        id: SnapshotId::generate(),
        sandbox: sandbox.id,
        agent: None,
        name: None,
        tag: "default".into(),
        memory: false,
        template: "base".into(),
        limits: Limits::default(),
        secrets: BTreeMap::new(),
        created_by: None,
        purpose,
    };
    let id = new.id;
    assert_eq!(store.insert_snapshot(scope, new, None).await.unwrap(), InsertedSnapshot::New);
    let finished = store.finish_snapshot(&store.operator(), id, SnapshotFacts::default()).await.unwrap();
    assert!(matches!(finished, FinishedSnapshot::Ready(_)), "{finished:?}");
    id
}

async fn started(store: &Store, scope: &ProjectScope, name: &str, tags: &[&str]) -> BuildRow {
    let row = store.request_build(scope, new(name, tags)).await.unwrap();
    store.start_build(scope, row.template, row.id, plan(), None).await.unwrap().unwrap()
}

async fn built(store: &Store, scope: &ProjectScope, name: &str, tags: &[&str]) -> BuildRow {
    let row = started(store, scope, name, tags).await;
    let snapshot = snapshot(store, scope, SnapshotPurpose::Template).await;
    store.finish_build(&store.operator(), row.id, snapshot).await.unwrap().unwrap()
}

fn defaults() -> TemplateDefaults {
    TemplateDefaults { user: "user".into(), workdir: None, env: BTreeMap::new(), start: None }
}

on_both! {
    async fn a_build_is_visible_once_it_is_ready(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let row = started(&store, &scope, "app", &[]).await;
        assert_eq!((row.state, row.tags.as_slice()), (BuildState::Building, ["default".to_string()].as_slice()));
        assert_eq!(store.templates(&scope, None, 10).await.unwrap(), []);
        assert_eq!(store.template(&scope, "app").await.unwrap(), None);
        assert_eq!(store.usable_template(&scope, "app", "default").await.unwrap(), None);
        // It is started once.
        assert_eq!(store.start_build(&scope, row.template, row.id, plan(), None).await.unwrap(), None);
        let snapshot = snapshot(&store, &scope, SnapshotPurpose::Template).await;
        let ready = store.finish_build(&store.operator(), row.id, snapshot).await.unwrap().unwrap();
        assert_eq!((ready.state, ready.snapshot), (BuildState::Ready, Some(snapshot)));
        let usable = store.usable_template(&scope, "app", "default").await.unwrap().unwrap();
        assert_eq!((usable.build, usable.snapshot, usable.size.cpu_count), (row.id, snapshot, Some(1)));
        let by_id = store.usable_template(&scope, &row.template.to_string(), "default").await.unwrap();
        assert_eq!(by_id, Some(usable));
        let listed = store.templates(&scope, None, 10).await.unwrap();
        assert_eq!((listed.len(), listed[0].build, listed[0].build_count), (1, row.id, 1));
        // A finished build neither fails nor finishes again.
        let failure = BuildFailure { message: "late".into(), step: None };
        assert_eq!(store.fail_build(&store.operator(), row.id, failure).await.unwrap(), None);
        assert_eq!(store.finish_build(&store.operator(), row.id, snapshot).await.unwrap(), None);
        // Snapshots of builds are not a client's.
        assert_eq!(store.snapshots(&scope, &SnapshotFilter { limit: 10, ..Default::default() }).await.unwrap(), []);
    }

    async fn nothing_of_a_template_is_visible_to_another_project(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, other) = (project(&store, "mine").await, project(&store, "other").await);
        let row = built(&store, &mine, "app", &[]).await;
        let id = row.template.to_string();
        for name in ["app", id.as_str()] {
            assert_eq!(store.template(&other, name).await.unwrap(), None);
            assert_eq!(store.usable_template(&other, name, "default").await.unwrap(), None);
        }
        assert_eq!(store.build(&other, None, row.id).await.unwrap(), None);
        assert_eq!(store.builds(&other, &BuildFilter { limit: 10, ..Default::default() }).await.unwrap(), []);
        assert_eq!(store.template_tags(&other, row.template).await.unwrap(), []);
        assert_eq!(store.delete_template(&other, row.template).await.unwrap(), None);
        let page = BuildLogPage { offset: 0, limit: 10, level: BuildLogLevel::Debug };
        let line = BuildLogLine { at_ms: 1, level: BuildLogLevel::Info, step: None, message: "m".into() };
        store.append_build_log(&store.operator(), row.id, vec![line]).await.unwrap();
        assert_eq!(store.build_log(&other, row.id, page).await.unwrap(), []);
        assert_eq!(store.build_log(&mine, row.id, page).await.unwrap().len(), 1);
        assert!(matches!(
            store.tag_template(&other, "app", "default", vec!["x".into()]).await,
            Err(TemplateError::NotFound(_))
        ));
        // The same name is free there, and the same keys find nothing.
        let theirs = built(&store, &other, "app", &[]).await;
        assert_ne!(theirs.template, row.template);
        let layer = Layer { key: "k".into(), snapshot: row.snapshot.unwrap(), defaults: defaults() };
        store.keep_layer(mine.project(), layer).await.unwrap();
        assert_eq!(store.layers(other.project(), &["k".into()]).await.unwrap(), []);
    }

    async fn tags_move_and_go(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let one = built(&store, &scope, "app", &["v1", "default"]).await;
        let two = built(&store, &scope, "app", &["v2", "default"]).await;
        assert_eq!(one.template, two.template);
        let build = async |tag: &str| store.usable_template(&scope, "app", tag).await.unwrap().map(|it| it.build);
        assert_eq!((build("v1").await, build("default").await), (Some(one.id), Some(two.id)));
        let tagged = store.tag_template(&scope, "app", "v1", vec!["stable".into(), "default".into()]).await.unwrap();
        assert_eq!((tagged, build("stable").await, build("default").await), (one.id, Some(one.id), Some(one.id)));
        let gone = store.untag_template(&scope, "app", vec!["stable".into(), "never".into()]).await;
        assert!(matches!(gone, Err(TemplateError::NoTag { .. })), "{gone:?}");
        assert_eq!(build("stable").await, Some(one.id), "either all tags go or none");
        store.untag_template(&scope, "app", vec!["stable".into()]).await.unwrap();
        assert_eq!(build("stable").await, None);
        let kept = store.untag_template(&scope, "app", vec!["default".into()]).await;
        assert!(matches!(kept, Err(TemplateError::DefaultTag)));
        // Only what no tag names is pruned.
        store.untag_template(&scope, "app", vec!["v2".into()]).await.unwrap();
        let pruned = store.prune_builds(&store.operator(), now_ms() + 1000).await.unwrap();
        assert_eq!(pruned, [two.snapshot.unwrap()]);
        assert_eq!(build("v1").await, Some(one.id));
    }

    async fn a_deleted_template_leaves_its_snapshots_to_the_caller(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let row = built(&store, &scope, "app", &[]).await;
        let running = started(&store, &scope, "app", &[]).await;
        let gone = store.delete_template(&scope, row.template).await.unwrap().unwrap();
        assert_eq!(gone.snapshots, [row.snapshot.unwrap()]);
        assert_eq!(gone.builds.len(), 2);
        assert_eq!(store.build(&scope, None, running.id).await.unwrap(), None);
        assert!(!store.is_build_snapshot_used(row.snapshot.unwrap()).await.unwrap());
        let snapshot = snapshot(&store, &scope, SnapshotPurpose::Template).await;
        assert_eq!(store.finish_build(&store.operator(), running.id, snapshot).await.unwrap(), None);
    }

    async fn unfinished_builds_are_found_with_their_credentials(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let waiting = store.request_build(&scope, new("app", &[])).await.unwrap();
        assert!(store.unfinished_builds(&store.operator()).await.unwrap().is_empty());
        let secret = Some("{\"password\":\"hidden\"}".to_string());
        store.start_build(&scope, waiting.template, waiting.id, plan(), secret.clone()).await.unwrap().unwrap();
        let found = store.unfinished_builds(&store.operator()).await.unwrap();
        assert_eq!((found.len(), &found[0].registry, &found[0].plan), (1, &secret, &plan()));
        let failure = BuildFailure { message: "broken".into(), step: Some("2".into()) };
        let failed = store.fail_build(&store.operator(), waiting.id, failure.clone()).await.unwrap().unwrap();
        assert_eq!((failed.state, failed.failure), (BuildState::Error, Some(failure)));
        assert!(store.unfinished_builds(&store.operator()).await.unwrap().is_empty());
    }

    async fn a_log_is_paged_by_level_and_bounded(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let row = started(&store, &scope, "app", &[]).await;
        let line = |level, text: &str| BuildLogLine { at_ms: 5, level, step: Some("1".into()), message: text.into() };
        let lines = vec![
            line(BuildLogLevel::Debug, "d"), line(BuildLogLevel::Info, "i"),
            line(BuildLogLevel::Warn, "w"), line(BuildLogLevel::Error, "e"),
        ];
        store.append_build_log(&store.operator(), row.id, lines).await.unwrap();
        let read = async |offset, limit, level| {
            let page = store.build_log(&scope, row.id, BuildLogPage { offset, limit, level }).await.unwrap();
            page.into_iter().map(|line| line.message).collect::<Vec<_>>().join("")
        };
        assert_eq!(read(0, 10, BuildLogLevel::Debug).await, "diwe");
        assert_eq!(read(1, 1, BuildLogLevel::Info).await, "w");
        assert_eq!(read(0, 10, BuildLogLevel::Error).await, "e");
        let many = vec![line(BuildLogLevel::Info, "x"); usize::try_from(MOST_LOG_LINES).unwrap() + 50];
        store.append_build_log(&store.operator(), row.id, many).await.unwrap();
        let last = read(MOST_LOG_LINES, 10, BuildLogLevel::Debug).await;
        assert_eq!(last, "the log is full; further lines are not kept");
        store.append_build_log(&store.operator(), row.id, vec![line(BuildLogLevel::Info, "more")]).await.unwrap();
        assert_eq!(read(MOST_LOG_LINES + 1, 10, BuildLogLevel::Debug).await, "");
    }

    async fn layers_are_replaced_used_and_forgotten(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let first = snapshot(&store, &scope, SnapshotPurpose::Layer).await;
        let second = snapshot(&store, &scope, SnapshotPurpose::Layer).await;
        let stray = snapshot(&store, &scope, SnapshotPurpose::Layer).await;
        let layer = |key: &str, snapshot| Layer { key: key.into(), snapshot, defaults: defaults() };
        assert_eq!(store.keep_layer(scope.project(), layer("a", first)).await.unwrap(), None);
        assert_eq!(store.keep_layer(scope.project(), layer("a", second)).await.unwrap(), Some(first));
        let found = store.layers(scope.project(), &["a".into(), "b".into()]).await.unwrap();
        assert_eq!(found, [layer("a", second)]);
        assert!(store.is_build_snapshot_used(second).await.unwrap());
        let strays = store.stray_build_snapshots(&store.operator(), now_ms() + 1000).await.unwrap();
        let mut strays: Vec<_> = strays.into_iter().map(|it| it.snapshot).collect();
        strays.sort();
        assert_eq!(strays, [first, stray]);
        let unused = store.forget_layers(&store.operator(), None, now_ms() - 1000, 10).await.unwrap();
        assert!(unused.is_empty());
        let gone = store.forget_layers(&store.operator(), None, now_ms() + 1000, 10).await.unwrap();
        assert_eq!(gone.len(), 1);
        assert_eq!(store.layers(scope.project(), &["a".into()]).await.unwrap(), []);
    }

    async fn an_upload_link_works_once_and_not_for_ever(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let grant = UploadGrant { project: scope.project(), hash: "0a".into() };
        store.allow_upload("token", grant.clone(), now_ms() + 60_000).await.unwrap();
        store.allow_upload("late", grant.clone(), now_ms() - 1).await.unwrap();
        assert_eq!(store.take_upload("other").await.unwrap(), None);
        assert_eq!(store.take_upload("late").await.unwrap(), None);
        assert_eq!(store.take_upload("token").await.unwrap(), Some(grant));
        assert_eq!(store.take_upload("token").await.unwrap(), None);
        let files = TemplateFiles { project: scope.project(), hash: "0a".into(), sha256: "1b".into(), size_bytes: 7 };
        assert_eq!(store.keep_template_files(files.clone()).await.unwrap(), None);
        assert_eq!(store.template_files(scope.project(), "0a").await.unwrap(), Some(files.clone()));
        let newer = TemplateFiles { sha256: "2c".into(), ..files.clone() };
        assert_eq!(store.keep_template_files(newer.clone()).await.unwrap(), Some(files));
        assert_eq!(store.known_template_files(&store.operator(), scope.project()).await.unwrap(), ["2c"]);
        let gone = store.forget_template_files(&store.operator(), now_ms() + 1000).await.unwrap();
        assert_eq!(gone, [newer]);
    }
}
