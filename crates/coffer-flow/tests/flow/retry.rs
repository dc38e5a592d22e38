//! Steps that fail.

use coffer_store::{RunState, StepState};
use coffer_testkit::on_both;
use serde_json::json;

use crate::world::{World, all_of};

on_both! {
    async fn what_is_transient_is_tried_three_times(database: &TestDatabase) {
        let world = World::new(database).await;
        let runner = world.runner().await;
        for (fails, starts, state) in [(2, 3, RunState::Done), (3, 3, RunState::Failed)] {
            world.outside.fail("push", fails);
            let run = world.queue(json!({})).await;
            let row = world.until_over(run).await;
            assert_eq!(row.state, state);
            let steps = world.store.run_steps(&world.scope, run).await.unwrap();
            let push = steps.iter().find(|step| step.name == "push").unwrap();
            assert_eq!((push.starts, push.failures), (starts, i64::from(fails)));
            if state == RunState::Failed {
                let failure = row.failure.unwrap();
                assert_eq!((failure.code.as_str(), failure.step.as_deref()), ("away", Some("push")));
                assert_eq!(push.state, StepState::Undone);
                assert!(world.outside.made().iter().all(|name| !name.starts_with(&run.to_string())));
            }
        }
        runner.stop().await;
    }

    async fn what_is_not_is_not(database: &TestDatabase) {
        let world = World::new(database).await;
        let runner = world.runner().await;
        for (how, code) in [("fatal push", "broken"), ("panic push", "panicked")] {
            world.outside.fail(how, 1);
            let run = world.queue(json!({})).await;
            let row = world.until_over(run).await;
            assert_eq!((row.state, row.failure.unwrap().code.as_str()), (RunState::Failed, code));
            assert_eq!(world.outside.calls(&format!("{run}/push")), 0);
            assert_eq!(world.outside.calls(&format!("{run}/pull")), 0);
        }
        runner.stop().await;
    }

    async fn failures_count_over_a_death(database: &TestDatabase) {
        let world = World::new(database).await;
        world.outside.fail("push", 5);
        let run = world.queue(json!({})).await;
        let slow = coffer_flow::Settings {
            tries: coffer_flow::Tries { first_pause: crate::world::PATIENCE, longest_pause: crate::world::PATIENCE, most: 3 },
            ..world.settings("here")
        };
        for failures in 1..=2 {
            let runner = world.runner_with(slow.clone()).await;
            let waited = tokio::time::timeout(crate::world::PATIENCE, async {
                loop {
                    let steps = world.store.run_steps(&world.scope, run).await.unwrap();
                    if steps.iter().any(|step| step.name == "push" && step.failures == failures) {
                        break;
                    }
                    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
                }
            });
            waited.await.expect("it fails");
            runner.kill().await;
        }
        let runner = world.runner().await;
        let row = world.until_over(run).await;
        assert_eq!((row.state, row.failure.unwrap().code.as_str()), (RunState::Failed, "away"));
        assert_eq!(world.outside.calls(&format!("{run}/push")), 3);
        runner.stop().await;
    }

    async fn a_step_that_hangs_is_dropped_and_tried_again(database: &TestDatabase) {
        let world = World::new(database).await;
        let runner = world.runner().await;
        world.outside.block("before push");
        let run = world.queue(json!({ "within_ms": 50 })).await;
        let row = world.until_over(run).await;
        let failure = row.failure.unwrap();
        assert_eq!((failure.code.as_str(), failure.step.as_deref()), ("timed_out", Some("push")));
        // Only the next step remains.
        world.outside.unblock();
        let run = world.queue(json!({ "within_ms": 50_000 })).await;
        assert_eq!(world.until_over(run).await.output, Some(all_of(run)));
        runner.stop().await;
    }
}
