//! Which runs may begin, and when.

use coffer_core::RunId;
use coffer_flow::Settings;
use coffer_store::{NewRun, RunState, Slots};
use coffer_testkit::on_both;
use serde_json::json;

use crate::world::{World, is, project};

on_both! {
    async fn slots_hold_in_all_and_per_project_over_all_servers(database: &TestDatabase) {
        let world = World::new(database).await;
        let theirs = project(&world.store, "theirs").await;
        let slots = Slots { in_all: 3, per_project: 2 };
        world.outside.block("before push");
        let queue = async |scope, count: usize| {
            let mut runs = Vec::new();
            for _ in 0..count {
                let id = RunId::generate();
                let new = NewRun { id, kind: "trip", subject: id.to_string(), input: json!({}), rank: 0 };
                world.store.insert_run(scope, new).await.unwrap();
                runs.push(id);
            }
            runs
        };
        let mine = queue(&world.scope, 5).await;
        let others = queue(&theirs, 5).await;
        let one = world.runner_with(Settings { slots, ..world.settings("one") }).await;
        let two = world.runner_with(Settings { slots, ..world.settings("two") }).await;
        // Two of the first and one of the other have begun: the project with fewer came first.
        for run in [mine[0], mine[1], others[0]] {
            world.until(run, is(RunState::Running)).await;
        }
        let operator = world.store.operator();
        assert_eq!(world.store.run_load(&operator).await.unwrap(), (7, 3));
        // A run that ends releases its slot; both have one now, and the oldest comes next.
        world.store.cancel_run(&world.scope, mine[0], "enough").await.unwrap();
        world.until_over(mine[0]).await;
        world.until(mine[2], is(RunState::Running)).await;
        assert_eq!(world.store.run_load(&operator).await.unwrap(), (6, 3));
        one.stop().await;
        two.stop().await;
    }

    async fn who_waits_holds_no_slot(database: &TestDatabase) {
        let world = World::new(database).await;
        let slots = Slots { in_all: 1, per_project: 1 };
        let waits = world.queue(json!({ "wait_until": 4_000_000_000_000_i64 })).await;
        let runner = world.runner_with(Settings { slots, ..world.settings("here") }).await;
        world.until(waits, is(RunState::Parked)).await;
        let operator = world.store.operator();
        assert_eq!(world.store.run_load(&operator).await.unwrap(), (0, 0));
        let load = world.store.queue_load(&operator, None).await.unwrap();
        assert_eq!((load.queued, load.held, load.parked), (0, 0, 1));
        let next = world.queue(json!({})).await;
        assert_eq!(world.until_over(next).await.state, RunState::Done);
        // A woken run continues in addition to the running one: no run waits twice.
        world.outside.block("before sandbox");
        let other = world.queue(json!({})).await;
        world.outside.reached().await;
        world.store.signal_run(&world.scope, waits, "said", json!("go")).await.unwrap();
        assert_eq!(world.until_over(waits).await.state, RunState::Done);
        assert_eq!(world.run(other).await.state, RunState::Running);
        world.outside.unblock();
        runner.stop().await;
    }

    async fn of_one_subject_one_runs_at_a_time_and_rank_goes_first(database: &TestDatabase) {
        let world = World::new(database).await;
        let first = world.queue(json!({ "subject": "same", "sleep_ms": 86_400_000 })).await;
        let second = world.queue(json!({ "subject": "same" })).await;
        let urgent = RunId::generate();
        let new = NewRun { id: urgent, kind: "trip", subject: "u".into(), input: json!({}), rank: -1 };
        world.store.insert_run(&world.scope, new).await.unwrap();
        let runner = world.runner().await;
        world.until(first, is(RunState::Parked)).await;
        world.until_over(urgent).await;
        assert_eq!(world.run(second).await.state, RunState::Queued);
        assert!(world.run(urgent).await.started_ms <= world.run(first).await.started_ms);
        world.store.cancel_run(&world.scope, first, "next").await.unwrap();
        assert_eq!(world.until_over(second).await.state, RunState::Done);
        assert!(world.run(second).await.started_ms >= world.run(first).await.ended_ms);
        runner.stop().await;
    }

    async fn what_is_anothers_cannot_be_seen_or_told(database: &TestDatabase) {
        let world = World::new(database).await;
        let theirs = project(&world.store, "theirs").await;
        let run = world.queue(json!({})).await;
        assert!(world.store.run(&theirs, run).await.unwrap().is_none());
        assert!(world.store.run_steps(&theirs, run).await.unwrap().is_empty());
        let not_found = |error| matches!(error, coffer_store::RunError::NotFound);
        assert!(not_found(world.store.cancel_run(&theirs, run, "x").await.unwrap_err()));
        assert!(not_found(world.store.signal_run(&theirs, run, "x", json!(1)).await.unwrap_err()));
        assert_eq!(world.run(run).await.state, RunState::Queued);
    }
}
