//! Snapshots and frozen sandboxes after the end of their node, or of the host.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use coffer_core::{Boot, Memory, SnapshotId};
use coffer_engine::{Engine as _, EngineError};
use coffer_wire::node::{CreateSandbox, RunState};

use crate::harness::{Home, Sandbox, small, spec};
use crate::snapshots::{CHECK, WRITER};

crate::tests![
    the_next_node_has_the_same_snapshots,
    a_killed_node_leaves_whole_snapshots_or_none,
    frozen_sandboxes_survive_the_host,
    what_is_answered_for_is_on_disk,
    forks_under_load_survive_kills,
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
    // As if another program had removed the files.
    let lost = SnapshotId::generate();
    fs::write(manifest(lost), fs::read(manifest(kept.snapshot)).unwrap()).unwrap();

    home.ephemeral = true;
    let node = home.start().await;
    assert_eq!(node.engine.snapshots().await.unwrap(), [kept.clone().listed()]);
    let belongings = home.belongings();
    assert_eq!((belongings.0["snapshots"], belongings.0["manifests"]), (2, 2), "{belongings:?}");
    assert_eq!(node.child(&kept).await.output("cat /root/x").await, "there");
    for refused in [&edited, &bare] {
        let wanted = CreateSandbox { snapshot: Some(refused.snapshot), ..spec(small()) };
        let refused = node.engine.create(&wanted).await;
        assert!(matches!(refused, Err(EngineError::UnknownSnapshot)), "{refused:?}");
    }
    node.engine.start(child.id, Boot::AsPaused).await.unwrap();
    assert_eq!(child.output("cat /root/x").await, "there", "children go on");
    // A repeated request gets the same answer, though its source is gone.
    assert_eq!(node.engine.snapshot(source.id, kept.snapshot, Memory::Without).await.unwrap(), kept);
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
            match engine.snapshot(source.id, *snapshot, Memory::Without).await {
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
        assert!(known.contains(&snapshot.clone().listed()), "{snapshot:?} is not among {known:?}");
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
    // Also if it was killed while the source was frozen.
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
    // As if the host had crashed: another boot, no processes.
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
    node.engine.start(frozen.id, Boot::AsPaused).await.unwrap();
    assert_eq!(frozen.output("cat /root/x").await, "there");
    node.stop().await;
    home.reap_orphans();
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

/// What a crash of the host would leave of a pool at this moment, mounted separately.
struct Left {
    at: tempfile::TempDir,
}

impl Left {
    /// `None` if this kernel does not mount a copy next to its original.
    fn by(home: &Home) -> Option<Self> {
        let at = tempfile::Builder::new().prefix("coffer-copy-").tempdir().unwrap();
        let left = Self { at };
        let image = home.data_dir().join("pool.img");
        // The loop device bypasses the page cache: this reads what is on disk.
        run(Command::new("cp").arg("--sparse=always").arg(image).arg(left.image()));
        fs::create_dir(left.pool()).unwrap();
        let mount = Command::new("mount").args(["-o", "loop"]).arg(left.image()).arg(left.pool()).output();
        let mounted = mount.unwrap();
        if !mounted.status.success() {
            println!(
                "SKIPPED: the copy of a pool is not mounted: {}",
                String::from_utf8_lossy(&mounted.stderr)
            );
            return None;
        }
        Some(left)
    }

    fn image(&self) -> PathBuf {
        self.at.path().join("copy.img")
    }

    fn pool(&self) -> PathBuf {
        self.at.path().join("pool")
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.pool()).status();
    }
}

fn run(command: &mut Command) {
    assert!(command.status().unwrap().success(), "{command:?}");
}

/// Counts the files that [`WRITER`]'s like would find whole.
fn whole_files(written: &Path) -> usize {
    let whole = |path: PathBuf| {
        let text = fs::read(path).unwrap();
        assert!(text.len() == 8192 && text.chunks(8).all(|part| part == &text[..8]), "{} bytes", text.len());
    };
    fs::read_dir(written).unwrap().map(|file| whole(file.unwrap().path())).count()
}

async fn what_is_answered_for_is_on_disk() {
    let home = Home::new();
    let node = home.start().await;
    let write = "mkdir /root/w; cd /root/w; python3 -c \"
for number in range(300):
    open(str(number), 'wb').write(b'%08d' % number * 1024)\"";
    let (source, frozen) = tokio::join!(node.create(small()), node.create(small()));
    source.output(write).await;
    let snapshot = node.snapshot(&source).await;
    let Some(left) = Left::by(&home) else { return node.stop().await };
    let sealed = left.pool().join(format!("snapshots/{}/files", snapshot.snapshot));
    assert_eq!(whole_files(&sealed.join("u0/root/w")), 300);
    drop(left);

    frozen.output(write).await;
    let since = Instant::now();
    node.engine.freeze(frozen.id).await.unwrap();
    println!("a freeze with 2.4 MB to write out: {:?}", since.elapsed());
    let left = Left::by(&home).unwrap();
    let files = left.pool().join("s").join(frozen.id.to_string());
    assert_eq!(whole_files(&files.join("u0/root/w")), 300);
    assert!(left.pool().join("z").join(frozen.id.to_string()).exists());
    drop(left);
    node.engine.thaw(frozen.id).await.unwrap();

    let mut times = Vec::new();
    for _ in 0..20 {
        let since = Instant::now();
        node.engine.freeze(frozen.id).await.unwrap();
        times.push(since.elapsed());
        node.engine.thaw(frozen.id).await.unwrap();
    }
    times.sort_unstable();
    println!("freezes with nothing to write out: p50 {:?}, most {:?}", times[10], times[19]);
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

/// `COFFER_FORKS` for a longer run.
fn cycles() -> u64 {
    std::env::var("COFFER_FORKS").ok().and_then(|text| text.parse().ok()).unwrap_or(4)
}

async fn forks_under_load_survive_kills() {
    let mut home = Home::new();
    let (mut process, engine, stop_client) = home.start_process().await;
    let wanted = spec(small());
    let source = Sandbox { id: wanted.sandbox, placement: engine.create(&wanted).await.unwrap() };
    source.output(WRITER).await;
    let mut random = u64::from(std::process::id()) | 1;
    for cycle in 0..cycles() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let moment = Duration::from_millis((random >> 33) % 120);
        let forking = async {
            let before: u64 = source.output("cat /root/count").await.parse().unwrap();
            // The client sends the unanswered request to the next node.
            let snapshot = engine.snapshot(source.id, SnapshotId::generate(), Memory::Without).await.unwrap();
            let children =
                [(); 2].map(|()| CreateSandbox { snapshot: Some(snapshot.snapshot), ..spec(small()) });
            for wanted in &children {
                let placement = engine.create(wanted).await.unwrap();
                let child = Sandbox { id: wanted.sandbox, placement };
                let there: u64 = child.output(CHECK).await.parse().unwrap();
                assert!(there >= before, "cycle {cycle}: {before} were synced, {there} are there");
            }
            engine.delete_snapshot(snapshot.snapshot).await.unwrap();
            for wanted in &children {
                engine.destroy(wanted.sandbox).await.unwrap();
            }
        };
        let killing = async {
            tokio::time::sleep(moment).await;
            process.kill().unwrap();
            process.wait().unwrap();
            process = home.spawn_process();
        };
        tokio::join!(forking, killing);
        home.reap_orphans();
        // It continues, though it may have been frozen when its node was killed.
        let counted: u64 = source.output("cat /root/count").await.parse().unwrap();
        source.output(&format!("while [ $(cat /root/count) -le {counted} ]; do sleep 0.01; done")).await;
    }
    process.kill().unwrap();
    process.wait().unwrap();
    stop_client.cancel();
    home.ephemeral = true;
    let node = home.start().await;
    assert_eq!(node.engine.snapshots().await.unwrap(), []);
    let belongings = home.belongings();
    let left = ["uppers", "snapshots", "manifests", "drafts"].map(|kind| belongings.0[kind]);
    assert_eq!(left, [1, 0, 0, 0], "{belongings:?}");
    node.stop().await;
    home.reap_orphans();
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}
