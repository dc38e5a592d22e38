//! Every resource that is allocated is released.

use std::time::{Duration, Instant};

use coffer_engine::Engine as _;

use crate::harness::{Belongings, Home, small};

crate::tests![cycles_leave_the_host_as_it_was, many_live_at_once];

/// More than one block of ids; `COFFER_MANY` for more.
fn many() -> usize {
    std::env::var("COFFER_MANY").ok().and_then(|text| text.parse().ok()).unwrap_or(70)
}

/// `COFFER_CYCLES` for a longer run.
fn cycles() -> usize {
    std::env::var("COFFER_CYCLES").ok().and_then(|text| text.parse().ok()).unwrap_or(40)
}

async fn settled(home: &Home, expected: &Belongings) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while home.belongings() != *expected {
        assert!(Instant::now() < deadline, "{:?} should be {expected:?}", home.belongings());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

async fn cycles_leave_the_host_as_it_was() {
    let home = Home::new();
    let node = home.start().await;
    // The first one takes a block of ids and warms caches.
    let first = node.create(small()).await;
    node.engine.destroy(first.id).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = home.belongings();
    let descriptors = open_descriptors();

    let (mut creates, mut destroys) = (Vec::new(), Vec::new());
    for cycle in 0..cycles() {
        let started = Instant::now();
        let sandbox = node.create(small()).await;
        creates.push(started.elapsed());
        assert_eq!(sandbox.output("echo $((6 * 7)) | tee /root/file").await, "42");
        match cycle % 4 {
            0 => node.engine.freeze(sandbox.id).await.unwrap(),
            1 => node.engine.stop(sandbox.id).await.unwrap(),
            _ => {}
        }
        let started = Instant::now();
        node.engine.destroy(sandbox.id).await.unwrap();
        destroys.push(started.elapsed());
    }
    settled(&home, &before).await;
    // Several at once.
    let many: Vec<_> = (0..8).map(|_| node.create(small())).collect();
    let many = futures_util::future::join_all(many).await;
    let gone = many.iter().map(|sandbox| node.engine.destroy(sandbox.id));
    for destroyed in futures_util::future::join_all(gone).await {
        destroyed.unwrap();
    }
    settled(&home, &before).await;
    assert!(open_descriptors() <= descriptors + 4, "{} descriptors, were {descriptors}", open_descriptors());
    for (what, times) in [("create", &mut creates), ("destroy", &mut destroys)] {
        times.sort();
        let at = |share: usize| times[(times.len() - 1) * share / 100];
        println!("{what}: p10 {:?} p50 {:?} p99 {:?}", at(10), at(50), at(99));
    }
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn many_live_at_once() {
    let home = Home::new();
    let node = home.start().await;
    node.engine.destroy(node.create(small()).await.id).await.unwrap();
    let started = Instant::now();
    let mut all = Vec::new();
    for _ in 0..many().div_ceil(10) {
        let ten: Vec<_> = (0..10).map(|_| node.create(small())).collect();
        all.extend(futures_util::future::join_all(ten).await);
    }
    println!("{} sandboxes, ten at a time: {:?}", all.len(), started.elapsed());
    let started = Instant::now();
    let samples = node.engine.stats().await.unwrap();
    println!("stats of all: {:?}", started.elapsed());
    assert_eq!(samples.len(), all.len());
    let ids: std::collections::HashSet<_> = futures_util::future::join_all(
        all.iter().map(|sandbox| sandbox.output("awk '{print $2}' /proc/self/uid_map")),
    )
    .await
    .into_iter()
    .collect();
    assert_eq!(ids.len(), all.len(), "each has ids of its own");
    let started = Instant::now();
    // All of them, by the node itself.
    node.stop().await;
    println!("stopped and all given back: {:?}", started.elapsed());
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}
