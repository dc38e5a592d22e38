//! Timers and signals, also across a restart.

use coffer_store::RunState;
use coffer_testkit::on_both;
use serde_json::json;

use crate::world::{World, all_of, is};

const HOUR: i64 = 3_600_000;

on_both! {
    async fn a_timer_holds_over_a_restart(database: &TestDatabase) {
        let world = World::new(database).await;
        let run = world.queue(json!({ "sleep_ms": HOUR })).await;
        let runner = world.runner().await;
        let parked = world.until(run, is(RunState::Parked)).await;
        runner.kill().await;
        let runner = world.runner().await;
        world.pass(HOUR / 2);
        // An unrelated signal arrives meanwhile, and it still sleeps.
        let other = world.queue(json!({})).await;
        world.until_over(other).await;
        assert_eq!(world.run(run).await.state, RunState::Parked);
        assert_eq!(world.run(run).await.wake_ms, parked.wake_ms);
        world.pass(HOUR / 2);
        let row = world.until_over(run).await;
        assert_eq!((row.state, row.output), (RunState::Done, Some(all_of(run))));
        world.assert_made_once(run);
        runner.stop().await;
    }

    async fn a_signal_wakes_and_is_taken_once(database: &TestDatabase) {
        let world = World::new(database).await;
        let later = coffer_flow::Clock::default().now() + HOUR;
        let run = world.queue(json!({ "wait_until": later })).await;
        let runner = world.runner().await;
        world.until(run, is(RunState::Parked)).await;
        // Another name does not count.
        world.store.signal_run(&world.scope, run, "other", json!("no")).await.unwrap();
        world.until(run, |row| row.state == RunState::Parked && row.wake_ms == later).await;
        runner.kill().await;
        world.store.signal_run(&world.scope, run, "said", json!("yes")).await.unwrap();
        world.store.signal_run(&world.scope, run, "said", json!("again")).await.unwrap();
        let runner = world.runner().await;
        let row = world.until_over(run).await;
        assert_eq!(row.output.unwrap()[2], "\"yes\"");
        runner.stop().await;
    }

    async fn a_signal_from_before_the_wait_is_not_lost_and_none_is_nothing(database: &TestDatabase) {
        let world = World::new(database).await;
        let later = coffer_flow::Clock::default().now() + HOUR;
        let early = world.queue(json!({ "wait_until": later })).await;
        world.store.signal_run(&world.scope, early, "said", json!({ "a": 1 })).await.unwrap();
        let none = world.queue(json!({ "wait_until": later })).await;
        let runner = world.runner().await;
        assert_eq!(world.until_over(early).await.output.unwrap()[2], "{\"a\":1}");
        world.until(none, is(RunState::Parked)).await;
        world.pass(HOUR);
        assert_eq!(world.until_over(none).await.output.unwrap()[2], "nothing");
        runner.stop().await;
    }
}
