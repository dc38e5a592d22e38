//! A server that dies: at every boundary, and at any moment.

use std::time::Duration;

use coffer_store::{RunState, StepState};
use coffer_testkit::on_both;
use serde_json::json;

use crate::world::{STEPS, World, all_of};

/// Every place where a run's own code can be when the server dies.
fn points() -> Vec<String> {
    let of_step = |step: &&str| [format!("before {step}"), format!("after {step}"), format!("past {step}")];
    std::iter::once("begin".to_string()).chain(STEPS.iter().flat_map(of_step)).collect()
}

on_both! {
    async fn a_run_goes_through_its_steps(database: &TestDatabase) {
        let world = World::new(database).await;
        let run = world.queue(json!({ "subject": "thing" })).await;
        let runner = world.runner().await;
        let row = world.until_over(run).await;
        assert_eq!((row.state, row.output), (RunState::Done, Some(all_of(run))));
        world.assert_made_once(run);
        let steps = world.store.run_steps(&world.scope, run).await.unwrap();
        let names: Vec<_> = steps.iter().map(|step| (&*step.name, step.state, step.starts)).collect();
        assert_eq!(names, STEPS.map(|step| (step, StepState::Done, 1)));
        let mut expected = vec!["run.queued", "run.started"];
        expected.extend(STEPS.iter().flat_map(|_| ["run.step_started", "run.step_finished"]));
        expected.push("run.ended");
        assert_eq!(world.told("thing").await, expected);
        runner.stop().await;
    }

    async fn killed_at_every_boundary_it_ends_right(database: &TestDatabase) {
        let world = World::new(database).await;
        for point in points() {
            let run = world.queue(json!({})).await;
            world.outside.block(&point);
            let runner = world.runner().await;
            world.outside.reached().await;
            runner.kill().await;
            world.outside.unblock();
            let runner = world.runner().await;
            let row = world.until_over(run).await;
            assert_eq!((row.state, row.output), (RunState::Done, Some(all_of(run))), "{point}");
            world.assert_made_once(run);
            // Finished steps were not run again; the step in progress was, once.
            let steps = world.store.run_steps(&world.scope, run).await.unwrap();
            for step in steps {
                let again = point == format!("before {}", step.name) || point == format!("after {}", step.name);
                assert_eq!(step.starts, if again { 2 } else { 1 }, "{point}: {}", step.name);
                assert_eq!(step.failures, 0, "{point}");
            }
            runner.stop().await;
        }
    }

    async fn killed_at_200_moments_it_ends_right(database: &TestDatabase) {
        let world = World::new(database).await;
        let mut runs = Vec::new();
        for kill in 0..200u64 {
            if kill % 5 == 0 {
                runs.push(world.queue(json!({})).await);
            }
            let runner = world.runner().await;
            // Moments spread over the duration of a run.
            tokio::time::sleep(Duration::from_micros((kill * 7919) % 9000)).await;
            runner.kill().await;
        }
        let runner = world.runner().await;
        for run in runs {
            let row = world.until_over(run).await;
            assert_eq!((row.state, row.output), (RunState::Done, Some(all_of(run))));
            world.assert_made_once(run);
        }
        runner.stop().await;
    }

    async fn killed_while_it_undoes_it_undoes_the_rest(database: &TestDatabase) {
        let world = World::new(database).await;
        for step in STEPS {
            let run = world.queue(json!({ "fail": true })).await;
            world.outside.block(&format!("undo {step}"));
            let runner = world.runner().await;
            world.outside.reached().await;
            runner.kill().await;
            world.outside.unblock();
            let runner = world.runner().await;
            let row = world.until_over(run).await;
            assert_eq!(row.state, RunState::Failed);
            assert_eq!(row.failure.unwrap().code.as_str(), "unhappy");
            assert_eq!(world.outside.made(), [""; 0]);
            runner.stop().await;
        }
        let undone: Vec<String> = world.outside.unmade();
        let last_first: Vec<&str> = STEPS.iter().rev().copied().cycle().take(undone.len()).collect();
        let undone: Vec<&str> = undone.iter().map(|name| name.split('/').nth(1).unwrap()).collect();
        assert_eq!(undone, last_first);
        assert_eq!(undone.len(), STEPS.len() * STEPS.len());
    }

    async fn what_kills_its_servers_is_undone_and_at_last_left_alone(database: &TestDatabase) {
        let world = World::new(database).await;
        let settings = || coffer_flow::Settings { most_takes: 3, ..world.settings("here") };
        let run = world.queue(json!({})).await;
        let die = async |times: usize| {
            for _ in 0..times {
                let runner = world.runner_with(settings()).await;
                world.outside.reached().await;
                runner.kill().await;
                world.outside.block("before push");
            }
        };
        world.outside.block("before push");
        die(3).await;
        world.outside.block("undo clone");
        let runner = world.runner_with(settings()).await;
        world.outside.reached().await;
        runner.kill().await;
        let row = world.run(run).await;
        assert_eq!(row.unwinding, Some(coffer_store::Unwinding::Failed));
        let failure = row.failure.unwrap();
        assert_eq!((failure.code.as_str(), failure.step.as_deref()), ("server_died", Some("push")));
        // The undo kills them too.
        for _ in 0..2 {
            world.outside.block("undo clone");
            let runner = world.runner_with(settings()).await;
            world.outside.reached().await;
            runner.kill().await;
        }
        let runner = world.runner_with(settings()).await;
        assert_eq!(world.until_over(run).await.state, RunState::Stuck);
        runner.stop().await;
    }

    async fn leaving_in_good_order_is_not_held_against_a_run(database: &TestDatabase) {
        let world = World::new(database).await;
        let settings = || coffer_flow::Settings { most_takes: 2, ..world.settings("here") };
        let run = world.queue(json!({})).await;
        for _ in 0..6 {
            world.outside.block("before push");
            let runner = world.runner_with(settings()).await;
            world.outside.reached().await;
            runner.stop().await;
        }
        world.outside.unblock();
        let runner = world.runner_with(settings()).await;
        assert_eq!(world.until_over(run).await.state, RunState::Done);
        runner.stop().await;
    }
}
