//! Sandboxes that get the files of a snapshot in place of their own.

use std::time::{Duration, Instant};

use coffer_core::{Boot, Memory, SnapshotId};
use coffer_engine::Engine as _;
use coffer_wire::node::RunState;

use crate::harness::{Home, Sandbox, small, spec};

crate::tests![
    a_rollback_gives_back_what_was,
    the_files_of_another_can_be_taken,
    hibernated_sandboxes_have_a_past_too,
    a_rollback_that_is_cut_off_leaves_old_or_new,
];

async fn settled(home: &Home, uppers: usize) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while home.belongings().0["uppers"] != uppers {
        assert!(Instant::now() < deadline, "{:?}", home.belongings());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn a_rollback_gives_back_what_was() {
    let home = Home::new();
    let node = home.start().await;
    let mut sandbox = node.create(small()).await;
    sandbox.output("mkdir /root/d; echo first > /root/d/x; chown 1000 /root/d/x; rm /etc/shells").await;
    let machine_id = sandbox.output("cat /etc/machine-id").await;
    let snapshot = node.snapshot(&sandbox).await;
    for from in [RunState::Running, RunState::Frozen, RunState::Stopped] {
        sandbox
            .output("echo second > /root/d/x; mv /root/d /root/e; touch /root/new; echo z > /etc/shells")
            .await;
        match from {
            RunState::Frozen => node.engine.freeze(sandbox.id).await.unwrap(),
            RunState::Stopped => node.engine.stop(sandbox.id).await.unwrap(),
            _ => {}
        }
        sandbox.placement =
            node.engine.rollback(sandbox.id, snapshot.snapshot, Memory::Without).await.unwrap();
        let seen = "cat /root/d/x; stat -c %u /root/d/x; ls /root; ! [ -e /etc/shells ]; cat /etc/machine-id; hostname";
        assert_eq!(sandbox.output(seen).await, format!("first\n1000\nd\n{machine_id}\ne2b.local"));
        assert_eq!(node.engine.list().await.unwrap()[0].run, RunState::Running);
        settled(&home, 1).await;
    }
    // It continues from there like any other.
    sandbox.output("echo third > /root/d/x").await;
    node.engine.stop(sandbox.id).await.unwrap();
    node.engine.start(sandbox.id, Boot::AsPaused).await.unwrap();
    let child = node.child(&node.snapshot(&sandbox).await).await;
    assert_eq!(child.output("cat /root/d/x").await, "third");
    node.engine.destroy(sandbox.id).await.unwrap();
    settled(&home, 1).await;
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn the_files_of_another_can_be_taken() {
    let home = Home::new();
    let node = home.start().await;
    let (source, mut taker) = tokio::join!(node.create(small()), node.create(small()));
    source.output("echo theirs > /root/x; chown 1000 /root/x").await;
    taker.output("echo own > /root/x").await;
    let machine_id = source.output("cat /etc/machine-id").await;
    let snapshot = node.snapshot(&source).await;
    node.engine.destroy(source.id).await.unwrap();
    taker.placement = node.engine.rollback(taker.id, snapshot.snapshot, Memory::Without).await.unwrap();
    assert_eq!(taker.output("cat /root/x; stat -c %u /root/x").await, "theirs\n1000");
    assert_ne!(taker.output("cat /etc/machine-id").await, machine_id);
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn hibernated_sandboxes_have_a_past_too() {
    let home = Home::new();
    let node = home.start().await;
    if let Some(why) = node.engine.info().await.unwrap().memory_snapshot_lacks {
        println!("SKIPPED: memory cannot be saved here: {why}");
        return node.stop().await;
    }
    let mut sandbox = node.create(small()).await;
    sandbox.output("echo first > /root/x").await;
    let past = node.snapshot(&sandbox).await;
    sandbox.output("echo second > /root/x").await;
    node.engine.hibernate(sandbox.id).await.unwrap();
    let saved = home.data_dir().join("pool/m").join(sandbox.id.to_string());
    assert!(saved.exists());
    let child = node.child(&node.snapshot(&sandbox).await).await;
    assert_eq!(child.output("cat /root/x").await, "second");
    // A refusal changes nothing: its processes continue.
    node.engine.rollback(sandbox.id, SnapshotId::generate(), Memory::Without).await.unwrap_err();
    sandbox.placement = node.engine.start(sandbox.id, Boot::AsPaused).await.unwrap();
    assert_eq!(sandbox.output("cat /root/x").await, "second");
    node.engine.hibernate(sandbox.id).await.unwrap();
    sandbox.placement = node.engine.rollback(sandbox.id, past.snapshot, Memory::Without).await.unwrap();
    assert_eq!(sandbox.output("cat /root/x").await, "first");
    assert!(!saved.exists());
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn a_rollback_that_is_cut_off_leaves_old_or_new() {
    let mut home = Home::new();
    let (mut process, mut engine, mut stop_client) = home.start_process().await;
    let wanted = spec(small());
    let mut sandbox = Sandbox { id: wanted.sandbox, placement: engine.create(&wanted).await.unwrap() };
    // Two files that are of the same time, or something was mixed.
    sandbox.output("echo past > /root/a; echo past > /root/b").await;
    let past = engine.snapshot(sandbox.id, SnapshotId::generate(), Memory::Without).await.unwrap();
    let mut seen = Vec::new();
    for round in 0..6u64 {
        sandbox.output(&format!("echo {round} > /root/b; echo {round} > /root/a")).await;
        let rolling = engine.rollback(sandbox.id, past.snapshot, Memory::Without);
        let killing = async {
            tokio::time::sleep(Duration::from_millis(4 + 9 * round)).await;
            process.kill().unwrap();
            process.wait().unwrap();
            stop_client.cancel();
        };
        let (rolled, ()) = tokio::join!(rolling, killing);
        (process, engine, stop_client) = home.start_process().await;
        home.reap_orphans();
        let statuses = engine.list().await.unwrap();
        let [status] = statuses.as_slice() else { panic!("{statuses:?}") };
        if status.run == RunState::Stopped {
            engine.start(sandbox.id, Boot::AsPaused).await.unwrap();
        }
        sandbox.placement = status.placement.clone();
        let files = sandbox.output("cat /root/a /root/b").await;
        let old = format!("{round}\n{round}");
        assert!(files == "past\npast" || (files == old && rolled.is_err()), "{files}, after {rolled:?}");
        let uppers = home.belongings().0["uppers"];
        assert_eq!(uppers, 1, "what is not in use was swept");
        seen.push((status.run.clone(), files == old));
    }
    println!("killed over rollbacks: {seen:?}");
    process.kill().unwrap();
    process.wait().unwrap();
    stop_client.cancel();
    home.ephemeral = true;
    let node = home.start().await;
    node.stop().await;
    home.reap_orphans();
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}
