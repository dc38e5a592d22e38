//! Create, freeze, stop, start, destroy.

use std::time::{Duration, Instant};

use coffer_core::{Boot, SandboxId};
use coffer_engine::{Engine as _, EngineError};
use coffer_wire::node::{DeathCause, RunState};

use crate::harness::{Home, small, spec};

crate::tests![
    a_sandbox_runs_and_goes,
    creating_twice_gives_the_same,
    frozen_processes_stand_still,
    stopping_keeps_files_and_changes_the_boot,
    deaths_are_told,
    wrong_wishes_are_refused,
    a_failed_create_leaves_nothing,
    a_pool_of_a_size_that_does_not_fit_is_refused,
    directories_do_where_no_pool_can_be,
];

async fn a_sandbox_runs_and_goes() {
    let home = Home::new();
    let node = home.start().await;
    let info = node.engine.info().await.unwrap();
    assert!(info.capabilities.disk_quota, "{:?}", info.warnings);
    assert!(info.capabilities.freeze && info.capabilities.memory_limit, "{:?}", info.warnings);
    let processors = std::thread::available_parallelism().unwrap().get();
    assert!(info.cpu_count.is_some_and(|count| count as usize >= processors), "{:?}", info.cpu_count);
    assert!(info.memory_bytes.is_some_and(|bytes| bytes >= 64 << 20), "{:?}", info.memory_bytes);

    let started = Instant::now();
    let sandbox = node.create(small()).await;
    println!("first create: {:?}", started.elapsed());
    assert_eq!(sandbox.output("echo hello").await, "hello");
    let statuses = node.engine.list().await.unwrap();
    assert_eq!(statuses.len(), 1);
    assert_eq!((statuses[0].sandbox, &statuses[0].run), (sandbox.id, &RunState::Running));
    assert_eq!(statuses[0].placement, sandbox.placement);

    let samples = node.engine.stats().await.unwrap();
    assert_eq!(samples.len(), 1);
    assert!(samples[0].memory_bytes > 0 && samples[0].processes > 0, "{samples:?}");

    node.engine.destroy(sandbox.id).await.unwrap();
    node.engine.destroy(sandbox.id).await.unwrap();
    node.engine.destroy(SandboxId::generate()).await.unwrap();
    assert!(node.engine.list().await.unwrap().is_empty());
    assert!(std::os::unix::net::UnixStream::connect(&sandbox.placement.socket).is_err());
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn creating_twice_gives_the_same() {
    let home = Home::new();
    let node = home.start().await;
    let wanted = spec(small());
    let (one, two) = tokio::join!(node.engine.create(&wanted), node.engine.create(&wanted));
    let one = one.unwrap();
    assert_eq!(one, two.unwrap());
    assert_eq!(one, node.engine.create(&wanted).await.unwrap());
    let mut other = wanted.clone();
    other.limits.memory_mib += 1;
    assert!(matches!(node.engine.create(&other).await, Err(EngineError::WrongState(_))));
    assert_eq!(node.engine.list().await.unwrap().len(), 1);
    node.stop().await;
}

async fn frozen_processes_stand_still() {
    let home = Home::new();
    let node = home.start().await;
    let sandbox = node.create(small()).await;
    sandbox.output("(while :; do :; done) >/dev/null 2>&1 &").await;
    node.engine.freeze(sandbox.id).await.unwrap();
    node.engine.freeze(sandbox.id).await.unwrap();
    let used = || async { node.engine.stats().await.unwrap()[0].cpu_us };
    let before = used().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(used().await, before);
    assert_eq!(node.engine.list().await.unwrap()[0].run, RunState::Frozen);
    node.engine.thaw(sandbox.id).await.unwrap();
    node.engine.thaw(sandbox.id).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while used().await <= before + 100_000 {
        assert!(Instant::now() < deadline, "it runs again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(sandbox.output("echo alive").await, "alive");
    node.engine.freeze(sandbox.id).await.unwrap();
    // Also a frozen sandbox can be destroyed.
    node.engine.destroy(sandbox.id).await.unwrap();
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn stopping_keeps_files_and_changes_the_boot() {
    let home = Home::new();
    let node = home.start().await;
    let sandbox = node.create(small()).await;
    let facts = "cat /proc/sys/kernel/random/boot_id; cat /etc/machine-id";
    let before = sandbox.output(facts).await;
    sandbox.output("echo kept > /root/file; mkdir /var/dir; echo changed > /etc/hostname").await;
    // A user may try to confuse the next start.
    sandbox.output("ln -s /etc /mnt/x; rm -rf /media; ln -s /etc /media").await;
    node.engine.stop(sandbox.id).await.unwrap();
    node.engine.stop(sandbox.id).await.unwrap();
    assert_eq!(node.engine.list().await.unwrap()[0].run, RunState::Stopped);
    assert!(node.engine.stats().await.unwrap().is_empty());
    assert!(std::os::unix::net::UnixStream::connect(&sandbox.placement.socket).is_err());

    let placement = node.engine.start(sandbox.id, Boot::AsPaused).await.unwrap();
    assert_eq!(placement, sandbox.placement);
    assert_eq!(
        sandbox.output("cat /root/file /etc/hostname; ls -d /var/dir").await,
        "kept\nchanged\n/var/dir"
    );
    let after = sandbox.output(facts).await;
    let (before, after): (Vec<_>, Vec<_>) = (before.lines().collect(), after.lines().collect());
    assert_ne!(before[0], after[0], "the boot id is new");
    assert_eq!(before[1], after[1], "the machine id stays");
    node.engine.stop(sandbox.id).await.unwrap();
    node.engine.destroy(sandbox.id).await.unwrap();
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn deaths_are_told() {
    let home = Home::new();
    let mut node = home.start().await;
    for (order, cause) in [
        ("!exit 7", DeathCause::Exit { code: 7 }),
        // Process 1 is spared its own SIGABRT; the instruction that follows is not survived.
        ("!abort", DeathCause::Signal { signal: libc::SIGSEGV }),
    ] {
        let sandbox = node.create(small()).await;
        let asked = Instant::now();
        sandbox.order(order);
        assert_eq!(node.death(Duration::from_secs(5)).await, (sandbox.id, cause.clone()));
        println!("told of `{order}` after {:?}", asked.elapsed());
        assert_eq!(node.engine.list().await.unwrap()[0].run, RunState::Dead { cause });
        assert!(matches!(node.engine.freeze(sandbox.id).await, Err(EngineError::WrongState(_))));
        node.engine.destroy(sandbox.id).await.unwrap();
        assert!(node.engine.list().await.unwrap().is_empty());
    }
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn wrong_wishes_are_refused() {
    let home = Home::new();
    let node = home.start().await;
    let nobody = SandboxId::generate();
    assert!(matches!(node.engine.freeze(nobody).await, Err(EngineError::UnknownSandbox)));
    assert!(matches!(node.engine.start(nobody, Boot::AsPaused).await, Err(EngineError::UnknownSandbox)));
    let mut wanted = spec(small());
    wanted.template = "../../etc".into();
    assert!(matches!(node.engine.create(&wanted).await, Err(EngineError::UnknownTemplate(_))));
    wanted.template = "base".into();
    wanted.hostname = "a b".into();
    assert!(matches!(node.engine.create(&wanted).await, Err(EngineError::Unsupported(_))));
    let sandbox = node.create(small()).await;
    node.engine.stop(sandbox.id).await.unwrap();
    assert!(matches!(node.engine.freeze(sandbox.id).await, Err(EngineError::WrongState(_))));
    assert!(matches!(node.engine.thaw(sandbox.id).await, Err(EngineError::WrongState(_))));
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn a_failed_create_leaves_nothing() {
    let home = Home::new();
    let node = home.start_with(b"this is not a program").await;
    let before = home.belongings().without("uid blocks");
    let error = node.engine.create(&spec(small())).await.unwrap_err();
    assert!(error.to_string().contains("execute agentd"), "{error}");
    assert!(node.engine.list().await.unwrap().is_empty());
    // The reaper works in the background.
    let deadline = Instant::now() + Duration::from_secs(10);
    while home.belongings().without("uid blocks") != before {
        assert!(Instant::now() < deadline, "{:?} was {before:?}", home.belongings());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn a_pool_of_a_size_that_does_not_fit_is_refused() {
    let mut home = Home::new();
    // No disk holds such an image.
    home.pool = coffer_node::PoolChoice::Auto { size_bytes: Some(1 << 60) };
    let failure = home.try_start().await.unwrap_err();
    let cause = std::error::Error::source(&failure).map(ToString::to_string).unwrap_or_default();
    assert!(cause.contains("does not fit"), "{failure}: {cause}");
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn directories_do_where_no_pool_can_be() {
    let mut home = Home::new();
    home.pool = coffer_node::PoolChoice::Directory;
    let node = home.start().await;
    let info = node.engine.info().await.unwrap();
    assert!(!info.capabilities.disk_quota);
    assert!(info.warnings.iter().any(|warning| warning.contains("disk")), "{:?}", info.warnings);
    let sandbox = node.create(small()).await;
    sandbox.output("mkdir -p /a/b/c && echo x > /a/b/c/d && mv /usr/share /usr/shared").await;
    node.engine.destroy(sandbox.id).await.unwrap();
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}
