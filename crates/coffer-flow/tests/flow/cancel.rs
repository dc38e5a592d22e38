//! Cancelled runs, in every state.

use coffer_store::{RunError, RunState, StepState};
use coffer_testkit::on_both;
use serde_json::json;

use crate::world::{STEPS, World, is};

on_both! {
    async fn cancelled_in_any_step_it_undoes_what_was_done(database: &TestDatabase) {
        let world = World::new(database).await;
        let runner = world.runner().await;
        for step in STEPS {
            for point in ["before", "after", "past"] {
                world.outside.block(&format!("{point} {step}"));
                let run = world.queue(json!({ "subject": format!("{point} {step}") })).await;
                world.outside.reached().await;
                world.store.cancel_run(&world.scope, run, "not wanted").await.unwrap();
                world.outside.unblock();
                runner.wake();
                let row = world.until_over(run).await;
                let failure = row.failure.unwrap();
                assert_eq!((row.state, failure.code.as_str(), &*failure.message), (RunState::Cancelled, "cancelled", "not wanted"));
                assert_eq!(world.outside.made(), [""; 0], "{point} {step}");
                let steps = world.store.run_steps(&world.scope, run).await.unwrap();
                assert!(steps.iter().all(|step| step.state == StepState::Undone), "{steps:?}");
                let told = world.told(&format!("{point} {step}")).await;
                let tail: Vec<&str> = told.iter().map(|kind| &**kind).rev().take(2).collect();
                assert_eq!(tail, ["run.ended", "run.step_undone"]);
            }
        }
        runner.stop().await;
    }

    async fn cancelled_before_it_began_or_while_it_waits(database: &TestDatabase) {
        let world = World::new(database).await;
        let queued = world.queue(json!({})).await;
        world.store.cancel_run(&world.scope, queued, "never mind").await.unwrap();
        let again = world.store.cancel_run(&world.scope, queued, "never mind").await;
        assert!(matches!(again, Err(RunError::Over)), "{again:?}");
        let runner = world.runner().await;
        let parked = world.queue(json!({ "sleep_ms": 86_400_000 })).await;
        world.until(parked, is(RunState::Parked)).await;
        world.store.cancel_run(&world.scope, parked, "too late").await.unwrap();
        assert_eq!(world.until_over(parked).await.state, RunState::Cancelled);
        assert_eq!(world.run(queued).await.state, RunState::Cancelled);
        assert_eq!(world.outside.made(), [""; 0]);
        let signalled = world.store.signal_run(&world.scope, parked, "said", json!(1)).await;
        assert!(matches!(signalled, Err(RunError::Over)), "{signalled:?}");
        runner.stop().await;
    }

    async fn cancelled_while_its_server_is_dead(database: &TestDatabase) {
        let world = World::new(database).await;
        world.outside.block("after push");
        let run = world.queue(json!({})).await;
        let runner = world.runner().await;
        world.outside.reached().await;
        runner.kill().await;
        world.outside.unblock();
        world.store.cancel_run(&world.scope, run, "gone").await.unwrap();
        let runner = world.runner().await;
        assert_eq!(world.until_over(run).await.state, RunState::Cancelled);
        assert_eq!(world.outside.made(), [""; 0]);
        runner.stop().await;
    }

    async fn an_undo_that_fails_is_told_and_the_others_go_on(database: &TestDatabase) {
        let world = World::new(database).await;
        world.outside.fail("undo clone", 1);
        let run = world.queue(json!({ "fail": true })).await;
        let runner = world.runner().await;
        let row = world.until_over(run).await;
        let failure = row.failure.unwrap();
        assert_eq!((failure.code.as_str(), &*failure.not_undone), ("unhappy", &["clone".to_string()][..]));
        assert_eq!(world.outside.made(), [format!("{run}/clone")]);
        runner.stop().await;
    }
}
