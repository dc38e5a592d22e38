//! Tasks for issues, and what starts them.

use coffer_core::{RepositoryId, TaskIssue, TaskState};
use coffer_store::{
    ConnectionTerms, Credential, LogReader, NewConnection, NewRepository, NewTask, ProjectScope, Remark,
    Store, Triggered,
};

use crate::databases::on_both;
use crate::fixtures::project;

fn issue(repository: RepositoryId, number: i64) -> TaskIssue {
    TaskIssue { repository_id: repository, number, url: "/x".into(), author: "eve".into(), assignees: vec![] }
}

async fn on_github(
    store: &Store,
    scope: &ProjectScope,
    name: &str,
    webhook_secret: Option<&str>,
) -> RepositoryId {
    let kind = coffer_core::forge::ForgeKind::GitHub;
    let terms = ConnectionTerms {
        credential: Credential::Token { secret: "t".into() },
        webhook_secret: webhook_secret.map(String::from),
    };
    let new = NewConnection { name: name.into(), kind, base_url: "https://api.github.com".into(), terms };
    let connection = store.create_connection(scope, new).await.unwrap().id;
    let new = |id| NewRepository {
        id,
        name: name.parse().unwrap(),
        elsewhere: Some((kind, connection, "octo/App".into())),
        default_branch: "main".parse().unwrap(),
    };
    let made = store.adopt_repository(scope, new(RepositoryId::generate())).await.unwrap();
    // The same remote is the same record, whatever its case.
    let again = NewRepository {
        name: "other".parse().unwrap(),
        elsewhere: Some((kind, connection, "OCTO/app".into())),
        ..new(RepositoryId::generate())
    };
    assert_eq!(store.adopt_repository(scope, again).await.unwrap().id, made.id);
    made.id
}

on_both! {
    async fn an_issue_has_one_open_task(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let app = RepositoryId::generate();
        let make = |scope: ProjectScope, another| {
            let store = store.clone();
            async move { store.create_task_for_issue(&scope, crate::tasks::new("t"), issue(app, 7), another).await.unwrap() }
        };
        let (first, is_new) = make(mine, false).await;
        assert!(is_new && first.issue == Some(issue(app, 7)));
        let ((again, no), (foreign, yes)) = (make(mine, false).await, make(theirs, false).await);
        assert!(!no && again.id == first.id && yes && foreign.id != first.id);
        assert!(make(mine, true).await.1);
        let found = store.open_task_for_issue(&mine, &issue(app, 7).key()).await.unwrap().unwrap();
        assert_ne!(found.id, first.id, "the newest one");
        for task in [first.id, found.id] {
            store.cancel_task(&mine, task, "x", "y").await.unwrap();
        }
        assert!(store.open_task_for_issue(&mine, &issue(app, 7).key()).await.unwrap().is_none());
        assert!(make(mine, false).await.1);
    }

    async fn a_trigger_starts_once_and_says_once(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let agent = store.create_agent(&mine, "a").await.unwrap().id;
        let task = store.create_task(&mine, NewTask { repository: Some("app".into()), ..crate::tasks::new("t") }).await.unwrap().id;
        let remark = |source: &str| Some(Remark { source: source.into(), author: "ada".into(), body: "go".into() });
        let go = async |source: &str, remark| store.trigger_task(&mine, task, source, Some(agent), "github:ada", remark).await;
        assert_eq!(go("log/1", remark("c/1")).await.unwrap(), Triggered::Started);
        assert_eq!(go("log/1", remark("c/1")).await.unwrap(), Triggered::Known);
        assert_eq!(go("log/2", remark("c/1")).await.unwrap(), Triggered::Running);
        assert_eq!(go("log/3", remark("c/2")).await.unwrap(), Triggered::Running);
        let row = store.task(&mine, task).await.unwrap().unwrap();
        assert_eq!((row.state, row.attempts, row.agent), (TaskState::InProgress, 1, Some(agent)));
        assert_eq!(store.task_messages(&mine, task, 0, 10).await.unwrap().len(), 2);
        assert!(store.trigger_task(&theirs, task, "log/1", None, "x", None).await.is_err());
        assert!(store.claim_trigger(&theirs, "log/1").await.unwrap(), "what failed is not remembered");
    }

    async fn a_forge_is_asked_by_one_server_at_a_time(database: &TestDatabase) {
        let (store, other) = (database.open().await, database.open().await);
        let mine = project(&store, "mine").await;
        let operator = store.operator();
        let asked = on_github(&store, &mine, "asked", None).await;
        on_github(&store, &mine, "told", Some("hook")).await;
        let claim = async |store: &Store, every| store.claim_polls(&store.operator(), mine.project(), every, 10).await.unwrap();
        let (one, two) = tokio::join!(claim(&store, 60_000), claim(&other, 60_000));
        let claimed: Vec<_> = one.iter().chain(&two).collect();
        assert_eq!((claimed.len(), claimed[0].repository), (1, asked));
        assert!(claim(&store, 60_000).await.is_empty(), "not yet");
        let since = claimed[0].since_ms + 5;
        store.note_poll(&operator, asked, since, Some(0)).await.unwrap();
        assert_eq!(claim(&other, 60_000).await[0].since_ms, since);
        let (behind, has_begun) = store.reader_of(&operator, LogReader::Triggers, mine.project()).await.unwrap().unwrap();
        assert!(!has_begun && behind.newest > 0);
        assert!(store.pass_events(&operator, LogReader::Triggers, behind, behind.newest).await.unwrap());
        assert!(store.reader_of(&operator, LogReader::Triggers, mine.project()).await.unwrap().unwrap().1);
    }
}
