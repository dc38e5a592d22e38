//! Snapshots of files, and sandboxes that start from them.

use std::fs;
use std::time::{Duration, Instant};

use coffer_core::{Boot, Limits, Memory, SnapshotId};
use coffer_engine::{Engine as _, EngineError};
use coffer_wire::node::{CreateSandbox, RunState};
use futures_util::future::join_all;

use crate::harness::{Home, Sandbox, small, spec};

crate::tests![
    what_was_written_before_is_whole_in_a_child,
    a_child_has_everything_as_it_was,
    children_are_apart_from_each_other_and_the_source,
    a_snapshot_outlives_its_source_and_children_their_snapshot,
    long_lines_of_children_cost_no_depth,
    sandboxes_that_stand_still_have_snapshots_too,
    a_child_has_names_of_its_own,
    limits_count_what_is_written_after,
    a_child_may_have_a_smaller_disk_than_its_snapshot_has_files,
    a_full_pool_refuses_and_leaves_nothing,
    plain_directories_have_no_snapshots,
    what_cannot_be_is_refused,
];

/// Writes files of one repeated byte, each synced and then renamed, until it is stopped.
pub(crate) const WRITER: &str = r#"mkdir -p /root/w; cat > /root/writer.py <<'END'
import os
at = 0
while not os.path.exists('/root/end'):
    at += 1
    fd = os.open('/root/w/draft', os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.write(fd, b'%08d' % at * 1024)
    os.fsync(fd)
    os.close(fd)
    os.rename('/root/w/draft', '/root/w/%d' % (at % 500))
    with open('/root/count.new', 'w') as count:
        count.write(str(at))
        count.flush()
        os.fsync(count.fileno())
    os.rename('/root/count.new', '/root/count')
END
nohup python3 /root/writer.py > /root/writer.log 2>&1 &
while ! [ -e /root/count ]; do sleep 0.01; done"#;

/// The last number that was counted, after looking at every file.
pub(crate) const CHECK: &str = r#"python3 - <<'END'
import os
count = int(open('/root/count').read())
latest = 0
for name in os.listdir('/root/w'):
    if name == 'draft':
        continue
    text = open('/root/w/' + name, 'rb').read()
    assert len(text) == 8192 and text == text[:8] * 1024, (name, len(text))
    assert int(text[:8]) % 500 == int(name), name
    latest = max(latest, int(text[:8]))
assert latest in (count, count + 1), (latest, count)
print(count)
END"#;

async fn what_was_written_before_is_whole_in_a_child() {
    let home = Home::new();
    let node = home.start().await;
    let source = node.create(small()).await;
    source.output(WRITER).await;
    let mut paused = Vec::new();
    for _ in 0..3 {
        let before: u64 = source.output("cat /root/count").await.parse().unwrap();
        let snapshot = node.snapshot(&source).await;
        let child = node.child(&snapshot).await;
        let there: u64 = child.output(CHECK).await.parse().unwrap();
        assert!(there >= before, "{before} were synced, {there} are there");
        assert!(snapshot.paused_us > 0 && snapshot.files_bytes > 0, "{snapshot:?}");
        paused.push(snapshot.paused_us);
        // The source went on.
        source
            .output(&format!(
                "while [ $(cat /root/count) -le {there} ]; do sleep 0.01; done; cat /root/count"
            ))
            .await;
        node.engine.destroy(child.id).await.unwrap();
    }
    println!("a source that writes stood still for {paused:?} us");
    source.output("touch /root/end").await;
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

/// Every kind of file, also owned by another user than root.
const MAKE: &str = r#"set -e
mkdir -p /srv/tree/deep/er /home/user && cd /srv/tree
echo root > of-root; echo user > of-user; chown 1000:1000 of-user; chown 33:44 deep
cp /bin/true setuid; chmod 4755 setuid; chmod 1777 deep/er; chmod 0 of-root
ln of-user deep/linked; ln -s ../of-user deep/symbolic; chown -h 7:8 deep/symbolic; mkfifo pipe
python3 -c "
import os, struct
os.setxattr('of-user', 'user.colour', b'blue')
os.setxattr('setuid', 'security.capability', struct.pack('<IIIII', 0x2000001, 1 << 13, 0, 0, 0))
f = os.open('sparse', os.O_CREAT | os.O_WRONLY); os.pwrite(f, b'end', 50 << 20)
"
touch -d 2001-02-03T04:05:06 of-user
rm /etc/shells; mv /etc/pam.d /etc/moved; mv /etc/sudoers.d /srv/sudoers; rm -r /etc/ssl; mkdir /etc/ssl
touch /etc/ssl/new; chown 1000 /etc/passwd; mv /usr/share/base-passwd /usr/share/renamed
rm -r /usr/share/base-files"#;

/// All of it as text, the same wherever it is the same.
const DESCRIBE: &str = r#"python3 - <<'END'
import hashlib, os, stat
def describe(path):
    s = os.lstat(path)
    kind = stat.S_IFMT(s.st_mode)
    # Ignore the size of directories; names in /etc are rewritten.
    size = 0 if stat.S_ISDIR(s.st_mode) else s.st_size
    link = os.readlink(path) if stat.S_ISLNK(s.st_mode) else ''
    text = hashlib.sha256(open(path, 'rb').read()).hexdigest() if stat.S_ISREG(s.st_mode) else ''
    marks = [] if stat.S_ISLNK(s.st_mode) else [(n, os.getxattr(path, n)) for n in os.listxattr(path)]
    blocks = s.st_blocks if path.endswith('sparse') else 0
    own = path in ('/etc/hostname', '/etc/hosts', '/etc/machine-id', '/etc')
    time = 0 if own else s.st_mtime_ns
    text = '' if own else text
    return (path, kind, oct(s.st_mode), s.st_uid, s.st_gid, 0 if own else size, s.st_nlink if not stat.S_ISDIR(s.st_mode) else 0, time, link, text, sorted(marks), blocks)
assert not os.path.exists('/usr/share/base-files')
for top in ('/srv', '/etc', '/home', '/usr/share/renamed'):
    print(describe(top))
    for at, directories, files in os.walk(top):
        for name in sorted(directories + files):
            print(describe(os.path.join(at, name)))
END"#;

fn lines(text: &str) -> std::collections::BTreeSet<&str> {
    text.lines().collect()
}

async fn a_child_has_everything_as_it_was() {
    let home = Home::new();
    let node = home.start().await;
    let source = node.create(Limits { disk_mib: 256, ..small() }).await;
    source.output(MAKE).await;
    let was = source.output(DESCRIBE).await;
    assert!(was.contains("user.colour") && was.contains("security.capability"), "{was}");
    let snapshot = node.snapshot(&source).await;
    let child = node.child(&snapshot).await;
    let is = child.output(DESCRIBE).await;
    let changed: Vec<_> = lines(&was).symmetric_difference(&lines(&is)).copied().collect();
    assert!(changed.is_empty(), "{changed:#?}");

    // It can change all of it, and hard links are still one file.
    let script = "set -e; cd /srv/tree; echo more >> deep/linked; tail -1 of-user; chown 1001:1001 deep;
        chmod 600 of-root; cat of-root; mv /etc/moved /etc/pam.d; rm -r /srv/sudoers; echo x > /srv/sudoers;
        ! [ -e /etc/shells ]; echo y > /etc/shells; stat -c %u /etc/shells /etc/passwd deep; ls /etc/ssl";
    assert_eq!(child.output(script).await, "more\nroot\n0\n1000\n1001\nnew");
    assert_eq!(source.output(DESCRIBE).await, was, "the source is as it was");
    // And so on, with the child as the source.
    let was = child.output(DESCRIBE).await;
    let grandchild = node.child(&node.snapshot(&child).await).await;
    let is = grandchild.output(DESCRIBE).await;
    let changed: Vec<_> = lines(&was).symmetric_difference(&lines(&is)).copied().collect();
    assert!(changed.is_empty(), "{changed:#?}");
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn children_are_apart_from_each_other_and_the_source() {
    let home = Home::new();
    let node = home.start().await;
    let source = node.create(small()).await;
    source.output("echo source > /root/who; echo kept > /root/kept").await;
    let snapshot = node.snapshot(&source).await;
    let children = join_all((0..8).map(|_| node.child(&snapshot))).await;
    for (number, child) in children.iter().enumerate() {
        child.output(&format!("echo {number} > /root/who; echo {number} > /root/only-{number}")).await;
    }
    source.output("echo later > /root/who; rm /root/kept").await;
    for (number, child) in children.iter().enumerate() {
        let seen = child.output("cat /root/who /root/kept; ls /root | grep only").await;
        assert_eq!(seen, format!("{number}\nkept\nonly-{number}"));
    }
    assert_eq!(source.output("cat /root/who; ls /root | grep -c only || true").await, "later\n0");
    // Each has its own ids on the host.
    let bases =
        join_all(children.iter().map(|child| child.output("awk '{print $2}' /proc/self/uid_map"))).await;
    let apart: std::collections::HashSet<_> = bases.into_iter().collect();
    assert_eq!(apart.len(), 8);
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

/// Waits until everything that can be deleted is.
async fn settled(home: &Home, expected: &[(&str, usize)]) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let belongings = home.belongings();
        if expected.iter().all(|(kind, count)| belongings.0[kind] == *count) {
            return;
        }
        assert!(Instant::now() < deadline, "{belongings:?} should have {expected:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn a_snapshot_outlives_its_source_and_children_their_snapshot() {
    let home = Home::new();
    let node = home.start().await;
    let source = node.create(small()).await;
    source.output("head -c 20000000 /dev/urandom > /root/large; md5sum < /root/large > /root/sum").await;
    let snapshot = node.snapshot(&source).await;
    node.engine.destroy(source.id).await.unwrap();
    settled(&home, &[("uppers", 0), ("snapshots", 1), ("manifests", 1)]).await;
    // Its ids go to the next sandbox, which must not see any of it.
    let next = node.create(small()).await;
    let child = node.child(&snapshot).await;
    let check = "[ \"$(md5sum < /root/large)\" = \"$(cat /root/sum)\" ] && stat -c %u /root/large";
    assert_eq!(child.output(check).await, "0");
    next.output("! [ -e /root/large ]").await;

    node.engine.delete_snapshot(snapshot.snapshot).await.unwrap();
    node.engine.delete_snapshot(snapshot.snapshot).await.unwrap();
    assert_eq!(node.engine.snapshots().await.unwrap(), []);
    settled(&home, &[("snapshots", 0), ("manifests", 0)]).await;
    assert_eq!(child.output(check).await, "0");
    let wanted = CreateSandbox { snapshot: Some(snapshot.snapshot), ..spec(small()) };
    let refused = node.engine.create(&wanted).await;
    assert!(matches!(refused, Err(EngineError::UnknownSnapshot)), "{refused:?}");
    // Stopped and started, it still has them.
    node.engine.stop(child.id).await.unwrap();
    node.engine.start(child.id, Boot::AsPaused).await.unwrap();
    assert_eq!(child.output(check).await, "0");
    // With the last that has them they are freed.
    let free = |node: &crate::harness::TestNode| {
        let engine = node.engine.clone();
        async move { engine.info().await.unwrap().pool_free_bytes.unwrap() }
    };
    let before = free(&node).await;
    node.engine.destroy(child.id).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(40);
    let pool = fs::File::open(home.data_dir().join("pool")).unwrap();
    while free(&node).await < before + 15_000_000 {
        // Space comes back when the file system commits, which it otherwise does every ten seconds.
        rustix::fs::syncfs(&pool).unwrap();
        assert!(Instant::now() < deadline, "{} of {before} bytes are free", free(&node).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    drop(pool);
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn long_lines_of_children_cost_no_depth() {
    let home = Home::new();
    let node = home.start().await;
    let mut last = node.create(small()).await;
    let layers = |sandbox: &Sandbox| {
        let path = home.data_dir().join(format!("sandboxes/{}.json", sandbox.id));
        let entry: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        entry["overlays"].clone()
    };
    let first = layers(&last);
    for depth in 1..=40u32 {
        last.output(&format!("echo {depth} > /root/{depth}; rm -f /root/{}", depth.saturating_sub(7))).await;
        let snapshot = node.snapshot(&last).await;
        assert_eq!(snapshot.depth, depth);
        let child = node.child(&snapshot).await;
        node.engine.delete_snapshot(snapshot.snapshot).await.unwrap();
        node.engine.destroy(last.id).await.unwrap();
        last = child;
    }
    assert_eq!(layers(&last), first);
    let expected: Vec<_> = (34..=40).map(|depth| depth.to_string()).collect();
    assert_eq!(
        last.output("cd /root; ls | sort -n; cat * | sort -n").await,
        [expected.clone(), expected].concat().join("\n")
    );
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn sandboxes_that_stand_still_have_snapshots_too() {
    let home = Home::new();
    let node = home.start().await;
    let (frozen, stopped) = tokio::join!(node.create(small()), node.create(small()));
    for sandbox in [&frozen, &stopped] {
        sandbox.output("echo there > /root/x").await;
    }
    node.engine.freeze(frozen.id).await.unwrap();
    node.engine.stop(stopped.id).await.unwrap();
    for sandbox in [&frozen, &stopped] {
        let snapshot = node.snapshot(sandbox).await;
        assert_eq!(snapshot.paused_us, 0);
        let child = node.child(&snapshot).await;
        assert_eq!(child.output("cat /root/x").await, "there");
    }
    let run = |id| {
        let engine = node.engine.clone();
        async move {
            let statuses = engine.list().await.unwrap();
            statuses.into_iter().find(|status| status.sandbox == id).unwrap().run
        }
    };
    assert_eq!((run(frozen.id).await, run(stopped.id).await), (RunState::Frozen, RunState::Stopped));
    node.engine.thaw(frozen.id).await.unwrap();
    assert_eq!(frozen.output("cat /root/x").await, "there");
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn a_child_has_names_of_its_own() {
    let home = Home::new();
    let node = home.start().await;
    let source = node.create(small()).await;
    let snapshot = node.snapshot(&source).await;
    source.output("echo 10.0.0.1 db >> /etc/hosts").await;
    let changed = node.snapshot(&source).await;
    let named =
        CreateSandbox { snapshot: Some(snapshot.snapshot), hostname: "other".into(), ..spec(small()) };
    let child = Sandbox { id: named.sandbox, placement: node.engine.create(&named).await.unwrap() };
    let names = "hostname; cat /etc/hostname; grep -c 127.0.1.1.other /etc/hosts";
    assert_eq!(child.output(names).await, "other\nother\n1");
    let machine = "cat /etc/machine-id; stat -c '%a %u' /etc/machine-id";
    assert_ne!(child.output(machine).await, source.output(machine).await);
    // Changes by its users stay.
    let again = CreateSandbox {
        sandbox: coffer_core::SandboxId::generate(),
        snapshot: Some(changed.snapshot),
        ..named
    };
    let again = Sandbox { id: again.sandbox, placement: node.engine.create(&again).await.unwrap() };
    assert_eq!(again.output("hostname; tail -1 /etc/hosts").await, "other\n10.0.0.1 db");
    node.stop().await;
}

async fn limits_count_what_is_written_after() {
    let home = Home::new();
    let node = home.start().await;
    let source = node.create(small()).await;
    let fill = "head -c 40000000 /dev/zero | tr '\\0' x > /root/full && sync";
    source.output(fill).await;
    let snapshot = node.snapshot(&source).await;
    // The bytes in the snapshot leave the source its full limit, also after a restart.
    source.output(fill).await;
    node.engine.stop(source.id).await.unwrap();
    node.engine.start(source.id, Boot::AsPaused).await.unwrap();
    source.output("echo more > /root/more && sync").await;
    // A child may write as much as its limit, and no more than that and its inherited bytes.
    let child = node.child(&snapshot).await;
    child.output("head -c 40000000 /dev/zero > /root/own && rm /root/own && sync").await;
    child.output(fill).await;
    let (code, said) = child.script("head -c 80000000 /dev/zero > /root/over && sync").await;
    assert!(code != 0 && said.contains("quota"), "{code} {said}");
    // A sandbox without room can be frozen, thawed, and snapshotted.
    node.engine.freeze(child.id).await.unwrap();
    let full = node.snapshot(&child).await;
    node.engine.thaw(child.id).await.unwrap();
    let heir = node.child(&full).await;
    assert_eq!(heir.output("rm /root/over && stat -c %s /root/full").await, "40000000");
    node.engine.destroy(heir.id).await.unwrap();
    node.stop().await;
}

async fn a_child_may_have_a_smaller_disk_than_its_snapshot_has_files() {
    let home = Home::new();
    let node = home.start().await;
    let source = node.create(small()).await;
    source.output("head -c 40000000 /dev/zero | tr '\\0' x > /root/full && sync").await;
    let snapshot = node.snapshot(&source).await;
    assert!(snapshot.files_bytes > 32 << 20, "{}", snapshot.files_bytes);
    let limits = Limits { disk_mib: 16, ..small() };
    let spec = CreateSandbox { snapshot: Some(snapshot.snapshot), ..spec(limits) };
    let placement = node.engine.create(&spec).await.unwrap();
    let child = Sandbox { id: spec.sandbox, placement };
    // It has everything, and its whole disk for what it writes.
    let script =
        "stat -c %s /root/full && head -c 8000000 /dev/urandom > /root/own && sync && tail -c 1 /root/full";
    assert_eq!(child.output(script).await, "40000000\nx");
    let (code, said) = child.script("head -c 64000000 /dev/urandom > /root/over && sync").await;
    assert!(code != 0 && said.contains("quota"), "{code} {said}");
    // It starts again on its files, and removing its own makes room.
    node.engine.stop(child.id).await.unwrap();
    node.engine.start(child.id, Boot::AsPaused).await.unwrap();
    let script = "rm /root/over /root/own && sync && head -c 8000000 /dev/urandom > /root/again && stat -c %s /root/full";
    assert_eq!(child.output(script).await, "40000000");
    node.stop().await;
}

async fn a_full_pool_refuses_and_leaves_nothing() {
    let home = Home::new();
    let node = home.start().await;
    let source = node.create(small()).await;
    source.output("echo here > /root/x").await;
    let snapshot = node.snapshot(&source).await;
    // Sandboxes cannot write below the floor; a pool can get there all the same.
    let filler = home.data_dir().join("pool/filler");
    let free = node.engine.info().await.unwrap().pool_free_bytes.unwrap();
    let file = fs::File::create(&filler).unwrap();
    let flags = rustix::fs::FallocateFlags::empty();
    rustix::fs::fallocate(&file, flags, 0, free - 100 * 1024 * 1024).unwrap();
    rustix::fs::syncfs(&file).unwrap();
    let refused = node.engine.snapshot(source.id, SnapshotId::generate(), Memory::Without).await.unwrap_err();
    let EngineError::NoCapacity(why) = &refused else { panic!("{refused}") };
    assert!(why.contains("bytes more must be free"), "{why}");
    let rolled = node.engine.rollback(source.id, snapshot.snapshot, Memory::Without).await;
    assert!(matches!(rolled, Err(EngineError::NoCapacity(_))), "{rolled:?}");
    assert_eq!(source.output("cat /root/x").await, "here", "it runs on");
    let belongings = home.belongings();
    assert_eq!((belongings.0["snapshots"], belongings.0["uppers"]), (1, 1), "{belongings:?}");
    drop(file);
    fs::remove_file(filler).unwrap();
    let deadline = Instant::now() + Duration::from_secs(40);
    while let Err(error) = node.engine.snapshot(source.id, SnapshotId::generate(), Memory::Without).await {
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn plain_directories_have_no_snapshots() {
    let mut home = Home::new();
    home.pool = coffer_node::PoolChoice::Directory;
    let node = home.start().await;
    let source = node.create(small()).await;
    let refused = node.engine.snapshot(source.id, SnapshotId::generate(), Memory::Without).await.unwrap_err();
    let EngineError::Unsupported(why) = &refused else { panic!("{refused}") };
    assert!(why.contains("btrfs"), "{why}");
    assert_eq!(source.output("echo alive").await, "alive");
    // Freezing and thawing need no btrfs.
    node.engine.freeze(source.id).await.unwrap();
    node.engine.thaw(source.id).await.unwrap();
    assert_eq!(source.output("echo alive").await, "alive");
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn what_cannot_be_is_refused() {
    let mut home = Home::new();
    home.ephemeral = true;
    let mut node = home.start().await;
    let (source, other) = tokio::join!(node.create(small()), node.create(small()));
    let snapshot = node.snapshot(&source).await;
    let taken = node.engine.snapshot(other.id, snapshot.snapshot, Memory::Without).await;
    assert!(matches!(taken, Err(EngineError::WrongState(_))), "{taken:?}");
    let nobody = coffer_core::SandboxId::generate();
    let unknown = node.engine.snapshot(nobody, SnapshotId::generate(), Memory::Without).await;
    assert!(matches!(unknown, Err(EngineError::UnknownSandbox)), "{unknown:?}");
    let unknown = node.engine.rollback(source.id, SnapshotId::generate(), Memory::Without).await;
    assert!(matches!(unknown, Err(EngineError::UnknownSnapshot)), "{unknown:?}");
    source.order("!exit 1");
    node.death(Duration::from_secs(5)).await;
    let dead = node.engine.snapshot(source.id, SnapshotId::generate(), Memory::Without).await;
    assert!(matches!(dead, Err(EngineError::WrongState(_))), "{dead:?}");
    let dead = node.engine.rollback(source.id, snapshot.snapshot, Memory::Without).await;
    assert!(matches!(dead, Err(EngineError::WrongState(_))), "{dead:?}");
    assert_eq!(node.engine.snapshots().await.unwrap(), [snapshot.listed()]);
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}
