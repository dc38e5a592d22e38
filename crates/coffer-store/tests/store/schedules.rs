//! Schedules: each time starts once, whoever is there.

use coffer_core::TaskState;
use coffer_core::schedule::{Overlap, TaskTemplate};
use coffer_store::{
    Fired, Firing, MOST_OPEN, MOST_SCHEDULES, ProjectScope, ScheduleError, ScheduleRow, ScheduleTerms, Store,
};

use crate::databases::on_both;
use crate::fixtures::project;

const DUE: i64 = 1_000;
const THEN: i64 = 90_000;

async fn terms(store: &Store, scope: &ProjectScope, name: &str) -> ScheduleTerms {
    let agent = store.create_agent(scope, &*format!("of {name}")).await.unwrap().id;
    ScheduleTerms {
        name: name.into(),
        cron: "0 * * * *".into(),
        time_zone: "UTC".into(),
        template: TaskTemplate { title: "Nightly".into(), agent: Some(agent), ..TaskTemplate::default() },
        overlap: Overlap::Skip,
        enabled: true,
        next_ms: Some(DUE),
    }
}

fn due(row: &ScheduleRow) -> Firing {
    Firing { template: row.template.clone(), then_ms: Some(THEN), by: None, schedule: row.clone() }
}

on_both! {
    async fn a_time_starts_once_with_two_servers(database: &TestDatabase) {
        let (one, other) = (database.open().await, database.open().await);
        let scope = project(&one, "mine").await;
        let made = one.create_schedule(&scope, terms(&one, &scope, "nightly").await, "key:x").await.unwrap();
        assert!(one.due_schedules(&one.operator(), DUE - 1, 10).await.unwrap().is_empty());
        let [seen]: [ScheduleRow; 1] = one.due_schedules(&one.operator(), DUE, 10).await.unwrap().try_into().unwrap();
        assert_eq!(seen, made);
        let (here, there) = tokio::join!(one.fire_schedule(due(&seen)), other.fire_schedule(due(&seen)));
        let mut fired = [here.unwrap(), there.unwrap()];
        fired.sort_by_key(|fired| *fired == Fired::Gone);
        let [Fired::Started(task, run), Fired::Gone] = fired else { panic!("{fired:?}") };
        let row = one.task(&scope, task).await.unwrap().unwrap();
        assert_eq!((row.state, row.run, &*row.title), (TaskState::InProgress, Some(run), "Nightly"));
        let after = one.schedule(&scope, made.id).await.unwrap().unwrap();
        assert_eq!((after.next_ms, after.last_task, after.last_outcome.as_deref()), (Some(THEN), Some(task), Some("started")));
        assert!(one.due_schedules(&one.operator(), DUE, 10).await.unwrap().is_empty());
    }

    async fn an_open_task_is_not_joined_by_another(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "mine").await;
        let made = store.create_schedule(&scope, terms(&store, &scope, "nightly").await, "key:x").await.unwrap();
        let Fired::Started(task, _) = store.fire_schedule(due(&made)).await.unwrap() else { panic!() };
        let again = |next_ms| {
            let row = ScheduleRow { next_ms, ..made.clone() };
            Firing { then_ms: Some(THEN), ..due(&row) }
        };
        let skipped = store.fire_schedule(again(Some(THEN))).await.unwrap();
        assert!(matches!(&skipped, Fired::Skipped(why) if why.contains("still open")), "{skipped:?}");
        let row = store.schedule(&scope, made.id).await.unwrap().unwrap();
        assert_eq!((row.last_outcome.as_deref(), row.last_task), (Some("skipped"), Some(task)));

        // A person starts it all the same, within bounds.
        let by_hand = Firing { by: Some("key:x".into()), ..due(&made) };
        for _ in 1..MOST_OPEN {
            assert!(matches!(store.fire_schedule(by_hand.clone()).await.unwrap(), Fired::Started(..)));
        }
        assert!(matches!(store.fire_schedule(by_hand).await.unwrap(), Fired::Skipped(_)));
        let row = store.schedule(&scope, made.id).await.unwrap().unwrap();
        assert_eq!(row.next_ms, Some(THEN), "its time stays");
    }

    async fn what_cannot_start_leaves_no_task_and_says_why(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "mine").await;
        let mut wanted = terms(&store, &scope, "nightly").await;
        wanted.template.agent = Some(coffer_core::AgentId::generate());
        let made = store.create_schedule(&scope, wanted, "key:x").await.unwrap();
        let fired = store.fire_schedule(due(&made)).await.unwrap();
        assert!(matches!(&fired, Fired::Failed(why) if why.contains("not found")), "{fired:?}");
        let row = store.schedule(&scope, made.id).await.unwrap().unwrap();
        assert_eq!((row.next_ms, row.last_outcome.as_deref()), (Some(THEN), Some("failed")));
        let tasks = store.tasks(&scope, &coffer_store::TaskFilter { limit: 10, ..Default::default() }).await.unwrap();
        assert!(tasks.is_empty());
    }

    async fn schedules_belong_to_their_project_and_are_bounded(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let wanted = terms(&store, &mine, "0").await;
        let made = store.create_schedule(&mine, wanted.clone(), "key:x").await.unwrap();
        assert!(store.schedule(&theirs, made.id).await.unwrap().is_none());
        assert!(store.schedules(&theirs, None, 10).await.unwrap().is_empty());
        let stolen = store.set_schedule(&theirs, made.id, None, wanted.clone(), "key:y").await;
        assert!(matches!(stolen, Err(ScheduleError::NotFound)), "{stolen:?}");
        assert!(matches!(store.delete_schedule(&theirs, made.id, "key:y").await, Err(ScheduleError::NotFound)));
        let twice = store.create_schedule(&mine, wanted.clone(), "key:x").await;
        assert!(matches!(twice, Err(ScheduleError::NameTaken)), "{twice:?}");

        let paused = ScheduleTerms { enabled: false, next_ms: None, ..wanted.clone() };
        let paused = store.set_schedule(&mine, made.id, Some(made.version), paused, "key:x").await.unwrap();
        assert!(!paused.enabled && store.due_schedules(&store.operator(), i64::MAX, 10).await.unwrap().is_empty());
        let late = store.set_schedule(&mine, made.id, Some(made.version), wanted.clone(), "key:x").await;
        assert!(matches!(late, Err(ScheduleError::Changed)), "{late:?}");
        for number in 1..MOST_SCHEDULES {
            let named = ScheduleTerms { name: number.to_string(), ..wanted.clone() };
            store.create_schedule(&mine, named, "key:x").await.unwrap();
        }
        let more = ScheduleTerms { name: "more".into(), ..wanted };
        assert!(matches!(store.create_schedule(&mine, more, "key:x").await, Err(ScheduleError::TooMany)));
        store.delete_schedule(&mine, made.id, "key:x").await.unwrap();
        let kinds: Vec<String> =
            store.events(&mine, 0, 200).await.unwrap().into_iter().map(|event| event.kind).collect();
        for kind in ["schedule.created", "schedule.changed", "schedule.removed"] {
            assert!(kinds.iter().any(|known| known == kind), "{kind}");
        }
    }

    async fn a_task_that_is_over_lets_the_next_one_start(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "mine").await;
        let made = store.create_schedule(&scope, terms(&store, &scope, "nightly").await, "key:x").await.unwrap();
        let Fired::Started(task, _) = store.fire_schedule(due(&made)).await.unwrap() else { panic!() };
        store.cancel_task(&scope, task, "not wanted", "key:x").await.unwrap();
        let row = store.schedule(&scope, made.id).await.unwrap().unwrap();
        assert!(matches!(store.fire_schedule(Firing { then_ms: Some(THEN * 2), ..due(&row) }).await.unwrap(), Fired::Started(..)));
    }
}
