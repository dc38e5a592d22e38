//! Several servers on one database.

use std::time::Duration;

use coffer_flow::Settings;
use coffer_store::RunState;
use coffer_testkit::on_both;
use serde_json::json;

use crate::world::{STEPS, World, all_of};

on_both! {
    async fn two_servers_share_the_work_and_never_both_act(database: &TestDatabase) {
        let world = World::new(database).await;
        let few = |place| Settings { most_here: 3, ..world.settings(place) };
        let (one, two) = (world.runner_with(few("one")).await, world.runner_with(few("two")).await);
        let mut runs = Vec::new();
        for _ in 0..30 {
            runs.push(world.queue(json!({})).await);
        }
        for run in runs {
            let row = world.until_over(run).await;
            assert_eq!((row.state, row.output), (RunState::Done, Some(all_of(run))));
            for step in STEPS {
                assert_eq!(world.outside.calls(&format!("{run}/{step}")), 1);
            }
        }
        assert_eq!(world.outside.stale(), 0);
        one.stop().await;
        two.stop().await;
    }

    async fn another_server_takes_over_from_a_dead_one(database: &TestDatabase) {
        let world = World::new(database).await;
        world.outside.block("after push");
        let run = world.queue(json!({})).await;
        let dies = world.runner_with(world.settings("one")).await;
        world.outside.reached().await;
        dies.kill().await;
        world.outside.unblock();
        let quick = Settings { bury_after: Duration::from_millis(100), ..world.settings("two") };
        let other = world.runner_with(quick).await;
        let row = world.until_over(run).await;
        assert_eq!((row.state, row.output), (RunState::Done, Some(all_of(run))));
        world.assert_made_once(run);
        other.stop().await;
    }

    async fn a_server_that_was_buried_stops_where_it_is_and_enters_again(database: &TestDatabase) {
        let world = World::new(database).await;
        let operator = world.store.operator();
        world.outside.block("before push");
        let run = world.queue(json!({})).await;
        // Its heartbeats are frequent enough to notice.
        let settings = Settings { beat_every: Duration::from_millis(20), ..world.settings("one") };
        let buried = world.runner_with(settings).await;
        world.outside.reached().await;
        let bury = tokio::time::timeout(crate::world::PATIENCE, async {
            loop {
                let runners = world.store.runners(&operator).await.unwrap();
                let (runner, beat) = runners[0];
                if world.store.bury_runner(&operator, runner, beat, 1).await.unwrap() {
                    return runner;
                }
            }
        });
        let runner = bury.await.expect("it can be buried");
        world.outside.unblock();
        // The run is free, and the server that returns under another name takes it with a higher fence.
        let row = world.until_over(run).await;
        assert_eq!((row.state, row.output), (RunState::Done, Some(all_of(run))));
        assert_eq!(world.outside.stale(), 0);
        let runners = world.store.runners(&operator).await.unwrap();
        assert!(runners.iter().all(|(known, _)| *known != runner), "{runners:?}");
        buried.stop().await;
    }

    async fn who_cannot_beat_stops_before_others_may_take_over(database: &TestDatabase) {
        let world = World::new(database).await;
        world.outside.block("before push");
        let run = world.queue(json!({})).await;
        let settings = Settings {
            beat_every: Duration::from_millis(20),
            stop_after: Duration::from_millis(200),
            ..world.settings("one")
        };
        let runner = world.runner_with(settings).await;
        world.outside.reached().await;
        // Its database is gone: no other server removes it, and yet it stops.
        world.store.close().await;
        world.outside.left().await;
        runner.stop().await;
        let again = database.open().await;
        let row = again.run(&world.scope, run).await.unwrap().unwrap();
        assert_eq!(row.state, RunState::Running);
        assert_eq!(world.outside.calls(&format!("{run}/push")), 0);
    }
}
