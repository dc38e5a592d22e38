//! Sandboxes outlive their node and its spawner; the next node takes them up or cleans up.

use std::time::{Duration, Instant};

use coffer_core::Boot;
use coffer_engine::Engine as _;
use coffer_wire::node::{DeathCause, RunState};

use crate::harness::{Home, Sandbox, small, spec};

crate::tests![
    a_new_node_takes_up_what_lives,
    a_killed_node_is_followed_by_another,
    deaths_without_a_node_are_found,
    a_stop_that_was_cut_off_keeps_the_files,
    ids_of_the_living_are_not_given_away,
    sandboxes_outlive_the_spawner,
    what_belongs_to_nobody_is_removed,
    two_nodes_live_side_by_side,
    one_data_directory_has_one_node,
];

async fn a_new_node_takes_up_what_lives() {
    let mut home = Home::new();
    home.ephemeral = false;
    let node = home.start().await;
    let (running, frozen, stopped) =
        tokio::join!(node.create(small()), node.create(small()), node.create(small()));
    running.output("echo here > /tmp/x").await;
    stopped.output("echo there > /root/x").await;
    node.engine.freeze(frozen.id).await.unwrap();
    node.engine.stop(stopped.id).await.unwrap();
    let boot_id = running.output("cat /proc/sys/kernel/random/boot_id").await;
    let mut before = node.engine.list().await.unwrap();
    node.stop().await;
    assert_eq!(running.output("cat /tmp/x").await, "here", "no node is needed to run");

    home.ephemeral = true;
    let mut node = home.start().await;
    let mut after = node.engine.list().await.unwrap();
    for list in [&mut before, &mut after] {
        list.sort_by_key(|status| status.sandbox);
    }
    assert_eq!(before, after);
    assert_eq!(running.output("cat /proc/sys/kernel/random/boot_id").await, boot_id);
    assert_eq!(node.engine.stats().await.unwrap().len(), 2);
    node.engine.thaw(frozen.id).await.unwrap();
    assert_eq!(frozen.output("echo awake").await, "awake");
    node.engine.start(stopped.id, Boot::AsPaused).await.unwrap();
    assert_eq!(stopped.output("cat /root/x").await, "there");
    // New ones get other ids than the adopted.
    let new = node.create(small()).await;
    let base = "awk '{print $2}' /proc/self/uid_map";
    assert_ne!(new.output(base).await, running.output(base).await);
    // The death of an adopted sandbox is reported too, with its cause if the kernel reports it.
    running.order("!exit 5");
    let (died, cause) = node.death(Duration::from_secs(5)).await;
    assert_eq!(died, running.id);
    assert!(matches!(cause, DeathCause::Exit { code: 5 } | DeathCause::Unseen), "{cause:?}");
    node.engine.destroy(frozen.id).await.unwrap();
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn a_killed_node_is_followed_by_another() {
    let home = Home::new();
    let (mut process, engine, stop_client) = home.start_process().await;
    let mut sandboxes = Vec::new();
    for _ in 0..3 {
        let wanted = spec(small());
        let placement = engine.create(&wanted).await.unwrap();
        sandboxes.push(Sandbox { id: wanted.sandbox, placement });
    }
    engine.freeze(sandboxes[1].id).await.unwrap();
    engine.stop(sandboxes[2].id).await.unwrap();
    sandboxes[0].output("echo here > /tmp/x").await;
    // In the middle of more work.
    let wanted: Vec<_> = (0..4).map(|_| spec(small())).collect();
    let creating = wanted.iter().map(|wanted| engine.create(wanted));
    let killing = async {
        tokio::time::sleep(Duration::from_millis(15)).await;
        process.kill().unwrap();
        process.wait().unwrap();
    };
    let _ = tokio::time::timeout(Duration::from_secs(2), async {
        tokio::join!(futures_util::future::join_all(creating), killing)
    })
    .await;
    // It would send the unanswered requests to the next node.
    stop_client.cancel();

    let node = home.start().await;
    let statuses = node.engine.list().await.unwrap();
    let run = |id| statuses.iter().find(|status| status.sandbox == id).map(|status| status.run.clone());
    assert_eq!(run(sandboxes[0].id), Some(RunState::Running));
    assert_eq!(run(sandboxes[1].id), Some(RunState::Frozen));
    assert_eq!(run(sandboxes[2].id), Some(RunState::Stopped));
    assert_eq!(sandboxes[0].output("cat /tmp/x").await, "here");
    // Some of the pending creates may have been confirmed; the others are gone without a trace.
    let known = statuses.len();
    let belongings = home.belongings();
    assert_eq!((belongings.0["uppers"], belongings.0["journal entries"]), (known, known), "{belongings:?}");
    node.stop().await;
    home.reap_orphans();
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn deaths_without_a_node_are_found() {
    let mut home = Home::new();
    home.ephemeral = false;
    let node = home.start().await;
    let sandbox = node.create(small()).await;
    node.stop().await;
    sandbox.order("!exit 0");
    let deadline = Instant::now() + Duration::from_secs(10);
    while home.live_processes() > 0 {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    home.ephemeral = true;
    let node = home.start().await;
    let statuses = node.engine.list().await.unwrap();
    assert_eq!(statuses.len(), 1);
    assert_eq!(statuses[0].run, RunState::Dead { cause: DeathCause::Unseen });
    let belongings = home.belongings();
    for kind in ["processes", "uppers", "sockets", "small files"] {
        assert_eq!(belongings.0[kind], 0, "{belongings:?}");
    }
    node.engine.destroy(sandbox.id).await.unwrap();
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn a_stop_that_was_cut_off_keeps_the_files() {
    let mut home = Home::new();
    home.ephemeral = false;
    let node = home.start().await;
    let sandbox = node.create(small()).await;
    sandbox.output("echo there > /root/x").await;
    node.stop().await;
    // As if the node had died after the last process and before it recorded that.
    home.edit_entry(sandbox.id, |entry| entry["phase"] = serde_json::json!({ "kind": "stopping" }));
    sandbox.order("!exit 0");
    home.ephemeral = true;
    let node = home.start().await;
    let statuses = node.engine.list().await.unwrap();
    assert_eq!(statuses.iter().map(|status| &status.run).collect::<Vec<_>>(), [&RunState::Stopped]);
    node.engine.start(sandbox.id, Boot::AsPaused).await.unwrap();
    assert_eq!(sandbox.output("cat /root/x").await, "there");
    node.stop().await;
    home.reap_orphans();
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn ids_of_the_living_are_not_given_away() {
    let mut home = Home::new();
    home.ephemeral = false;
    let node = home.start().await;
    let alive = node.create(small()).await;
    let (dead, destroyed) = tokio::join!(node.create(small()), node.create(small()));
    node.stop().await;
    // The live sandbox has the ids of both ended ones, whose entries were not removed yet.
    let ids = home.edit_entry(alive.id, |_| ())["uid_base"].clone();
    let cause = serde_json::json!({ "kind": "unseen" });
    for (ended, phase) in [
        (&dead, serde_json::json!({ "kind": "dead", "cause": cause })),
        (&destroyed, serde_json::json!({ "kind": "destroying" })),
    ] {
        home.edit_entry(ended.id, |entry| {
            entry["phase"] = phase.clone();
            entry["uid_base"] = ids.clone();
        });
    }
    home.ephemeral = true;
    let node = home.start().await;
    let base = "awk '{print $2}' /proc/self/uid_map";
    let living = alive.output(base).await;
    for _ in 0..3 {
        assert_ne!(node.create(small()).await.output(base).await, living);
    }
    node.stop().await;
    home.reap_orphans();
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn sandboxes_outlive_the_spawner() {
    let home = Home::new();
    let mut node = home.start().await;
    let old = node.create(small()).await;
    let spawner = rustix::process::Pid::from_raw(node.spawner_pid.cast_signed()).unwrap();
    rustix::process::kill_process(spawner, rustix::process::Signal::KILL).unwrap();
    assert_eq!(old.output("echo alive").await, "alive");
    // The next spawner handles the requests of the dead one.
    let wanted: Vec<_> = (0..4).map(|_| spec(small())).collect();
    for created in
        futures_util::future::join_all(wanted.iter().map(|wanted| node.engine.create(wanted))).await
    {
        created.unwrap();
    }
    old.order("!exit 3");
    let (died, cause) = node.death(Duration::from_secs(5)).await;
    assert_eq!(died, old.id);
    assert!(matches!(cause, DeathCause::Exit { code: 3 } | DeathCause::Unseen), "{cause:?}");
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn what_belongs_to_nobody_is_removed() {
    let mut home = Home::new();
    home.ephemeral = false;
    let node = home.start().await;
    let sandbox = node.create(small()).await;
    node.stop().await;
    // As if the node had died before it wrote its journal.
    std::fs::remove_file(home.data_dir().join(format!("sandboxes/{}.json", sandbox.id))).unwrap();
    home.ephemeral = true;
    let node = home.start().await;
    assert!(node.engine.list().await.unwrap().is_empty());
    let orphans = node.engine.info().await.unwrap().orphans;
    let [orphan] = orphans.as_slice() else { panic!("{orphans:?}") };
    assert_eq!(orphan.name, sandbox.id.to_string());
    assert_eq!(orphan.had, ["a cgroup with 1 processes", "files", "a socket", "small files"]);
    let belongings = home.belongings();
    for kind in ["processes", "uppers", "sockets", "small files", "network namespaces"] {
        assert_eq!(belongings.0[kind], 0, "{belongings:?}");
    }
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn two_nodes_live_side_by_side() {
    let (left_home, right_home) = (Home::new(), Home::new());
    let (left, right) = tokio::join!(left_home.start(), right_home.start());
    let (one, two) = tokio::join!(left.create(small()), right.create(small()));
    let base = "awk '{print $2}' /proc/self/uid_map";
    assert_ne!(one.output(base).await, two.output(base).await);
    left.stop().await;
    assert!(left_home.belongings().nothing(), "{:?}", left_home.belongings());
    assert_eq!(two.output("echo alive").await, "alive");
    right.stop().await;
    assert!(right_home.belongings().nothing(), "{:?}", right_home.belongings());
}

async fn one_data_directory_has_one_node() {
    let home = Home::new();
    let node = home.start().await;
    let failure = home.try_start().await.unwrap_err();
    assert!(failure.to_string().contains("another node"), "{failure}");
    assert_eq!(node.create(small()).await.output("echo alive").await, "alive");
    node.stop().await;
}
