//! Templates: builds, tags, logs, cached steps and uploaded files.

use std::collections::BTreeMap;

use coffer_core::clock::now_ms;
use coffer_core::{
    BuildLogLevel, BuildPlan, BuildSource, BuildState, Limits, SnapshotId, SnapshotPurpose, TemplateDefaults,
};
use coffer_store::{
    BuildFailure, BuildFilter, BuildLogLine, BuildLogPage, BuildRow, FinishedSnapshot, InsertedSnapshot,
    Layer, MOST_LOG_BYTES, MOST_LOG_LINES, MOST_PROJECT_LOG_BYTES, MOST_TAGS, MOST_WAITING, NewBuild,
    NewSnapshot, ProjectScope, SnapshotFacts, SnapshotFilter, Store, TemplateError, TemplateFiles,
    TemplateFilter, TemplateSize, TemplateState, UploadGrant,
};

use crate::databases::on_both;
use crate::fixtures::{project, running, sandbox};

fn new(name: &str, tags: &[&str]) -> NewBuild {
    NewBuild {
        name: Some(name.into()),
        tags: tags.iter().map(ToString::to_string).collect(),
        size: TemplateSize { cpu_count: Some(1), memory_mib: None, disk_mib: Some(2048) },
        summary: None,
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
    store.finish_build(&store.operator(), row.id, snapshot, None).await.unwrap().unwrap()
}

fn defaults() -> TemplateDefaults {
    TemplateDefaults { user: "user".into(), workdir: None, env: BTreeMap::new(), start: None }
}

on_both! {
    async fn old_logs_make_room_for_new_builds(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let other = project(&store, "other").await;
        let long = BuildLogLine {
            at_ms: 1,
            level: BuildLogLevel::Info,
            step: None,
            message: "x".repeat(usize::try_from(MOST_LOG_BYTES / 2 - 2).unwrap()),
        };
        let page = BuildLogPage { offset: 0, limit: 10, level: BuildLogLevel::Info };
        let theirs = started(&store, &other, "app", &[]).await;
        store.append_build_log(&store.operator(), theirs.id, vec![long.clone()]).await.unwrap();
        let mut builds = Vec::new();
        for number in 0..MOST_PROJECT_LOG_BYTES / MOST_LOG_BYTES + 2 {
            let row = started(&store, &scope, &format!("t{number}"), &[]).await;
            store.append_build_log(&store.operator(), row.id, vec![long.clone(), long.clone()]).await.unwrap();
            builds.push(row.id);
        }
        started(&store, &scope, "last", &[]).await;
        let mut kept = Vec::new();
        for build in &builds {
            kept.push(store.build_log(&scope, *build, page).await.unwrap().len());
        }
        assert_eq!(kept[..2], [0, 0], "the oldest are gone");
        assert!(kept[2..].iter().all(|lines| *lines == 2), "{kept:?}");
        assert_eq!(store.build_log(&other, theirs.id, page).await.unwrap().len(), 1);
    }

    async fn builds_that_were_never_started_are_bounded(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        for _ in 0..MOST_WAITING {
            store.request_build(&scope, new("app", &[])).await.unwrap();
        }
        let more = store.request_build(&scope, new("app", &[])).await;
        assert!(matches!(more, Err(TemplateError::TooManyWaiting)), "{more:?}");
        let other = project(&store, "other").await;
        store.request_build(&other, new("app", &[])).await.unwrap();
    }

    async fn a_template_has_so_many_tags_and_no_more(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        built(&store, &scope, "app", &[]).await;
        let names = |from: i64, to: i64| (from..to).map(|number| format!("t{number}")).collect::<Vec<_>>();
        store.tag_template(&scope, "app", "default", names(1, MOST_TAGS)).await.unwrap();
        let more = store.tag_template(&scope, "app", "default", names(MOST_TAGS - 1, MOST_TAGS + 1)).await;
        assert!(matches!(more, Err(TemplateError::TooManyTags)), "{more:?}");
        let template = store.template(&scope, "app").await.unwrap().unwrap();
        let tags = store.template_tags(&scope, template.id).await.unwrap();
        assert_eq!(tags.len() as i64, MOST_TAGS, "none of the refused ones is there");
        // One that exists may still move.
        store.tag_template(&scope, "app", "default", names(1, 2)).await.unwrap();
    }

    async fn a_list_of_builds_has_no_plans(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let row = started(&store, &scope, "app", &[]).await;
        let filter = BuildFilter { template: Some(row.template), state: None, before: None, limit: 10 };
        let listed = store.builds(&scope, &filter).await.unwrap();
        assert_eq!(listed, [BuildRow { plan: None, ..row.clone() }]);
        assert_eq!(store.build(&scope, None, row.id).await.unwrap().unwrap().plan, Some(plan()));
    }

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
        let ready = store.finish_build(&store.operator(), row.id, snapshot, None).await.unwrap().unwrap();
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
        assert_eq!(store.finish_build(&store.operator(), row.id, snapshot, None).await.unwrap(), None);
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
        assert_eq!(store.finish_build(&store.operator(), running.id, snapshot, None).await.unwrap(), None);
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

    async fn templates_are_shown_whatever_became_of_their_builds(database: &TestDatabase) {
        let store = database.open().await;
        let (scope, other) = (project(&store, "p").await, project(&store, "q").await);
        let ready = built(&store, &scope, "ready", &["v1", "a"]).await;
        started(&store, &scope, "running", &[]).await;
        let failed = started(&store, &scope, "failed", &[]).await;
        let failure = BuildFailure { message: "no".into(), step: Some("1".into()) };
        store.fail_build(&store.operator(), failed.id, failure).await.unwrap();
        // A later failure changes nothing for those who use it.
        let again = store.request_build(&scope, NewBuild { summary: Some("The One".into()), ..new("ready", &[]) });
        let again = again.await.unwrap();
        let all = TemplateFilter { limit: 10, ..TemplateFilter::default() };
        let shown = store.template_entries(&scope, &all).await.unwrap();
        let states: Vec<_> = shown.iter().map(|entry| (entry.name.as_str(), entry.state)).collect();
        let expected = [
            ("failed", TemplateState::Error), ("ready", TemplateState::Ready), ("running", TemplateState::Building),
        ];
        assert_eq!(states, expected);
        let entry = &shown[1];
        assert_eq!((entry.build, entry.snapshot, entry.build_count), (Some(ready.id), ready.snapshot, 1));
        assert_eq!(entry.last_build.as_ref().map(|build| build.id), Some(again.id));
        assert_eq!((entry.summary.as_deref(), entry.tags.as_slice()), (Some("The One"), ["a".to_string(), "v1".into()].as_slice()));
        assert_eq!(entry.size.disk_mib, Some(2048));
        let names = async |filter: TemplateFilter<'static>| -> Vec<String> {
            let found = store.template_entries(&scope, &TemplateFilter { limit: 10, ..filter }).await.unwrap();
            found.into_iter().map(|entry| entry.name).collect()
        };
        assert_eq!(names(TemplateFilter { state: Some(TemplateState::Error), ..Default::default() }).await, ["failed"]);
        assert_eq!(names(TemplateFilter { search: Some("the ONE"), ..Default::default() }).await, ["ready"]);
        assert_eq!(names(TemplateFilter { search: Some("%"), ..Default::default() }).await, Vec::<String>::new());
        assert_eq!(names(TemplateFilter { after: Some("failed"), ..Default::default() }).await, ["ready", "running"]);
        assert_eq!(names(TemplateFilter { only: Some("ready"), ..Default::default() }).await, ["ready"]);
        assert_eq!(store.template_entries(&other, &all).await.unwrap(), []);
        let id = ready.template.to_string();
        let only = TemplateFilter { only: Some(&id), limit: 1, ..TemplateFilter::default() };
        assert_eq!(store.template_entries(&scope, &only).await.unwrap().len(), 1);
        assert_eq!(store.template_entries(&other, &only).await.unwrap(), []);
        let building = BuildFilter { state: Some(BuildState::Building), limit: 10, ..Default::default() };
        assert_eq!(store.builds(&scope, &building).await.unwrap().len(), 1);
    }

    async fn room_is_made_of_what_no_build_uses(database: &TestDatabase) {
        let store = database.open().await;
        let (scope, other) = (project(&store, "p").await, project(&store, "q").await);
        assert_eq!(store.oldest_running_build(scope.project()).await.unwrap(), None);
        let done = built(&store, &scope, "done", &[]).await;
        let idle = snapshot(&store, &scope, SnapshotPurpose::Layer).await;
        let theirs = snapshot(&store, &other, SnapshotPurpose::Layer).await;
        let layer = |key: &str, snapshot| Layer { key: key.into(), snapshot, defaults: defaults() };
        store.keep_layer(scope.project(), layer("done", done.snapshot.unwrap())).await.unwrap();
        store.keep_layer(scope.project(), layer("idle", idle)).await.unwrap();
        store.keep_layer(other.project(), layer("idle", theirs)).await.unwrap();
        let running = started(&store, &scope, "running", &[]).await;
        assert_eq!(store.oldest_running_build(scope.project()).await.unwrap(), running.started_ms);
        assert_eq!(store.oldest_running_build(other.project()).await.unwrap(), None);
        assert_eq!(store.forget_idle_layers(scope.project(), now_ms() - 60_000, 10).await.unwrap(), []);
        assert_eq!(store.forget_idle_layers(scope.project(), now_ms() + 1, 10).await.unwrap(), [idle]);
        assert_eq!(store.layers(scope.project(), &["done".into()]).await.unwrap().len(), 1);
        assert_eq!(store.layers(other.project(), &["idle".into()]).await.unwrap().len(), 1);
    }

    async fn a_log_is_read_on_from_a_position(database: &TestDatabase) {
        let store = database.open().await;
        let (scope, other) = (project(&store, "p").await, project(&store, "q").await);
        let row = started(&store, &scope, "app", &[]).await;
        let line = |level, message: &str| BuildLogLine { at_ms: 1, level, step: None, message: message.into() };
        let lines = vec![line(BuildLogLevel::Debug, "a"), line(BuildLogLevel::Info, "b"), line(BuildLogLevel::Warn, "c")];
        store.append_build_log(&store.operator(), row.id, lines).await.unwrap();
        let read = async |scope: &ProjectScope, after, level| -> Vec<(i64, String)> {
            let lines = store.build_log_after(scope, row.id, after, level, 10).await.unwrap();
            lines.into_iter().map(|(number, line)| (number, line.message)).collect()
        };
        assert_eq!(read(&scope, -1, BuildLogLevel::Info).await, [(1, "b".to_string()), (2, "c".into())]);
        assert_eq!(read(&scope, 1, BuildLogLevel::Debug).await, [(2, "c".to_string())]);
        assert_eq!(read(&other, -1, BuildLogLevel::Debug).await, []);
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
