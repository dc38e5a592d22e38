//! Records of runs: slots per project, and retention.

use coffer_core::{FailureCode, RunId, RunnerId};
use coffer_store::{
    Cutoffs, EventFilter, JournalError, NewRun, ProjectScope, Pruned, Quotas, RunEnd, RunFailure, RunState,
    Slots, StepState, Store, TakenRun,
};
use serde_json::json;

use crate::databases::on_both;
use crate::fixtures::project;

const MANY: Slots = Slots { in_all: 100, per_project: 100 };
const LATER: i64 = 4_000_000_000_000;

async fn queue(store: &Store, scope: &ProjectScope, count: usize) -> Vec<RunId> {
    let mut runs = Vec::new();
    for _ in 0..count {
        let id = RunId::generate();
        let new = NewRun { id, kind: "trip", subject: id.to_string(), input: json!({}), rank: 0 };
        store.insert_run(scope, new).await.unwrap();
        runs.push(id);
    }
    runs
}

async fn take(store: &Store, runner: RunnerId, slots: Slots) -> Vec<TakenRun> {
    store.take_runs(&store.operator(), runner, &["trip"], slots, 100, LATER).await.unwrap()
}

async fn give(store: &Store, scope: &ProjectScope, runs: Option<i64>) {
    let quotas = Quotas { runs, ..Quotas::default() };
    assert!(store.set_quotas(&store.operator(), scope.project(), None, quotas).await.unwrap().is_some());
}

on_both! {
    async fn a_project_has_the_slots_that_an_operator_gave_it(database: &TestDatabase) {
        let store = database.open().await;
        let (few, many, usual) =
            (project(&store, "few").await, project(&store, "many").await, project(&store, "usual").await);
        give(&store, &few, Some(1)).await;
        give(&store, &many, Some(5)).await;
        for scope in [&few, &many, &usual] {
            queue(&store, scope, 9).await;
        }
        let runner = store.enter_runner(&store.operator(), "here", 1).await.unwrap();
        let slots = Slots { in_all: 100, per_project: 2 };
        let taken = take(&store, runner, slots).await;
        let of = |scope: &ProjectScope, taken: &[TakenRun]| {
            taken.iter().filter(|one| one.run.project == scope.project()).count()
        };
        assert_eq!((of(&few, &taken), of(&many, &taken), of(&usual, &taken)), (1, 5, 2));
        // When the limit is raised, the next begin; when it is lowered, started runs continue and no others
        // begin.
        give(&store, &few, Some(3)).await;
        give(&store, &many, Some(0)).await;
        let more = take(&store, runner, slots).await;
        assert_eq!((of(&few, &more), of(&many, &more), of(&usual, &more)), (2, 0, 0));
        for one in taken.iter().filter(|one| one.run.project == many.project()) {
            assert_eq!(store.run(&many, one.run.id).await.unwrap().unwrap().state, RunState::Running);
            store.end_run(&one.hold, &RunEnd::Done(json!(null))).await.unwrap();
        }
        assert!(take(&store, runner, slots).await.is_empty(), "0 allows none");
        // Without its own limit, the server's default applies; and never more than the total.
        give(&store, &many, None).await;
        assert_eq!(of(&many, &take(&store, runner, slots).await), 2);
        let load = store.queue_load(&store.operator(), None).await.unwrap();
        assert_eq!(load.held, 3 + 2 + 2);
        give(&store, &usual, Some(50)).await;
        assert_eq!(take(&store, runner, Slots { in_all: 8, per_project: 2 }).await.len(), 1);
    }

    async fn only_a_step_under_way_is_begun_again_and_only_a_run_that_goes_on_ends(database: &TestDatabase) {
        let store = database.open().await;
        let mine = project(&store, "mine").await;
        let run = queue(&store, &mine, 1).await[0];
        let runner = store.enter_runner(&store.operator(), "here", 1).await.unwrap();
        let taken = take(&store, runner, MANY).await.remove(0);
        let hold = &taken.hold;
        assert_eq!(store.begin_step(hold, "first", 1, None).await.unwrap().starts, 1);
        assert_eq!(store.begin_step(hold, "first", 1, None).await.unwrap().starts, 2);
        store.finish_step(hold, "first", &json!("done"), None).await.unwrap();
        let again = store.begin_step(hold, "first", 1, None).await;
        assert!(matches!(again, Err(JournalError::Store(_))), "{again:?}");
        let steps = store.run_steps(&mine, run).await.unwrap();
        assert_eq!((steps[0].state, steps[0].output.as_ref()), (StepState::Done, Some(&json!("done"))));

        store.park_run(hold, LATER, None).await.unwrap();
        assert_eq!(store.run(&mine, run).await.unwrap().unwrap().state, RunState::Parked);
        let ended = store.end_run(hold, &RunEnd::Done(json!(1))).await;
        assert!(matches!(ended, Err(JournalError::Lost)), "{ended:?}");
        assert!(matches!(store.park_run(hold, LATER, None).await, Err(JournalError::Lost)));
        assert_eq!(store.run(&mine, run).await.unwrap().unwrap().state, RunState::Parked);
    }

    async fn old_runs_go_with_their_steps_and_those_that_matter_stay(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let operator = store.operator();
        let ended = queue(&store, &mine, 5).await;
        let kept = queue(&store, &theirs, 1).await;
        let runner = store.enter_runner(&operator, "here", 1).await.unwrap();
        let why = || RunFailure::new(FailureCode::read("broken"), "it is broken");
        let ends = [
            RunEnd::Done(json!(1)),
            RunEnd::Failed(why()),
            RunEnd::Cancelled(why()),
            // A person must look at this one, however old it is.
            RunEnd::Stuck(why()),
        ];
        for taken in take(&store, runner, MANY).await {
            let (hold, run) = (&taken.hold, taken.run.id);
            store.begin_step(hold, "first", 1, None).await.unwrap();
            store.finish_step(hold, "first", &json!("done"), None).await.unwrap();
            store.signal_run(&operator, run, "said", json!(1)).await.unwrap();
            let end = ended.iter().position(|known| *known == run).map(|at| ends.get(at));
            match end {
                Some(Some(end)) => store.end_run(hold, end).await.unwrap(),
                // The fifth continues.
                Some(None) => {}
                None => store.end_run(hold, &RunEnd::Done(json!(1))).await.unwrap(),
            }
        }
        let waiting = queue(&store, &mine, 1).await[0];
        let cutoffs = |records_ms| Cutoffs { records_ms, events_ms: 0, audit_ms: 0 };
        let prune = async |records_ms, batch| {
            store.prune(&operator, Some(mine.project()), cutoffs(records_ms), batch).await.unwrap()
        };
        assert_eq!(prune(1, 100).await, Pruned::default(), "none is so old");
        let first = prune(LATER, 2).await;
        assert_eq!((first, first.reached(2)), (Pruned { runs: 2, ..Pruned::default() }, true));
        assert_eq!(prune(LATER, 2).await, Pruned { runs: 1, ..Pruned::default() });
        assert_eq!(prune(LATER, 2).await, Pruned::default());
        for (at, run) in ended.iter().enumerate() {
            let found = store.run(&mine, *run).await.unwrap();
            let steps = store.run_steps(&mine, *run).await.unwrap();
            assert_eq!((found.is_some(), steps.len()), (at >= 3, usize::from(at >= 3)), "{at}");
        }
        assert_eq!(store.run(&mine, ended[3]).await.unwrap().unwrap().state, RunState::Stuck);
        assert_eq!(store.run(&mine, ended[4]).await.unwrap().unwrap().state, RunState::Running);
        assert_eq!(store.run(&mine, waiting).await.unwrap().unwrap().state, RunState::Queued);
        assert!(store.run(&theirs, kept[0]).await.unwrap().is_some(), "another project's time is its own");
        let mut connection = database.connect().await;
        let left = sqlx::query("SELECT COUNT(*) AS left_over FROM run_signals").fetch_one(&mut connection).await;
        assert_eq!(sqlx::Row::get::<i64, _>(&left.unwrap(), "left_over"), 3);
    }

    async fn events_are_found_by_what_they_are_about_and_by_kind(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let runs = queue(&store, &mine, 30).await;
        queue(&store, &theirs, 1).await;
        for run in &runs[..3] {
            store.cancel_run(&mine, *run, "enough").await.unwrap();
        }
        let find = async |subject: Option<RunId>, kinds: &[&str], after, limit| {
            let filter = EventFilter {
                subject: subject.map(|run| run.to_string()),
                kinds: kinds.iter().map(ToString::to_string).collect(),
                after,
                limit,
            };
            let found = store.find_events(&mine, &filter).await.unwrap();
            assert_eq!(found.looked_to, None, "the log is short");
            found.events.iter().map(|event| event.sequence).collect::<Vec<_>>()
        };
        assert_eq!(find(None, &[], 0, 100).await, (1..=33).collect::<Vec<_>>());
        // Far apart in the log, and on one page.
        assert_eq!(find(Some(runs[1]), &[], 0, 2).await, [2, 32]);
        assert_eq!(find(Some(runs[1]), &[], 2, 2).await, [32]);
        assert_eq!(find(Some(runs[1]), &["run.ended"], 0, 2).await, [32]);
        assert_eq!(find(None, &["run.ended"], 0, 2).await, [31, 32]);
        assert_eq!(find(None, &["run.e*", "task.*"], 32, 2).await, [33]);
        assert_eq!(find(None, &["run.*"], 0, 3).await, [1, 2, 3]);
        // Characters of patterns are literal.
        for none in ["run.%", "run_ended", "RUN.*", "run.\0*", ""] {
            assert_eq!(find(None, &[none], 0, 3).await, [] as [i64; 0], "{none:?}");
        }
        assert_eq!(find(Some(RunId::generate()), &[], 0, 3).await, [] as [i64; 0]);
        let filter = EventFilter { subject: Some(runs[0].to_string()), limit: 9, ..EventFilter::default() };
        assert!(store.find_events(&theirs, &filter).await.unwrap().events.is_empty(), "another project's");
    }
}
