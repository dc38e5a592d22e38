//! Snapshots and frozen sandboxes after the end of their node, or of the host.

use std::fs;
use std::time::Duration;

use coffer_core::SnapshotId;
use coffer_engine::{Engine as _, EngineError};
use coffer_wire::node::{CreateSandbox, RunState};

use crate::harness::{Home, Sandbox, small, spec};

crate::tests![
    the_next_node_has_the_same_snapshots,
    a_killed_node_leaves_whole_snapshots_or_none,
    frozen_sandboxes_survive_the_host,
];

async fn the_next_node_has_the_same_snapshots() {
    let mut home = Home::new();
    home.ephemeral = false;
    let node = home.start().await;
    let source = node.create(small()).await;
    source.output("echo there > /root/x").await;
    let (kept, edited, bare) =
        (node.snapshot(&source).await, node.snapshot(&source).await, node.snapshot(&source).await);
    let child = node.child(&edited).await;
    node.engine.destroy(source.id).await.unwrap();
    node.engine.stop(child.id).await.unwrap();
    node.stop().await;

    let manifest = |id: SnapshotId| home.data_dir().join(format!("snapshots/{id}.manifest"));
    let text = fs::read_to_string(manifest(edited.snapshot)).unwrap();
    fs::write(manifest(edited.snapshot), text.replacen("\"stored_uid_base\":", "\"stored_uid_base\":1", 1))
        .unwrap();
    // As if a node had died before it wrote it.
    fs::rename(manifest(bare.snapshot), manifest(bare.snapshot).with_extension("new")).unwrap();
    // As if somebody had removed the files.
    let lost = SnapshotId::generate();
    fs::write(manifest(lost), fs::read(manifest(kept.snapshot)).unwrap()).unwrap();

    home.ephemeral = true;
    let node = home.start().await;
    assert_eq!(node.engine.snapshots().await.unwrap(), std::slice::from_ref(&kept));
    let belongings = home.belongings();
    assert_eq!((belongings.0["snapshots"], belongings.0["manifests"]), (2, 2), "{belongings:?}");
    assert_eq!(node.child(&kept).await.output("cat /root/x").await, "there");
    for refused in [&edited, &bare] {
        let wanted = CreateSandbox { snapshot: Some(refused.snapshot), ..spec(small()) };
        let refused = node.engine.create(&wanted).await;
        assert!(matches!(refused, Err(EngineError::UnknownSnapshot)), "{refused:?}");
    }
    node.engine.start(child.id, false).await.unwrap();
    assert_eq!(child.output("cat /root/x").await, "there", "children go on");
    // Asked again, the answer is the same, though its source is gone.
    assert_eq!(node.engine.snapshot(source.id, kept.snapshot, false).await.unwrap(), kept);
    node.engine.delete_snapshot(edited.snapshot).await.unwrap();
    assert_eq!(home.belongings().0["manifests"], 1);
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn a_killed_node_leaves_whole_snapshots_or_none() {
    let home = Home::new();
    let (mut process, engine, stop_client) = home.start_process().await;
    let wanted = spec(small());
    let source = Sandbox { id: wanted.sandbox, placement: engine.create(&wanted).await.unwrap() };
    source.output("echo there > /root/x").await;
    let snapshots: Vec<_> = (0..20).map(|_| SnapshotId::generate()).collect();
    let making = async {
        let mut told = Vec::new();
        for snapshot in &snapshots {
            match engine.snapshot(source.id, *snapshot, false).await {
                Ok(made) => told.push(made),
                Err(_) => break,
            }
        }
        told
    };
    let killing = async {
        tokio::time::sleep(Duration::from_millis(120)).await;
        process.kill().unwrap();
        process.wait().unwrap();
        stop_client.cancel();
    };
    let (told, ()) = tokio::join!(making, killing);
    println!("{} snapshots before the node was killed", told.len());

    let node = home.start().await;
    let known = node.engine.snapshots().await.unwrap();
    for snapshot in &told {
        assert!(known.contains(snapshot), "{snapshot:?} is not among {known:?}");
    }
    let belongings = home.belongings();
    assert_eq!(
        (belongings.0["snapshots"], belongings.0["manifests"]),
        (known.len(), known.len()),
        "{belongings:?}"
    );
    for snapshot in known.iter().rev().take(2) {
        assert_eq!(node.child(snapshot).await.output("cat /root/x").await, "there");
    }
    // It may have been killed while the source stood still; whoever wants it to run says so.
    if node.engine.list().await.unwrap().iter().any(|status| status.run == RunState::Frozen) {
        node.engine.thaw(source.id).await.unwrap();
    }
    assert_eq!(source.output("cat /root/x").await, "there");
    node.stop().await;
    home.reap_orphans();
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn frozen_sandboxes_survive_the_host() {
    let mut home = Home::new();
    home.ephemeral = false;
    let node = home.start().await;
    let (frozen, thawed) = tokio::join!(node.create(small()), node.create(small()));
    for sandbox in [&frozen, &thawed] {
        sandbox.output("echo there > /root/x").await;
        node.engine.freeze(sandbox.id).await.unwrap();
    }
    node.engine.thaw(thawed.id).await.unwrap();
    node.stop().await;
    // As if the host had gone down: another boot, no processes.
    for sandbox in [&frozen, &thawed] {
        home.edit_entry(sandbox.id, |entry| entry["phase"]["process"]["host_boot_id"] = "another".into());
    }
    home.kill_slots(&[]);
    home.ephemeral = true;
    let node = home.start().await;
    let statuses = node.engine.list().await.unwrap();
    let run = |id| statuses.iter().find(|status| status.sandbox == id).unwrap().run.clone();
    assert_eq!(run(frozen.id), RunState::Stopped);
    assert!(matches!(run(thawed.id), RunState::Dead { .. }));
    assert!(matches!(node.engine.thaw(frozen.id).await, Err(EngineError::WrongState(_))));
    node.engine.start(frozen.id, false).await.unwrap();
    assert_eq!(frozen.output("cat /root/x").await, "there");
    node.stop().await;
    home.reap_orphans();
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}
