//! Limits hold, and passing them is told.

use std::time::Duration;

use coffer_core::Limits;
use coffer_engine::Engine as _;
use coffer_wire::node::DeathCause;

use crate::harness::{Home, small};

crate::tests![memory_is_limited, processes_are_limited, disk_is_limited, processor_time_is_limited];

async fn memory_is_limited() {
    let home = Home::new();
    let mut node = home.start().await;
    let sandbox = node.create(Limits { memory_mib: 128, ..small() }).await;
    // A greedy process is killed and the sandbox lives.
    let greedy = "perl -e '$x = \"a\" x (1 << 29)' || python3 -c 'x = b\"a\" * (1 << 29)'";
    let (code, _) = sandbox.script(greedy).await;
    assert_ne!(code, 0);
    assert_eq!(sandbox.output("echo alive").await, "alive");
    // So does shared memory count.
    let (code, _) = sandbox.script("head -c 200M /dev/zero > /dev/shm/big").await;
    assert_ne!(code, 0);
    sandbox.output("rm /dev/shm/big").await;

    sandbox.order("!eat");
    let (died, cause) = node.death(Duration::from_secs(20)).await;
    assert_eq!((died, cause), (sandbox.id, DeathCause::OutOfMemory));
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn processes_are_limited() {
    let home = Home::new();
    let node = home.start().await;
    let sandbox = node.create(Limits { max_processes: 32, ..small() }).await;
    let (_, said) = sandbox.script("for i in $(seq 100); do sleep 5 & done 2>&1; true").await;
    assert!(said.contains("fork"), "{said}");
    let processes = node.engine.stats().await.unwrap()[0].processes;
    assert!(processes <= 32, "{processes}");
    node.engine.destroy(sandbox.id).await.unwrap();
    node.stop().await;
}

async fn disk_is_limited() {
    let home = Home::new();
    let node = home.start().await;
    let sandbox = node.create(Limits { disk_mib: 32, ..small() }).await;
    sandbox.output("head -c 16M /dev/urandom > /root/fits && sync").await;
    let (code, said) = sandbox.script("head -c 64M /dev/urandom > /root/big").await;
    assert_ne!(code, 0);
    assert!(said.contains("quota"), "{said}");
    let used = node.engine.stats().await.unwrap()[0].disk_bytes;
    assert!(used > 8 << 20 && used <= 32 << 20, "{used}");
    // A full sandbox can still be stopped and started, and files removed from it.
    node.engine.stop(sandbox.id).await.unwrap();
    node.engine.start(sandbox.id).await.unwrap();
    sandbox.output("rm /root/big && sync && echo x > /root/small").await;
    let (code, _) = sandbox.script("head -c 64M /dev/urandom > /root/big").await;
    assert_ne!(code, 0);
    sandbox.output("rm /root/big && sync && head -c 8M /dev/urandom > /root/again").await;
    node.engine.destroy(sandbox.id).await.unwrap();
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn processor_time_is_limited() {
    let home = Home::new();
    let node = home.start().await;
    let sandbox = node.create(Limits { cpu_count: 1, ..small() }).await;
    sandbox.output("for i in 1 2 3; do (while :; do :; done) >/dev/null 2>&1 & done").await;
    let sample = || async { node.engine.stats().await.unwrap().remove(0) };
    let before = sample().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let after = sample().await;
    let used = (after.cpu_us - before.cpu_us) as f64 / 1000.0;
    let share = used / (after.time_ms - before.time_ms) as f64;
    assert!(share > 0.1 && share < 1.1, "{share}");
    node.engine.destroy(sandbox.id).await.unwrap();
    node.stop().await;
}
