//! Records of git in sandboxes.

use coffer_core::{Limits, RepositoryId, SandboxId, SnapshotId};
use coffer_store::{
    ChangeError, GitOutcome, GitRemote, GitState, NewRepository, NewSandbox, NewSnapshot, Origin,
    ProjectScope,
};
use serde_json::json;

use crate::databases::on_both;
use crate::fixtures::{project, running, sandbox};

fn repository(name: &str) -> NewRepository {
    NewRepository {
        id: RepositoryId::generate(),
        name: name.parse().unwrap(),
        elsewhere: None,
        default_branch: "main".parse().unwrap(),
    }
}

fn born_of(parent: SandboxId, snapshot: SnapshotId, fork_position: Option<i64>) -> NewSandbox {
    NewSandbox { origin: Some(Origin { parent, snapshot, fork_position }), ..sandbox() }
}

on_both! {
    async fn an_operation_begins_and_ends_with_its_events(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let row = running(&store, &mine, sandbox()).await;
        let refused = store.begin_git_operation(&theirs, row.id, "app", "push", "key:x").await;
        assert!(matches!(refused, Err(ChangeError::NotFound)));

        let good = store.begin_git_operation(&mine, row.id, "app", "push", "key:x").await.unwrap();
        let bad = store.begin_git_operation(&mine, row.id, "app", "commit", "key:x").await.unwrap();
        let left = store.begin_git_operation(&mine, row.id, "app", "clone", "key:x").await.unwrap();
        let failed = GitOutcome::Failed { code: "commit_message".into(), message: "a\0b".into() };
        store.end_git_operation(&theirs, good, GitOutcome::Done(json!({}))).await.unwrap();
        store.end_git_operation(&mine, good, GitOutcome::Done(json!({"commit": "1"}))).await.unwrap();
        store.end_git_operation(&mine, bad, failed.clone()).await.unwrap();
        // An ended operation stays ended.
        store.end_git_operation(&mine, good, failed).await.unwrap();
        assert_eq!(store.interrupt_git_operations(&store.operator()).await.unwrap(), 1);

        let rows = store.git_operations(&mine, row.id, None, 10).await.unwrap();
        let told: Vec<_> = rows.iter().map(|row| (row.id, row.state, row.error_code.as_deref())).collect();
        assert_eq!(
            told,
            [
                (left, GitState::Failed, Some("interrupted")),
                (bad, GitState::Failed, Some("commit_message")),
                (good, GitState::Succeeded, None),
            ]
        );
        assert_eq!(rows[2].result, Some(json!({"commit": "1"})));
        assert_eq!(store.git_operations(&mine, row.id, Some(bad), 10).await.unwrap().len(), 1);
        assert_eq!(store.git_operations(&theirs, row.id, None, 10).await.unwrap(), []);
        let events = store.events(&mine, 0, 100).await.unwrap();
        let count = |kind: &str| events.iter().filter(|event| event.kind == kind).count();
        assert_eq!((count("git.started"), count("git.succeeded"), count("git.failed")), (3, 1, 2));
    }

    async fn a_sandbox_has_its_projects_repositories_alone(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let row = running(&store, &mine, sandbox()).await;
        let app = store.create_repository(&mine, repository("app")).await.unwrap();
        let other = store.create_repository(&theirs, repository("app")).await.unwrap();
        let remote = |repository, path: &str| GitRemote {
            sandbox: row.id,
            project: mine.project(),
            slug: "app".to_string(),
            repository,
            path: path.to_string(),
            user: None,
        };
        for (scope, repository) in [(&mine, other.id), (&theirs, other.id), (&theirs, app.id)] {
            let refused = store.put_git_remote(scope, remote(repository, "app")).await;
            assert!(matches!(refused, Err(ChangeError::NotFound)));
        }
        store.put_git_remote(&mine, remote(app.id, "app")).await.unwrap();
        store.put_git_remote(&mine, remote(app.id, "elsewhere")).await.unwrap();
        assert_eq!(store.git_remotes(&mine, row.id).await.unwrap(), [remote(app.id, "elsewhere")]);
        assert_eq!(store.git_remotes(&theirs, row.id).await.unwrap(), []);
        assert_eq!(store.sandboxes_with_git(&store.operator()).await.unwrap(), [row.id]);
        store.remove_repository(&mine, app.id).await.unwrap();
        assert_eq!(store.git_remotes(&mine, row.id).await.unwrap(), []);
    }

    async fn what_begins_with_a_sandbox_has_its_repositories(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let source = running(&store, &mine, sandbox()).await.id;
        let app = store.create_repository(&mine, repository("app")).await.unwrap();
        let later = store.create_repository(&mine, repository("later")).await.unwrap();
        let put = async |row: &coffer_store::RepositoryRow, path: &str| {
            let remote = GitRemote {
                sandbox: source,
                project: mine.project(),
                slug: row.name.to_string(),
                repository: row.id,
                path: path.to_string(),
                user: Some("dev".to_string()),
            };
            store.put_git_remote(&mine, remote).await.unwrap();
        };
        let told = async |scope: &ProjectScope, sandbox: SandboxId| {
            let remotes = store.git_remotes(scope, sandbox).await.unwrap();
            remotes.into_iter().map(|remote| (remote.slug, remote.path, remote.user)).collect::<Vec<_>>()
        };
        let as_dev = |slug: &str, path: &str| (slug.to_string(), path.to_string(), Some("dev".to_string()));
        put(&app, "app").await;
        let kept = NewSnapshot {
            id: SnapshotId::generate(),
            sandbox: source,
            agent: None,
            name: None,
            tag: "default".into(),
            memory: false,
            template: "base".into(),
            limits: Limits::default(),
            secrets: Default::default(),
            purpose: coffer_core::SnapshotPurpose::Use,
            created_by: None,
        };
        let snapshot = kept.id;
        store.insert_snapshot(&mine, kept, None).await.unwrap();
        put(&app, "moved").await;
        put(&later, "later").await;
        let both = [as_dev("app", "moved"), as_dev("later", "later")];

        let child = running(&store, &mine, born_of(source, SnapshotId::generate(), Some(1))).await.id;
        assert_eq!(told(&mine, child).await, both, "a fork has what its source has now");
        let copy = running(&store, &mine, born_of(source, snapshot, None)).await.id;
        assert_eq!(told(&mine, copy).await, [as_dev("app", "app")], "a snapshot has what there was then");
        for foreign in [born_of(source, snapshot, None), born_of(source, SnapshotId::generate(), Some(2))] {
            let foreign = running(&store, &theirs, foreign).await.id;
            assert_eq!(told(&theirs, foreign).await, [], "another project has nothing of it");
        }

        store.restore_git_remotes(&store.operator(), source, snapshot).await.unwrap();
        assert_eq!(told(&mine, source).await, [as_dev("app", "app")]);
        assert_eq!(told(&mine, child).await, both, "a child keeps its own");
        store.remove_repository(&mine, app.id).await.unwrap();
        assert_eq!(told(&mine, copy).await, []);
    }
}
