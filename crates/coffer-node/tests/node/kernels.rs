//! Kernels that lack something: each fallback, forced on this kernel, through a sandbox's whole life.

use std::time::Duration;

use coffer_core::{Memory, SnapshotId};
use coffer_engine::Engine as _;
use coffer_node::features::{Feature, KNOWN_HOSTS, KnownHost, Lacking, Need, TABLE};
use coffer_node::{NodeFailure, PoolChoice};
use coffer_wire::node::CreateSandbox;

use crate::harness::{Home, TestNode, small, spec};

crate::tests!(
    every_fallback_carries_a_sandbox_through_its_life,
    kernels_of_known_hosts_carry_a_sandbox_through_its_life,
    what_cannot_be_replaced_is_a_typed_refusal,
    a_host_without_a_required_feature_is_refused_by_name,
    the_node_reports_what_it_does_without,
    a_pool_that_nothing_can_be_tried_in_keeps_the_oldest_ways,
);

fn home(lacking: Lacking) -> Home {
    let mut home = Home::new();
    home.lacking = lacking;
    home
}

async fn every_fallback_carries_a_sandbox_through_its_life() {
    for row in TABLE.iter().filter(|row| row.need == Need::Fallback) {
        println!("without {}: {}", row.name, row.without);
        live_through(Lacking::from_iter([row.feature])).await;
    }
}

async fn kernels_of_known_hosts_carry_a_sandbox_through_its_life() {
    for KnownHost { name, lacks } in KNOWN_HOSTS {
        let lacking = Lacking::from_iter(lacks.iter().copied());
        println!("{name}, without {lacking}");
        live_through(lacking).await;
    }
}

/// Creates, writes, pauses, resumes, snapshots, forks, kills and destroys; nothing may be left.
async fn live_through(lacking: Lacking) {
    let home = home(lacking);
    let node = home.start().await;
    let before = home.belongings();
    let sandbox = node.create(small()).await;
    // Of a lower layer and of the upper one, as the sandbox's own root.
    assert_eq!(sandbox.output("stat -c '%u %g' / /usr/bin | sort -u").await, "0 0");
    let script =
        "set -e; echo kept >/root/file; mkdir /etc/renamed; mv /etc/renamed /etc/moved; cat /root/file";
    assert_eq!(sandbox.output(script).await, "kept");
    assert_eq!(sandbox.output("ls /sys >/dev/null && head -c1 /dev/zero | wc -c").await, "1");
    node.engine.freeze(sandbox.id).await.unwrap();
    node.engine.thaw(sandbox.id).await.unwrap();
    assert_eq!(sandbox.output("cat /root/file").await, "kept");
    let snapshot = node.snapshot(&sandbox).await;
    sandbox.output("echo changed >/root/file").await;
    let child = node.child(&snapshot).await;
    assert_eq!(child.output("cat /root/file; test -d /etc/moved").await, "kept");
    // More processes than one read of a cgroup could keep up with, if they kept forking.
    sandbox.order("for i in $(seq 30); do sleep 600 & done");
    for id in [child.id, sandbox.id] {
        node.engine.destroy(id).await.unwrap();
    }
    node.engine.delete_snapshot(snapshot.snapshot).await.unwrap();
    settled(&home, &before).await;
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

/// The reaper works behind the answer.
async fn settled(home: &Home, before: &crate::harness::Belongings) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    let before = before.clone().without("uid blocks");
    while home.belongings().without("uid blocks") != before {
        assert!(tokio::time::Instant::now() < deadline, "{:?} instead of {before:?}", home.belongings());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn what_cannot_be_replaced_is_a_typed_refusal() {
    let home = home(Lacking::from_iter([Feature::Btrfs, Feature::Nftables]));
    let node = home.start().await;
    let info = node.engine.info().await.unwrap();
    assert!(!info.capabilities.disk_quota && !info.capabilities.network, "{:?}", info.capabilities);
    for text in ["disk use is not limited", "sandboxes have no network"] {
        assert!(info.warnings.iter().any(|warning| warning.contains(text)), "{:?}", info.warnings);
    }
    let sandbox = node.create(small()).await;
    assert_eq!(sandbox.output("echo works").await, "works");
    let refused =
        node.engine.snapshot(sandbox.id, SnapshotId::generate(), Memory::Without).await.unwrap_err();
    assert!(refused.to_string().contains("btrfs"), "{refused}");
    node.stop().await;
}

async fn a_host_without_a_required_feature_is_refused_by_name() {
    let home = home(Lacking::from_iter([Feature::OverlayMappedLayers]));
    let failure = home.try_start().await.unwrap_err();
    assert!(matches!(failure, NodeFailure::Unusable(_)), "{failure:?}");
    let text = failure.to_string();
    assert!(text.contains("overlay_mapped_layers is missing") && text.contains("fix: "), "{text}");
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn the_node_reports_what_it_does_without() {
    let home = home(Lacking::from_iter([Feature::OverlayDetached, Feature::CgroupKill]));
    let node: TestNode = home.start().await;
    let kernel = node.engine.info().await.unwrap().kernel;
    assert_eq!(kernel.len(), TABLE.len());
    for name in ["overlay_detached", "cgroup_kill"] {
        let feature = kernel.iter().find(|feature| feature.name == name).unwrap();
        assert!(!feature.present && feature.without.is_some(), "{feature:?}");
    }
    let spec = CreateSandbox { template: "no-such".into(), ..spec(small()) };
    assert!(node.engine.create(&spec).await.is_err());
    node.stop().await;
}

/// A full pool must not keep a node from taking up the sandboxes that are in it.
async fn a_pool_that_nothing_can_be_tried_in_keeps_the_oldest_ways() {
    let mut home = home(Lacking::default());
    home.pool = PoolChoice::Directory;
    // In the way of the scratch directory.
    std::fs::create_dir_all(home.data_dir().join("pool")).unwrap();
    std::fs::write(home.data_dir().join("pool/probe"), "").unwrap();
    let node = home.start().await;
    let kernel = node.engine.info().await.unwrap().kernel;
    let missing: Vec<_> = kernel.iter().filter(|one| !one.present).map(|one| one.name.as_str()).collect();
    assert!(missing.contains(&"overlay_append") && missing.contains(&"overlay_detached"), "{missing:?}");
    let sandbox = node.create(small()).await;
    assert_eq!(sandbox.output("echo works").await, "works");
    node.stop().await;
}
