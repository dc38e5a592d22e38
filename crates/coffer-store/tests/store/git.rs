//! Git in sandboxes, on record.

use coffer_core::RepositoryId;
use coffer_store::{ChangeError, GitOutcome, GitRemote, GitState, NewRepository};
use serde_json::json;

use crate::databases::on_both;
use crate::fixtures::{project, running, sandbox};

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
        // Once ended, it stays so.
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
        let new = |name: &str| NewRepository {
            id: RepositoryId::generate(),
            name: name.parse().unwrap(),
            elsewhere: None,
            default_branch: "main".parse().unwrap(),
        };
        let app = store.create_repository(&mine, new("app")).await.unwrap();
        let other = store.create_repository(&theirs, new("app")).await.unwrap();
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
}
