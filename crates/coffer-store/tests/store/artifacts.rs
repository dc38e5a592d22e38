//! Records of artifacts: links, limits and visibility.

use coffer_core::{ArtifactId, RunId, SandboxId, TaskId};
use coffer_store::{
    ArtifactContents, ArtifactError, ArtifactFilter, ArtifactKind, ArtifactLinks, MOST_ARTIFACTS,
    NewArtifact, NewTask, StartTask,
};
use serde_json::json;

use crate::databases::on_both;
use crate::fixtures::{project, running, sandbox};

fn new(size_bytes: i64) -> NewArtifact {
    NewArtifact {
        id: ArtifactId::generate(),
        kind: ArtifactKind::File,
        name: "a\0b".into(),
        content_type: "text/plain".into(),
        description: String::new(),
        links: ArtifactLinks::default(),
        contents: ArtifactContents::Kept { size_bytes, sha256: "00".into() },
        once_key: None,
        actor: "key:x".into(),
    }
}

fn about(links: ArtifactLinks) -> ArtifactFilter {
    ArtifactFilter { links, limit: 10, ..ArtifactFilter::default() }
}

on_both! {
    async fn an_artifact_is_found_by_what_it_is_about(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let task = NewTask { context_id: Some("h-1".into()), ..crate::tasks::new("t") };
        let task = store.create_task(&mine, task).await.unwrap().id;
        let start =
            StartTask { agent: None, model: None, replace: false, reason: "asked", actor: "key:x".into() };
        let (_, run) = store.start_task(&mine, task, start).await.unwrap();
        let of_run = ArtifactLinks { run: Some(run), ..ArtifactLinks::default() };
        let (first, is_new) =
            store.add_artifact(&mine, NewArtifact { links: of_run.clone(), ..new(1) }, 10).await.unwrap();
        assert!(is_new);
        assert_eq!((first.links.task, first.links.context_id.as_deref()), (Some(task), Some("h-1")));
        assert_eq!(first.name, "a\u{fffd}b");
        let alone = ArtifactLinks { context_id: Some("h-2".into()), ..ArtifactLinks::default() };
        let (second, _) =
            store.add_artifact(&mine, NewArtifact { links: alone.clone(), ..new(1) }, 10).await.unwrap();
        let by = async |links| {
            let found = store.artifacts(&mine, &about(links)).await.unwrap();
            found.into_iter().map(|row| row.id).collect::<Vec<_>>()
        };
        assert_eq!(by(ArtifactLinks::default()).await, [second.id, first.id]);
        assert_eq!(by(of_run).await, [first.id]);
        assert_eq!(by(ArtifactLinks { task: Some(task), ..ArtifactLinks::default() }).await, [first.id]);
        assert_eq!(by(alone).await, [second.id]);
        assert_eq!(by(ArtifactLinks { sandbox: Some(SandboxId::generate()), ..ArtifactLinks::default() }).await, []);

        // Links to missing things, or to another project's, are refused.
        let foreign = running(&store, &theirs, sandbox()).await.id;
        for (links, what) in [
            (ArtifactLinks { run: Some(RunId::generate()), ..ArtifactLinks::default() }, "run"),
            (ArtifactLinks { task: Some(TaskId::generate()), ..ArtifactLinks::default() }, "task"),
            (ArtifactLinks { sandbox: Some(foreign), ..ArtifactLinks::default() }, "sandbox"),
        ] {
            let refused = store.add_artifact(&mine, NewArtifact { links, ..new(1) }, 10).await;
            assert!(matches!(refused, Err(ArtifactError::NoSuch(name)) if name == what), "{refused:?}");
        }
        assert_eq!(store.artifact(&theirs, first.id).await.unwrap(), None);
        assert_eq!(store.remove_artifact(&theirs, first.id).await.unwrap(), None);
        assert!(store.artifacts(&theirs, &about(ArtifactLinks::default())).await.unwrap().is_empty());

        let events = store.events(&mine, 0, 100).await.unwrap();
        let told: Vec<_> = events.iter().filter(|event| event.kind == "artifact.created").collect();
        assert_eq!((told.len(), &*told[0].subject), (2, &*task.to_string()));
        assert_eq!(told[1].payload["context_id"], json!("h-2"));
        assert_eq!(store.remove_artifact(&mine, first.id).await.unwrap(), Some(first.clone()));
        assert_eq!(store.remove_artifact(&mine, first.id).await.unwrap(), None);
        let known = store.known_artifacts(&store.operator(), &[first.id, second.id]).await.unwrap();
        assert_eq!(known, [second.id]);
    }

    async fn a_project_keeps_no_more_than_it_may(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        store.add_artifact(&theirs, new(9), 10).await.unwrap();
        let (one, two) = tokio::join!(store.add_artifact(&mine, new(6), 10), store.add_artifact(&mine, new(6), 10));
        let refused = if one.is_ok() { two } else { one };
        assert!(matches!(refused, Err(ArtifactError::OverQuota { used: 6, limit: 10 })), "{refused:?}");
        assert_eq!(store.artifact_bytes(&mine).await.unwrap(), 6);
        store.add_artifact(&mine, new(4), 10).await.unwrap();
        // A link takes no space.
        let link = ArtifactContents::Link { url: "https://example.com/pull/1".into() };
        let (link, _) = store.add_artifact(&mine, NewArtifact { contents: link, ..new(0) }, 10).await.unwrap();
        assert_eq!((link.size_bytes, link.sha256, link.url.as_deref()), (0, None, Some("https://example.com/pull/1")));
        // Deleting frees space.
        let kept = store.artifacts(&mine, &about(ArtifactLinks::default())).await.unwrap();
        for row in kept {
            store.remove_artifact(&mine, row.id).await.unwrap().expect("it is there");
        }
        assert_eq!(store.artifact_bytes(&mine).await.unwrap(), 0);
        store.add_artifact(&mine, new(10), 10).await.unwrap();
        assert_eq!(store.artifact_bytes(&theirs).await.unwrap(), 9);
    }

    async fn a_project_has_no_more_artifacts_than_it_may(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let (first, _) = store.add_artifact(&mine, new(0), 10).await.unwrap();
        let mut connection = database.connect().await;
        let full = format!("UPDATE projects SET artifact_count = {MOST_ARTIFACTS} WHERE id = '{}'", mine.project());
        sqlx::query(sqlx::AssertSqlSafe(full)).execute(&mut connection).await.unwrap();
        let link = ArtifactContents::Link { url: "https://example.com/".into() };
        for contents in [link, ArtifactContents::Kept { size_bytes: 0, sha256: "00".into() }] {
            let refused = store.add_artifact(&mine, NewArtifact { contents, ..new(0) }, 10).await;
            assert!(matches!(refused, Err(ArtifactError::TooMany)), "{refused:?}");
        }
        store.add_artifact(&theirs, new(0), 10).await.unwrap();
        store.remove_artifact(&mine, first.id).await.unwrap().expect("it is there");
        store.add_artifact(&mine, new(0), 10).await.unwrap();
    }

    async fn what_a_run_keeps_it_keeps_once(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let keyed = || NewArtifact { once_key: Some("run/1/diff".into()), ..new(3) };
        let (one, two) =
            tokio::join!(store.add_artifact(&mine, keyed(), 10), store.add_artifact(&mine, keyed(), 10));
        let ((one, first), (two, second)) = (one.unwrap(), two.unwrap());
        assert!(first != second, "one of them is new");
        assert_eq!(one, two);
        assert_eq!(store.artifact_once(&mine, "run/1/diff").await.unwrap(), Some(one));
        assert_eq!(store.artifact_once(&theirs, "run/1/diff").await.unwrap(), None);
        assert!(store.add_artifact(&theirs, keyed(), 10).await.unwrap().1);
    }
}
