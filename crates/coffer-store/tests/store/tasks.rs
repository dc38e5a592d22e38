//! Tasks, their order, and agents with definitions.

use std::collections::BTreeMap;

use coffer_core::agent::{AgentDefinition, Preset};
use coffer_core::{Priority, RunId, TaskState};
use coffer_store::{
    AgentError, AttemptNote, Cutoffs, NewAgent, NewKey, NewTask, Place, Slots, StartTask, TaskEdit,
    TaskError, TaskFilter, TaskOrder,
};

use crate::databases::on_both;
use crate::fixtures::{comes_in, project, running, sandbox};

pub(crate) fn new(title: &str) -> NewTask {
    NewTask {
        title: title.into(),
        description: "do".into(),
        state: TaskState::Todo,
        priority: Priority::Medium,
        labels: Vec::new(),
        repository: None,
        base_branch: None,
        agent: None,
        model: None,
        check_command: None,
        budget_nanos: None,
        context_id: None,
        actor: "key:x".into(),
    }
}

fn all() -> TaskFilter {
    TaskFilter { limit: 100, ..TaskFilter::default() }
}

on_both! {
    async fn what_agents_report_counts_for_budgets_once(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, operator) = (project(&store, "mine").await, store.operator());
        let task = store.create_task(&mine, new("Add an answer")).await.unwrap().id;
        let start = StartTask { agent: None, model: None, replace: false, reason: "started", actor: "k".into() };
        let (_, run) = store.start_task(&mine, task, start).await.unwrap();
        let runner = store.enter_runner(&operator, "here", 0).await.unwrap();
        let slots = Slots { in_all: 9, per_project: 9 };
        let taken = store.take_runs(&operator, runner, &["task"], slots, 9, i64::MAX / 2).await.unwrap();
        let sandbox = running(&store, &mine, sandbox()).await.id;
        let note = async |cost_nanos| {
            let model = Some("opus".to_string());
            let note = AttemptNote { sandbox: Some(sandbox), cost_nanos, model, ..AttemptNote::default() };
            store.note_attempt(run, taken[0].hold.fence, note).await.unwrap();
        };
        let reported = async |group| {
            let filter = coffer_store::UsageFilter {
                group, sandbox: None, project: None, from_day: 0, to_day: i64::MAX, after: None, limit: 9,
            };
            let lines = store.usage(&mine, &filter).await.unwrap();
            lines.into_iter().map(|line| (line.key, line.label, line.reported_nanos)).collect::<Vec<_>>()
        };
        // Totals, and the same one again, as after a crash.
        for total in [Some(3), Some(3), None, Some(5)] {
            note(total.map(|units: i64| units * 1_000_000_000)).await;
        }
        let five = 5_000_000_000;
        use coffer_store::UsageGroup;
        assert_eq!(reported(UsageGroup::Task).await, [(task.to_string(), Some("Add an answer".into()), five)]);
        assert_eq!(reported(UsageGroup::Model).await, [("opus".to_string(), None, five)]);
        assert_eq!(reported(UsageGroup::Agent).await, [(String::new(), None, five)]);
        let terms = coffer_store::BudgetTerms {
            amount_nanos: five, warn_at: vec![], action: coffer_store::BudgetAction::Pause,
        };
        let budget = store.create_budget(&mine, None, coffer_store::BudgetPeriod::Total, terms).await.unwrap();
        assert_eq!(store.spent(&operator, &budget, 0).await.unwrap(), five);
        let other = project(&store, "other").await;
        let filter = coffer_store::UsageFilter {
            group: UsageGroup::Model, sandbox: None, project: None, from_day: 0, to_day: i64::MAX, after: None, limit: 9,
        };
        assert_eq!(store.usage(&other, &filter).await.unwrap(), []);
        // What an agent says is bounded.
        note(Some(i64::MAX)).await;
        assert_eq!(store.spent(&operator, &budget, 0).await.unwrap(), 1_000 * 1_000_000_000);
    }

    async fn one_run_at_a_time_has_a_login(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let agent = store.create_agent(&mine, "one").await.unwrap();
        let task = store.create_task(&mine, NewTask { agent: Some(agent.id), ..new("t") }).await.unwrap();
        let start = StartTask { agent: None, model: None, replace: false, reason: "started", actor: "test".into() };
        let (_, run) = store.start_task(&mine, task.id, start).await.unwrap();
        let other = RunId::generate();
        assert!(store.take_login(&mine, "codex", run, None).await.unwrap());
        assert!(store.take_login(&mine, "codex", run, None).await.unwrap(), "again, after a crash");
        assert!(!store.take_login(&mine, "codex", other, None).await.unwrap());
        assert!(store.take_login(&mine, "gemini", other, None).await.unwrap(), "another login");
        assert!(store.take_login(&theirs, "codex", other, None).await.unwrap(), "another project's");
        store.release_logins(&theirs, run).await.unwrap();
        assert!(!store.take_login(&mine, "codex", other, None).await.unwrap(), "theirs releases nothing of mine");
        // A run that ended without a word holds nothing.
        store.cancel_task(&mine, task.id, "enough", "test").await.unwrap();
        assert!(store.take_login(&mine, "codex", other, Some(60_000)).await.unwrap());
        assert!(!store.take_login(&mine, "codex", run, None).await.unwrap(), "until its time is over");
        store.release_logins(&mine, other).await.unwrap();
        assert!(store.take_login(&mine, "codex", run, None).await.unwrap());
    }

    async fn tasks_are_found_by_what_they_are(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let agent = store.create_agent(&mine, "one").await.unwrap();
        let labelled = NewTask {
            labels: vec!["bug".into(), "é".into()],
            agent: Some(agent.id),
            priority: Priority::Urgent,
            repository: Some("local/app".into()),
            context_id: Some("h-1".into()),
            ..new("first\0")
        };
        let first = store.create_task(&mine, labelled).await.unwrap();
        let second = store.create_task(&mine, NewTask { state: TaskState::Backlog, ..new("second") }).await.unwrap();
        assert_eq!((&*first.title, &first.labels), ("first\u{fffd}", &vec!["bug".to_string(), "é".into()]));
        let foreign = store.create_task(&theirs, NewTask { agent: Some(agent.id), ..new("x") }).await;
        assert!(matches!(foreign, Err(TaskError::NoAgent(_))), "{foreign:?}");
        assert!(store.task(&theirs, first.id).await.unwrap().is_none());
        assert!(store.tasks(&theirs, &all()).await.unwrap().is_empty());
        let found = async |filter: TaskFilter| {
            let rows = store.tasks(&mine, &filter).await.unwrap();
            rows.into_iter().map(|task| task.id).collect::<Vec<_>>()
        };
        assert_eq!(found(all()).await, [second.id, first.id]);
        assert_eq!(found(TaskFilter { limit: 1, after: Some((0, second.id)), ..all() }).await, [first.id]);
        for filter in [
            TaskFilter { state: Some(TaskState::Todo), ..all() },
            TaskFilter { label: Some("é".into()), ..all() },
            TaskFilter { agent: Some(agent.id), ..all() },
            TaskFilter { priority: Some(Priority::Urgent), ..all() },
            TaskFilter { repository: Some("local/app".into()), ..all() },
            TaskFilter { context_id: Some("h-1".into()), ..all() },
        ] {
            assert_eq!(found(filter.clone()).await, [first.id], "{filter:?}");
        }
        assert!(found(TaskFilter { attention: Some(true), ..all() }).await.is_empty());
        assert_eq!(found(TaskFilter { attention: Some(false), ..all() }).await.len(), 2);
        // An agent sees its own tasks.
        let terms = NewKey { agent: Some(agent.id), ..NewKey::from("a") };
        let key = store.create_key(&store.operator(), mine.project(), terms).await.unwrap();
        let agents = comes_in(&store, key.reveal()).await.scope;
        assert_eq!(store.tasks(&agents, &all()).await.unwrap().len(), 1);
        assert!(store.task(&agents, second.id).await.unwrap().is_none());
        let told = store.events(&agents, 0, 100).await.unwrap();
        assert!(told.iter().all(|event| event.subject == first.id.to_string()) && !told.is_empty());
    }

    async fn attempts_are_executed_where_they_were_begun(database: &TestDatabase) {
        let (here, there) = (database.open().await, database.open().await);
        here.act_for(&here.operator(), "here").await.unwrap();
        there.act_for(&there.operator(), "there").await.unwrap();
        let mine = project(&here, "mine").await;
        let start = || StartTask { agent: None, model: None, replace: false, reason: "started", actor: "k".into() };
        let take_at = async |store: &coffer_store::Store, place: &str, now: i64| {
            let (operator, slots) = (store.operator(), Slots { in_all: 9, per_project: 9 });
            let runner = store.enter_runner(&operator, place, 0).await.unwrap();
            let taken = store.take_runs(&operator, runner, &["task"], slots, 9, now).await.unwrap();
            taken.into_iter().map(|taken| taken.run.id).collect::<Vec<_>>()
        };
        let take = async |store: &coffer_store::Store, place: &str| take_at(store, place, i64::MAX / 2).await;
        let task = here.create_task(&mine, new("a")).await.unwrap();
        let (_, run) = here.start_task(&mine, task.id, start()).await.unwrap();
        assert!(take(&there, "there").await.is_empty());
        assert_eq!(take(&here, "here").await, [run]);
        // Its server comes back; another one may only end the run, and only if that server is gone: only that
        // one can release its resources.
        let again = here.enter_runner(&here.operator(), "here", 0).await.unwrap();
        here.leave_runner(&here.operator(), again).await.unwrap();
        assert!(take(&there, "there").await.is_empty());
        there.cancel_task(&mine, task.id, "not wanted", "k").await.unwrap();
        let back = here.enter_runner(&here.operator(), "here", 0).await.unwrap();
        assert!(take(&there, "there").await.is_empty());
        here.leave_runner(&here.operator(), back).await.unwrap();
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let soon = i64::try_from(since.as_millis()).unwrap() + 60_000;
        assert!(take_at(&there, "there", soon).await.is_empty(), "it may only be starting anew");
        assert_eq!(take(&there, "there").await, [run]);
    }

    async fn what_was_said_is_told_in_parts_that_a_journal_can_hold(database: &TestDatabase) {
        let store = database.open().await;
        let mine = project(&store, "mine").await;
        let task = store.create_task(&mine, new("a")).await.unwrap().id;
        // Quotes are twice as long in the journal.
        for body in ["x".repeat(30_000), "y".repeat(30_000), "\"".repeat(20_000), "\"".repeat(40_000), "z".into()] {
            store.say_to_task(&mine, task, "ann", &body, None).await.unwrap();
        }
        let start = StartTask { agent: None, model: None, replace: false, reason: "started", actor: "k".into() };
        let (_, run) = store.start_task(&mine, task, start).await.unwrap();
        let heard = async |after| {
            let heard = store.hear_task(run, task, after).await.unwrap();
            assert!(heard.iter().all(|message| message.run == Some(run)));
            heard.iter().map(|message| message.number).collect::<Vec<_>>()
        };
        assert_eq!(heard(0).await, [1, 2]);
        assert_eq!(heard(0).await, [1, 2], "asked again, it is the same");
        let rest = store.task_messages(&mine, task, 2, 9).await.unwrap();
        assert!(rest.iter().all(|message| message.run.is_none()), "nobody was told the rest");
        assert_eq!(heard(2).await, [3]);
        assert_eq!(heard(3).await, [4], "one that is too long for any part is told alone");
        assert_eq!(heard(4).await, [5]);
        assert!(heard(5).await.is_empty());
    }

    async fn a_column_has_an_order_that_survives_many_moves(database: &TestDatabase) {
        let store = database.open().await;
        let mine = project(&store, "mine").await;
        let mut order = Vec::new();
        for title in ["a", "b", "c"] {
            order.push(store.create_task(&mine, new(title)).await.unwrap().id);
        }
        // The last is moved between the first two repeatedly, until there is no room.
        for _ in 0..60 {
            let last = order[2];
            let edit = TaskEdit { place: Some(Place::After(order[0])), ..TaskEdit::default() };
            store.edit_task(&mine, last, None, edit, "test").await.unwrap();
            order = vec![order[0], last, order[1]];
        }
        let edit = TaskEdit { place: Some(Place::First), ..TaskEdit::default() };
        store.edit_task(&mine, order[2], None, edit, "test").await.unwrap();
        let expected = [order[2], order[0], order[1]];
        let board = |after| TaskFilter { order: TaskOrder::Board, state: Some(TaskState::Todo), after, ..all() };
        let rows = store.tasks(&mine, &board(None)).await.unwrap();
        assert_eq!(rows.iter().map(|task| task.id).collect::<Vec<_>>(), expected);
        let rest = store.tasks(&mine, &board(Some((rows[0].place, rows[0].id)))).await.unwrap();
        assert_eq!(rest.iter().map(|task| task.id).collect::<Vec<_>>(), expected[1..]);
        let elsewhere = store.create_task(&mine, NewTask { state: TaskState::Done, ..new("d") }).await.unwrap();
        let edit = TaskEdit { place: Some(Place::After(elsewhere.id)), ..TaskEdit::default() };
        let refused = store.edit_task(&mine, order[0], None, edit, "test").await;
        assert!(matches!(refused, Err(TaskError::NoNeighbour(_))), "{refused:?}");
    }

    async fn a_change_is_by_version_and_not_under_an_attempt(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let agent = store.create_agent(&mine, "one").await.unwrap();
        let task = store.create_task(&mine, NewTask { agent: Some(agent.id), ..new("t") }).await.unwrap();
        let title = |title: &str| TaskEdit { title: Some(title.into()), ..TaskEdit::default() };
        let changed = store.edit_task(&mine, task.id, Some(1), title("u"), "test").await.unwrap();
        assert_eq!((changed.version, &*changed.title), (2, "u"));
        let late = store.edit_task(&mine, task.id, Some(1), title("v"), "test").await;
        assert!(matches!(late, Err(TaskError::Changed)), "{late:?}");
        let foreign = store.edit_task(&theirs, task.id, None, title("v"), "test").await;
        assert!(matches!(foreign, Err(TaskError::NotFound)), "{foreign:?}");
        let start = || StartTask { agent: None, model: None, replace: false, reason: "started", actor: "test".into() };
        assert!(matches!(store.start_task(&theirs, task.id, start()).await, Err(TaskError::NotFound)));
        let (started, run) = store.start_task(&mine, task.id, start()).await.unwrap();
        assert_eq!((started.state, started.run, started.attempts), (TaskState::InProgress, Some(run), 1));
        assert!(matches!(store.start_task(&mine, task.id, start()).await, Err(TaskError::Busy)));
        let done = TaskEdit { state: Some(TaskState::Done), ..TaskEdit::default() };
        assert!(matches!(store.edit_task(&mine, task.id, None, done.clone(), "test").await, Err(TaskError::Busy)));
        assert!(matches!(store.delete_task(&mine, task.id).await, Err(TaskError::Busy)));
        store.edit_task(&mine, task.id, None, title("w"), "test").await.unwrap();
        // It has not begun, so it ends at once.
        assert!(matches!(store.cancel_task(&theirs, task.id, "x", "test").await, Err(TaskError::NotFound)));
        let cancelled = store.cancel_task(&mine, task.id, "enough", "test").await.unwrap();
        assert_eq!(cancelled.state, TaskState::Cancelled);
        assert_eq!(store.attempts(&mine, task.id).await.unwrap()[0].state, "cancelled");
        store.edit_task(&mine, task.id, None, done, "test").await.unwrap();
        let archive = TaskEdit { archived: Some(true), ..TaskEdit::default() };
        store.edit_task(&mine, task.id, None, archive, "test").await.unwrap();
        assert!(matches!(store.start_task(&mine, task.id, start()).await, Err(TaskError::Archived)));
        assert!(store.tasks(&mine, &all()).await.unwrap().is_empty());
        assert_eq!(store.tasks(&mine, &TaskFilter { archived: true, ..all() }).await.unwrap().len(), 1);
        assert!(matches!(store.delete_task(&theirs, task.id).await, Err(TaskError::NotFound)));
        store.delete_task(&mine, task.id).await.unwrap();
        assert!(store.run(&mine, run).await.unwrap().is_none());
        let kinds: Vec<String> =
            store.events(&mine, 0, 100).await.unwrap().into_iter().map(|event| event.kind).collect();
        assert_eq!(
            kinds,
            [
                "task.created", "task.changed", "task.moved", "run.queued", "task.changed", "task.moved", "run.ended",
                "task.moved", "task.moved", "task.changed", "task.deleted",
            ]
        );
    }

    async fn an_agents_definition_is_sealed_and_changes_by_version(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let env = BTreeMap::from([("TOKEN".to_string(), "very-private-value".to_string())]);
        let definition = AgentDefinition { env, ..AgentDefinition::of(Preset::ClaudeCode) };
        let agent = store.create_agent(&mine, NewAgent { name: "one".into(), definition: Some(definition.clone()) }).await.unwrap();
        let found = store.agent(&mine, agent.id).await.unwrap().unwrap();
        assert_eq!((found.definition.as_ref(), found.version, found.sealed), (Some(&definition), 1, false));
        assert!(!database.holds_on_disk("very-private-value"));
        let other = AgentDefinition::of(Preset::Codex);
        let changed = store.define_agent(&mine, agent.id, Some(1), other.clone()).await.unwrap();
        assert_eq!((changed.version, changed.definition.as_ref()), (2, Some(&other)));
        let late = store.define_agent(&mine, agent.id, Some(1), other.clone()).await;
        assert!(matches!(late, Err(AgentError::Changed)), "{late:?}");
        let foreign = store.define_agent(&theirs, agent.id, None, other).await;
        assert!(matches!(foreign, Err(AgentError::NotFound)), "{foreign:?}");
        assert_eq!(store.agents(&mine, None, 10).await.unwrap(), [changed]);
    }

    async fn an_attempt_keeps_the_ids_of_what_is_pruned(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, operator) = (project(&store, "mine").await, store.operator());
        let task = store.create_task(&mine, new("a")).await.unwrap().id;
        let start = StartTask { agent: None, model: None, replace: false, reason: "started", actor: "k".into() };
        let (_, run) = store.start_task(&mine, task, start).await.unwrap();
        let runner = store.enter_runner(&operator, "here", 0).await.unwrap();
        let slots = Slots { in_all: 9, per_project: 9 };
        let taken = store.take_runs(&operator, runner, &["task"], slots, 9, i64::MAX / 2).await.unwrap();
        // From before the column: only the attempt has it.
        let sandbox = running(&store, &mine, sandbox()).await.id;
        let note = AttemptNote { sandbox: Some(sandbox), ..AttemptNote::default() };
        store.note_attempt(run, taken[0].hold.fence, note).await.unwrap();
        let of_task = async || store.sandbox(&mine, sandbox).await.unwrap().unwrap().task;
        assert_eq!(of_task().await, None);
        let migration = include_str!("../../migrations/0023_sandbox_tasks.sql");
        for statement in migration.split(';').filter(|statement| statement.contains("UPDATE sandboxes")) {
            database.execute(statement).await;
        }
        assert_eq!(of_task().await, Some(task));
        database.execute("UPDATE sandboxes SET ended_ms = 1, state = 'terminated'").await;
        database.execute("UPDATE runs SET ended_ms = 1, state = 'done'").await;
        let cutoffs = Cutoffs { records_ms: 2, events_ms: 0, audit_ms: 0 };
        let pruned = store.prune(&operator, Some(mine.project()), cutoffs, 10).await.unwrap();
        assert_eq!((pruned.sandboxes, pruned.runs), (1, 1));
        let [attempt] = store.attempts(&mine, task).await.unwrap().try_into().unwrap();
        assert_eq!((attempt.run, attempt.note.sandbox), (run, Some(sandbox)));
    }
}
