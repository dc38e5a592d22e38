//! Limits hold, and exceeding them is reported.

use std::time::Duration;

use coffer_core::{Boot, Limits};
use coffer_engine::Engine as _;
use coffer_wire::node::DeathCause;

use crate::harness::{Home, small};

crate::tests![
    memory_is_limited,
    processes_are_limited,
    disk_is_limited,
    processor_time_is_limited,
    what_the_kernel_counts_by_user_is_counted_apart,
    one_sandbox_cannot_take_all_terminals,
];

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
    node.engine.start(sandbox.id, Boot::AsPaused).await.unwrap();
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
    // The share of a stretch of time, which has to pass.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let after = sample().await;
    let used = (after.cpu_us - before.cpu_us) as f64 / 1000.0;
    let share = used / (after.time_ms - before.time_ms) as f64;
    assert!(share > 0.1 && share < 1.1, "{share}");
    node.engine.destroy(sandbox.id).await.unwrap();
    node.stop().await;
}

/// Namespaces that all belonged to root shared its 128 inotify instances: one sandbox could take them all.
async fn what_the_kernel_counts_by_user_is_counted_apart() {
    let most = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_instances").unwrap();
    let most: usize = most.trim().parse().unwrap();
    if most > 2000 {
        println!("SKIPPED: this host allows {most} inotify instances, more than a sandbox opens here");
        return;
    }
    let home = Home::new();
    let node = home.start().await;
    let (greedy, other) = tokio::join!(node.create(small()), node.create(small()));
    let open = format!("!call {}", libc::SYS_inotify_init1);
    let mut opened = 0;
    while greedy.output(&open).await == "0" {
        opened += 1;
        assert!(opened <= most, "no limit at all");
    }
    assert_eq!(opened, most);
    assert_eq!(other.output(&open).await, "0");
    node.stop().await;
}

async fn one_sandbox_cannot_take_all_terminals() {
    let home = Home::new();
    let node = home.start().await;
    let sandbox = node.create(small()).await;
    let open = "bash -c 'n=0; while { exec {fd}<>/dev/ptmx; } 2>/dev/null; do n=$((n + 1)); done; echo $n'";
    assert_eq!(sandbox.output(open).await, "256");
    node.stop().await;
}
