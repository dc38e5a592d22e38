//! Events of forges about the pull requests of tasks, and their effects.

use coffer_core::{RepositoryId, TaskId, TaskState};
use coffer_store::{
    AboutPull, AttemptNote, Heard, LogReader, NewRepository, NewTask, ProjectScope, RunEnd, Slots, StartTask,
    Store, TaskRow,
};

use crate::databases::on_both;
use crate::fixtures::project;

async fn repository(store: &Store, scope: &ProjectScope, name: &str) -> RepositoryId {
    let new = NewRepository {
        id: RepositoryId::generate(),
        name: name.parse().unwrap(),
        elsewhere: None,
        default_branch: "main".parse().unwrap(),
    };
    store.create_repository(scope, new).await.unwrap().id
}

fn start() -> StartTask {
    StartTask { agent: None, model: None, replace: false, reason: "started", actor: "key:x".into() }
}

/// A task whose first attempt ended with a pull request.
async fn in_review(store: &Store, scope: &ProjectScope, repository: &str, url: &str) -> TaskId {
    in_review_of(store, scope, repository, url, None).await
}

/// The same for an issue.
async fn in_review_of(
    store: &Store,
    scope: &ProjectScope,
    repository: &str,
    url: &str,
    issue: Option<coffer_core::TaskIssue>,
) -> TaskId {
    let name = format!("a{}", rand_name());
    let agent = store.create_agent(scope, name.as_str()).await.unwrap().id;
    let new = NewTask { repository: Some(repository.into()), agent: Some(agent), ..crate::tasks::new("t") };
    let task = match issue {
        None => store.create_task(scope, new).await.unwrap().id,
        Some(issue) => store.create_task_for_issue(scope, new, issue, false).await.unwrap().0.id,
    };
    store.start_task(scope, task, start()).await.unwrap();
    let operator = store.operator();
    let runner = store.enter_runner(&operator, &rand_name(), 1).await.unwrap();
    let slots = Slots { in_all: 100, per_project: 100 };
    let now = store.task(scope, task).await.unwrap().unwrap().updated_ms + 60_000;
    let taken = store.take_runs(&operator, runner, &["task"], slots, 1, now).await.unwrap();
    let hold = &taken[0].hold;
    let note =
        AttemptNote { pull_url: Some(url.into()), commit: Some("c1".into()), ..AttemptNote::default() };
    store.note_attempt(hold.run, hold.fence, note).await.unwrap();
    store.end_run(hold, &RunEnd::Done(serde_json::json!(null))).await.unwrap();
    let row = store.task(scope, task).await.unwrap().unwrap();
    assert_eq!(row.state, TaskState::InReview);
    task
}

fn rand_name() -> String {
    TaskId::generate().to_string()
}

fn said(source: &str, body: &str) -> Heard {
    let about = Some(("src/a.rs".to_string(), Some(7)));
    Heard::Said { source: source.into(), author: "ada".into(), body: body.into(), about }
}

/// Records events as a follower of the log does.
async fn tell(store: &Store, scope: &ProjectScope, heard: Vec<(AboutPull, Heard)>) -> usize {
    // An event without a pull request, so that there is something to follow.
    store.create_task(scope, crate::tasks::new("other")).await.unwrap();
    let operator = store.operator();
    let behind = store.projects_behind(&operator, LogReader::Reviews, 100).await.unwrap();
    let behind = *behind.iter().find(|behind| behind.project == scope.project()).expect("something happened");
    store.heed_reviews(&operator, behind, behind.newest, heard).await.unwrap().expect("nobody else does it")
}

async fn found(store: &Store, scope: &ProjectScope, task: TaskId) -> TaskRow {
    store.task(scope, task).await.unwrap().unwrap()
}

on_both! {
    async fn a_merge_ends_the_task_and_a_close_wants_a_person(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let app = repository(&store, &mine, "app").await;
        let foreign = repository(&store, &theirs, "app").await;
        let by_name = in_review(&store, &mine, "app", "/api/v1/repositories/app/pulls/7").await;
        let by_id = in_review(&store, &mine, &app.to_string(), "https://github.com/a/b/pull/17").await;
        let not_ours = in_review(&store, &theirs, "app", "/api/v1/repositories/app/pulls/7").await;

        tell(&store, &mine, vec![(AboutPull::Number(app, 17), Heard::Closed)]).await;
        let row = found(&store, &mine, by_id).await;
        assert_eq!((row.state, row.attention.unwrap().code.as_str()), (TaskState::InReview, "pull_closed"));
        tell(&store, &mine, vec![(AboutPull::Number(app, 17), Heard::Reopened)]).await;
        assert_eq!(found(&store, &mine, by_id).await.attention, None);

        // 7 is not 17, and another project's repository does not count.
        tell(&store, &mine, vec![(AboutPull::Number(foreign, 7), Heard::Merged), (AboutPull::Number(app, 8), Heard::Merged)]).await;
        assert_eq!(found(&store, &mine, by_name).await.state, TaskState::InReview);
        tell(&store, &mine, vec![(AboutPull::Number(app, 7), Heard::Merged), (AboutPull::Number(app, 7), Heard::Merged)]).await;
        assert_eq!(found(&store, &mine, by_name).await.state, TaskState::Done);
        assert_eq!(found(&store, &mine, by_id).await.state, TaskState::InReview);
        assert_eq!(found(&store, &theirs, not_ours).await.state, TaskState::InReview);
        let history = store.task_history(&mine, by_name).await.unwrap();
        let last = history.last().unwrap();
        assert_eq!((last.to, last.actor.as_deref()), (TaskState::Done, Some("forge")));
        assert_eq!(history.iter().filter(|moved| moved.to == TaskState::Done).count(), 1);
        // A finished task stays finished.
        tell(&store, &mine, vec![(AboutPull::Number(app, 7), Heard::Closed)]).await;
        assert_eq!(found(&store, &mine, by_name).await.attention, None);
    }

    async fn a_merge_closes_the_local_issue_of_the_task(database: &TestDatabase) {
        let store = database.open().await;
        let mine = project(&store, "mine").await;
        let app = repository(&store, &mine, "app").await;
        let number = store.create_issue(&mine, app, "squeaks", "", "key:x").await.unwrap().number;
        let issue = coffer_core::TaskIssue {
            repository_id: app,
            number,
            url: "/x".into(),
            author: "key:x".into(),
            assignees: Vec::new(),
        };
        let task = in_review_of(&store, &mine, "app", "/x/pulls/3", Some(issue)).await;
        for _ in 0..2 {
            tell(&store, &mine, vec![(AboutPull::Number(app, 3), Heard::Merged)]).await;
        }
        assert_eq!(found(&store, &mine, task).await.state, TaskState::Done);
        let issue = store.issue(&mine, app, number).await.unwrap().unwrap();
        assert_eq!(issue.state, coffer_core::forge::IssueState::Closed);
        let events = store.events(&mine, 0, 1000).await.unwrap();
        assert_eq!(events.iter().filter(|event| event.kind == "issue.closed").count(), 1);
    }

    async fn a_merge_ends_an_attempt_that_is_under_way(database: &TestDatabase) {
        let store = database.open().await;
        let mine = project(&store, "mine").await;
        let app = repository(&store, &mine, "app").await;
        let task = in_review(&store, &mine, "app", "/x/pulls/1").await;
        let (_, run) = store.start_task(&mine, task, start()).await.unwrap();
        tell(&store, &mine, vec![(AboutPull::Number(app, 1), Heard::Merged)]).await;
        assert_eq!(found(&store, &mine, task).await.state, TaskState::Done);
        let run = store.run(&mine, run).await.unwrap().unwrap();
        assert_eq!(run.state, coffer_store::RunState::Cancelled, "it had not begun");
    }

    async fn what_is_said_is_heard_once_and_starts_only_where_that_is_wanted(database: &TestDatabase) {
        let store = database.open().await;
        let mine = project(&store, "mine").await;
        let app = repository(&store, &mine, "app").await;
        let (waits, starts) = (
            in_review(&store, &mine, "app", "/x/pulls/1").await,
            in_review(&store, &mine, "app", "/x/pulls/2").await,
        );
        store.set_on_review(&mine, starts, true).await.unwrap();
        assert!(found(&store, &mine, starts).await.starts_on_review);
        let on = |number| AboutPull::Number(app, number);
        let begun = tell(&store, &mine, vec![(on(1), said("local/1", "why?")), (on(1), said("local/1", "why?"))]).await;
        assert_eq!(begun, 0);
        tell(&store, &mine, vec![(on(1), said("local/1", "why?"))]).await;
        let heard = store.task_messages(&mine, waits, 0, 10).await.unwrap();
        assert_eq!(heard.len(), 1, "{heard:?}");
        assert_eq!((heard[0].author.as_str(), heard[0].body.as_str()), ("ada", "why?"));
        assert_eq!(heard[0].about, Some(serde_json::json!({"file": "src/a.rs", "line": 7})));
        assert_eq!(found(&store, &mine, waits).await.state, TaskState::InReview);

        // A review with two comments is one attempt that got both.
        let begun = tell(&store, &mine, vec![(on(2), said("local/2", "a\0")), (on(2), said("local/3", "b"))]).await;
        assert_eq!(begun, 1);
        let row = found(&store, &mine, starts).await;
        assert_eq!((row.state, row.attempts), (TaskState::InProgress, 2));
        let heard = store.task_messages(&mine, starts, 0, 10).await.unwrap();
        assert!(heard.iter().all(|message| message.run == row.run), "{heard:?}");
        assert_eq!(heard[0].body, "a\u{fffd}");
        // During an attempt, messages wait for its next turn.
        assert_eq!(tell(&store, &mine, vec![(on(2), said("local/4", "c"))]).await, 0);
        assert_eq!(found(&store, &mine, starts).await.attempts, 2);
    }

    async fn an_attempt_that_a_review_begins_is_executed_where_it_was_begun(database: &TestDatabase) {
        let (here, there) = (database.open().await, database.open().await);
        here.act_for(&here.operator(), "here").await.unwrap();
        there.act_for(&there.operator(), "there").await.unwrap();
        let mine = project(&here, "mine").await;
        let app = repository(&here, &mine, "app").await;
        let task = in_review(&here, &mine, "app", "/x/pulls/1").await;
        here.set_on_review(&mine, task, true).await.unwrap();
        // Whichever server handles it, the attempt runs where the repository is.
        assert_eq!(tell(&there, &mine, vec![(AboutPull::Number(app, 1), said("local/1", "why?"))]).await, 1);
        let run = found(&here, &mine, task).await.run;
        let take = async |store: &Store, place: &str| {
            let (operator, slots) = (store.operator(), Slots { in_all: 9, per_project: 9 });
            let runner = store.enter_runner(&operator, place, 0).await.unwrap();
            let taken = store.take_runs(&operator, runner, &["task"], slots, 9, i64::MAX / 2).await.unwrap();
            taken.into_iter().map(|taken| taken.run.id).collect::<Vec<_>>()
        };
        assert!(take(&there, "there").await.is_empty());
        assert_eq!(take(&here, "here").await, Vec::from_iter(run));
    }

    async fn a_failed_check_is_said_and_wants_a_person(database: &TestDatabase) {
        let store = database.open().await;
        let mine = project(&store, "mine").await;
        let app = repository(&store, &mine, "app").await;
        let task = in_review(&store, &mine, "app", "/x/pulls/1").await;
        let failed = |commit: &str| {
            let heard = Heard::CheckFailed { source: format!("check/{commit}/lint"), name: "lint".into() };
            (AboutPull::Commit(app, commit.into()), heard)
        };
        tell(&store, &mine, vec![failed("old"), failed("c1"), failed("c1")]).await;
        let row = found(&store, &mine, task).await;
        assert_eq!(row.attention.unwrap().code.as_str(), "check_failed");
        assert_eq!(store.task_messages(&mine, task, 0, 10).await.unwrap().len(), 1);
    }

    async fn events_are_heeded_once_whoever_follows(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, operator) = (project(&store, "mine").await, store.operator());
        let app = repository(&store, &mine, "app").await;
        let task = in_review(&store, &mine, "app", "/x/pulls/1").await;
        let behind = store.projects_behind(&operator, LogReader::Reviews, 10).await.unwrap();
        let behind = *behind.iter().find(|behind| behind.project == mine.project()).unwrap();
        assert_eq!(behind.position, 0, "a new project's events are all heard");
        let heed = || {
            let heard = vec![(AboutPull::Number(app, 1), said("local/1", "x"))];
            store.heed_reviews(&operator, behind, behind.newest, heard)
        };
        let (one, two) = tokio::join!(heed(), heed());
        let (one, two) = (one.unwrap(), two.unwrap());
        assert!(one.is_some() != two.is_some(), "{one:?} {two:?}");
        assert_eq!(store.task_messages(&mine, task, 0, 10).await.unwrap().len(), 1);
    }
}
