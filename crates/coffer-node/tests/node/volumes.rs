//! Directories that outlive sandboxes.

use std::time::Duration;

use coffer_core::{Boot, SnapshotId, VolumeId};
use coffer_engine::{Engine as _, EngineError, NodeEngine, NodeMount};
use coffer_node::PoolChoice;
use coffer_wire::node::CreateSandbox;

use crate::harness::{Home, Sandbox, small, spec};

crate::tests![
    sandboxes_share_a_volume_with_their_own_ids,
    the_limit_holds_against_root_and_set_uid_does_not_work,
    a_read_only_mount_cannot_be_written,
    nothing_is_mounted_over_links_or_in_place_of_files,
    a_fork_and_a_rollback_mount_the_same_volume,
    what_was_fsynced_survives_killed_nodes,
    unfinished_volumes_are_swept,
    plain_directories_have_volumes_without_a_limit,
];

fn at(volume: VolumeId, path: &str) -> NodeMount {
    NodeMount { volume, path: path.parse().unwrap(), read_only: false }
}

fn with(volumes: Vec<NodeMount>) -> CreateSandbox {
    CreateSandbox { volumes, ..spec(small()) }
}

async fn create(engine: &NodeEngine, spec: &CreateSandbox) -> Sandbox {
    Sandbox { id: spec.sandbox, placement: engine.create(spec).await.unwrap() }
}

async fn volume(engine: &NodeEngine, limit_mib: u64) -> VolumeId {
    let volume = VolumeId::generate();
    engine.create_volume(volume, limit_mib).await.unwrap();
    volume
}

/// Deletes a volume whose sandboxes were destroyed; their processes may take a moment to go.
async fn delete(engine: &NodeEngine, volume: VolumeId) {
    let deleted = async {
        while let Err(error) = engine.delete_volume(volume).await {
            assert!(matches!(error, EngineError::WrongState(_)), "{error}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), deleted).await.expect("nothing mounts it");
}

async fn sandboxes_share_a_volume_with_their_own_ids() {
    let home = Home::new();
    let node = home.start().await;
    let shared = volume(&node.engine, 32).await;
    let one = create(&node.engine, &with(vec![at(shared, "/mnt/deep/data")])).await;
    let two = create(&node.engine, &with(vec![at(shared, "/data")])).await;
    assert_eq!(one.output("stat -c '%u:%g %a' /mnt/deep/data").await, "0:0 777");
    one.output("echo first > /mnt/deep/data/a && chown 1000:1001 /mnt/deep/data/a").await;
    assert_eq!(two.output("cat /data/a; stat -c %u:%g /data/a").await, "first\n1000:1001");
    two.output("echo second >> /data/a").await;
    assert_eq!(one.output("cat /mnt/deep/data/a").await, "first\nsecond");
    // Neither sees where it is on the host, nor other volumes.
    let other = volume(&node.engine, 32).await;
    assert_eq!(two.output("ls -a /data/.. | grep -c data").await, "1");
    assert!(!two.output("cat /proc/self/mountinfo").await.contains(&home.data_dir().display().to_string()));
    assert!(!two.output("cat /proc/self/mountinfo").await.contains(&other.to_string()));

    let refused = node.engine.delete_volume(shared).await.unwrap_err().to_string();
    assert!(refused.contains(&one.id.to_string()) && refused.contains(&two.id.to_string()), "{refused}");
    for sandbox in [one, two] {
        node.engine.destroy(sandbox.id).await.unwrap();
    }
    let late = create(&node.engine, &with(vec![at(shared, "/data")])).await;
    assert_eq!(late.output("cat /data/a").await, "first\nsecond");
    node.engine.destroy(late.id).await.unwrap();
    delete(&node.engine, shared).await;
    delete(&node.engine, other).await;
    assert_eq!(home.belongings().0["volumes"], 0);
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn the_limit_holds_against_root_and_set_uid_does_not_work() {
    let home = Home::new();
    let node = home.start().await;
    let small_one = volume(&node.engine, 8).await;
    let sandbox = create(&node.engine, &with(vec![at(small_one, "/data")])).await;
    let (code, said) = sandbox.script("dd if=/dev/zero of=/data/big bs=1M count=24 conv=fsync 2>&1").await;
    assert!(code != 0 && (said.contains("quota") || said.contains("No space")), "{said}");
    // The sandbox's own disk is another one.
    sandbox.output("dd if=/dev/zero of=/root/own bs=1M count=16 conv=fsync 2>&1").await;
    sandbox.output("rm /data/big && echo small > /data/small").await;
    let used = node.engine.volumes().await.unwrap()[0].used_bytes;
    assert!(used < 8 << 20, "{used}");
    // Its limit is raised while it is mounted.
    node.engine.create_volume(small_one, 64).await.unwrap();
    sandbox.output("dd if=/dev/zero of=/data/big bs=1M count=24 conv=fsync 2>&1").await;

    let mounts = sandbox.output("grep ' /data ' /proc/self/mountinfo").await;
    assert!(mounts.contains("nosuid") && mounts.contains("nodev"), "{mounts}");
    assert_ne!(sandbox.script("mknod /data/null c 1 3 && echo x > /data/null").await.0, 0);
    assert_ne!(sandbox.script("umount /data || mount -o remount,suid /data").await.0, 0);
    // A volume in a volume would have no limit.
    let subvolume = "python3 -c 'import fcntl, os; fcntl.ioctl(os.open(\"/data\", 0), 0x5000940e, bytes(8) + b\"sub\".ljust(4088, bytes(1)))'";
    assert_ne!(sandbox.script(subvolume).await.0, 0);
    assert_ne!(sandbox.script("test -e /data/sub").await.0, 0);
    node.stop().await;
}

async fn a_read_only_mount_cannot_be_written() {
    let home = Home::new();
    let node = home.start().await;
    let shared = volume(&node.engine, 32).await;
    let writer = create(&node.engine, &with(vec![at(shared, "/data")])).await;
    let reading = NodeMount { read_only: true, ..at(shared, "/data") };
    let reader = create(&node.engine, &with(vec![reading])).await;
    writer.output("echo one > /data/a").await;
    assert_eq!(reader.output("cat /data/a").await, "one");
    for attempt in ["echo two > /data/a", "rm /data/a", "chmod 600 /data", "mount -o remount,rw /data"] {
        assert_ne!(reader.script(attempt).await.0, 0, "{attempt}");
    }
    writer.output("echo two > /data/a").await;
    assert_eq!(reader.output("cat /data/a").await, "two");
    node.stop().await;
}

async fn nothing_is_mounted_over_links_or_in_place_of_files() {
    let home = Home::new();
    let node = home.start().await;
    let shared = volume(&node.engine, 32).await;
    let source = node.create(small()).await;
    source.output("mkdir /real && ln -s /real /link && echo kept > /file && ln -s /proc /loop").await;
    let snapshot = node.snapshot(&source).await;
    for path in ["/link", "/link/below", "/file", "/file/below", "/loop/self"] {
        let spec = CreateSandbox { snapshot: Some(snapshot.snapshot), ..with(vec![at(shared, path)]) };
        let error = node.engine.create(&spec).await.unwrap_err().to_string();
        assert!(error.contains(path), "{error}");
    }
    // None of them is still held.
    delete(&node.engine, shared).await;
    let child = node.child(&snapshot).await;
    assert_eq!(child.output("cat /file; readlink /link").await, "kept\n/real");
    node.stop().await;
}

async fn a_fork_and_a_rollback_mount_the_same_volume() {
    let home = Home::new();
    let node = home.start().await;
    let shared = volume(&node.engine, 32).await;
    let mounts = vec![at(shared, "/data")];
    let source = create(&node.engine, &with(mounts.clone())).await;
    source.output("echo before > /data/a && echo before > /own").await;
    let snapshot = node.snapshot(&source).await;
    source.output("echo after > /data/a && echo after > /own").await;
    // A volume's content is in no snapshot.
    let wanted = CreateSandbox { snapshot: Some(snapshot.snapshot), ..with(mounts) };
    let fork = create(&node.engine, &wanted).await;
    assert_eq!(fork.output("cat /data/a /own").await, "after\nbefore");
    let plain = node.child(&snapshot).await;
    assert_eq!(plain.output("ls -A /data | wc -l").await, "0");
    let placement =
        node.engine.rollback(source.id, snapshot.snapshot, coffer_core::Memory::Without).await.unwrap();
    let source = Sandbox { id: source.id, placement };
    assert_eq!(source.output("cat /data/a /own").await, "after\nbefore");
    let kept = node.engine.snapshot(source.id, SnapshotId::generate(), coffer_core::Memory::With).await;
    assert!(matches!(&kept, Err(EngineError::Unsupported(why)) if why.contains("volume")), "{kept:?}");
    // Frozen in memory it keeps its mounts.
    node.engine.freeze(source.id).await.unwrap();
    fork.output("echo meanwhile > /data/a").await;
    node.engine.thaw(source.id).await.unwrap();
    assert_eq!(source.output("cat /data/a").await, "meanwhile");
    node.stop().await;
}

async fn what_was_fsynced_survives_killed_nodes() {
    let home = Home::new();
    let (mut process, engine, client) = home.start_process().await;
    let shared = volume(&engine, 64).await;
    let writers = [
        create(&engine, &with(vec![at(shared, "/data")])).await,
        create(&engine, &with(vec![at(shared, "/data")])).await,
    ];
    // Each writes lines that it counts after they are on disk.
    let write = |name: &str| {
        format!(
            "i=0; while [ $i -lt 200 ]; do i=$((i+1)); echo $i >> /data/{name}; sync -d /data/{name}; \
             echo $i > /synced; done; tail -n1 /data/{name}"
        )
    };
    let (one, two) = (write("one"), write("two"));
    let killing = async {
        // While they write.
        tokio::time::sleep(Duration::from_millis(300)).await;
        process.kill().unwrap();
        process.wait().unwrap();
        client.cancel();
        home.start_process().await
    };
    let (one, two, restarted) = tokio::join!(writers[0].output(&one), writers[1].output(&two), killing);
    assert_eq!((one.as_str(), two.as_str()), ("200", "200"), "their mounts continue without a node");
    let (mut process, engine, client) = restarted;
    // The next node knows who mounts it.
    assert!(matches!(engine.delete_volume(shared).await, Err(EngineError::WrongState(_))));
    engine.stop(writers[0].id).await.unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    client.cancel();
    home.reap_orphans();
    let (mut process, engine, client) = home.start_process().await;
    assert!(matches!(engine.delete_volume(shared).await, Err(EngineError::WrongState(_))));
    let placement = engine.start(writers[0].id, Boot::AsPaused).await.unwrap();
    let again = Sandbox { id: writers[0].id, placement };
    assert_eq!(again.output("cat /data/one /data/two | wc -l").await, "400");
    for sandbox in &writers {
        engine.destroy(sandbox.id).await.unwrap();
    }
    delete(&engine, shared).await;
    process.kill().unwrap();
    process.wait().unwrap();
    client.cancel();
    home.reap_orphans();
    // Takes up what the killed one left, and removes it.
    home.start().await.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn unfinished_volumes_are_swept() {
    let home = Home::new();
    let (mut process, engine, client) = home.start_process().await;
    let (kept, half) = (volume(&engine, 16).await, volume(&engine, 16).await);
    process.kill().unwrap();
    process.wait().unwrap();
    client.cancel();
    // As a node that dies during a delete leaves it.
    let pool = home.data_dir().join("pool");
    std::fs::rename(pool.join("v").join(half.to_string()), pool.join("d").join(half.to_string())).unwrap();
    let (mut process, engine, client) = home.start_process().await;
    let listed: Vec<_> = engine.volumes().await.unwrap().into_iter().map(|info| info.volume).collect();
    assert_eq!(listed, [kept]);
    assert_eq!(home.belongings().0["drafts"], 0);
    engine.create_volume(half, 16).await.expect("its id can be used again");
    for volume in [kept, half] {
        delete(&engine, volume).await;
    }
    process.kill().unwrap();
    process.wait().unwrap();
    client.cancel();
    home.start().await.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn plain_directories_have_volumes_without_a_limit() {
    let mut home = Home::new();
    home.pool = PoolChoice::Directory;
    let node = home.start().await;
    let shared = volume(&node.engine, 1).await;
    let spec = with(vec![at(shared, "/data")]);
    match node.engine.create(&spec).await {
        Ok(placement) => {
            let sandbox = Sandbox { id: spec.sandbox, placement };
            sandbox.output("dd if=/dev/zero of=/data/big bs=1M count=4 2>&1").await;
            assert_eq!(sandbox.output("stat -c %u:%s /data/big").await, "0:4194304");
            node.engine.destroy(sandbox.id).await.unwrap();
        }
        // Not every file system maps ids; it says so.
        Err(error) => assert!(error.to_string().contains("map the ids"), "{error}"),
    }
    delete(&node.engine, shared).await;
    node.stop().await;
}
