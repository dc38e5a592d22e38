//! Memory on disk and back. Needs CRIU; skips loudly without.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use coffer_core::{Boot, Limits, Memory, SnapshotId};
use coffer_engine::{Engine as _, EngineError};
use coffer_wire::node::{CreateSandbox, RunState};

use crate::harness::{Home, Sandbox, TestNode, small, spec};

crate::tests![
    a_process_goes_on_where_it_was,
    hibernation_outlives_the_node,
    a_node_killed_while_hibernating_loses_nothing,
    a_node_killed_while_waking_loses_nothing,
    forks_go_on_from_one_moment,
    what_cannot_be_saved_goes_on,
    a_damaged_image_is_refused_and_files_stay,
    a_restore_that_fails_changes_nothing,
    without_criu_everything_else_works,
];

/// A process with private memory, a position in a file, a terminal, a file in memory, connected sockets, a
/// watched directory and a pipe with data in it. It reports its state for each line from its first pipe.
const PROGRAM: &str = r#"
import ctypes, hashlib, os, pty, socket, sys, time
size = int(sys.argv[1])
data = os.urandom(1 << 20) * size
listening = socket.create_server(("127.0.0.1", 7001))
near = socket.create_connection(("127.0.0.1", 7001))
far, _ = listening.accept()
position = open("/var/tmp/file", "w+")
position.write("0123456789"); position.flush(); position.seek(4)
open("/dev/shm/file", "w").write("in memory")
master, slave = pty.openpty()
reading, writing = os.pipe()
os.write(writing, b"kept")
os.mkdir("/var/tmp/watched")
libc = ctypes.CDLL(None)
watch = libc.inotify_init1(os.O_NONBLOCK)
assert libc.inotify_add_watch(watch, b"/var/tmp/watched", 0x100) > 0
os.mkfifo("/var/tmp/ask"); os.mkfifo("/var/tmp/tell")
count, started = 0, time.monotonic()
while True:
    with open("/var/tmp/ask") as ask: word = ask.read().strip()
    count += 1
    near.sendall(b"x")
    os.write(master, b"y\n")
    open(f"/var/tmp/watched/{count}", "w")
    facts = [
        os.getpid(), count, hashlib.sha256(data).hexdigest()[:16], position.tell(),
        far.recv(1).decode(), os.read(slave, 2).decode().strip(), open("/dev/shm/file").read(),
        str(count).encode() in os.read(watch, 4096), int(time.monotonic() - started) < 600, word,
    ]
    with open("/var/tmp/tell", "w") as tell: tell.write(" ".join(str(fact) for fact in facts))
"#;

pub(crate) fn with_python() -> Limits {
    Limits { memory_mib: 512, disk_mib: 256, ..small() }
}

/// A node that can save memory.
pub(crate) async fn able(home: &Home) -> Option<TestNode> {
    let node = home.start().await;
    let able = node.engine.info().await.unwrap().capabilities;
    match able.memory_snapshot {
        true => Some(node),
        false => {
            println!(
                "SKIPPED: memory cannot be saved here: {}",
                node.engine.info().await.unwrap().memory_snapshot_lacks.unwrap_or_default()
            );
            node.stop().await;
            None
        }
    }
}

pub(crate) async fn begin(sandbox: &Sandbox, mebibytes: usize) {
    sandbox.output(&format!("cat > /var/tmp/program.py <<'END'\n{PROGRAM}\nEND\n")).await;
    let start = format!(
        "python3 /var/tmp/program.py {mebibytes} >/var/tmp/log 2>&1 </dev/null &\n\
        for i in $(seq 500); do [ -p /var/tmp/tell ] && exit 0; sleep 0.02; done; cat /var/tmp/log; exit 1"
    );
    sandbox.output(&start).await;
}

/// The state that the process reports, without its count.
pub(crate) async fn ask(sandbox: &Sandbox, word: &str) -> (u32, String) {
    let said = sandbox.output(&format!("echo {word} > /var/tmp/ask; timeout 20 cat /var/tmp/tell")).await;
    let mut words: Vec<_> = said.split(' ').map(String::from).collect();
    let count = words.remove(1).parse().unwrap();
    (count, words.join(" "))
}

async fn state(node: &TestNode, sandbox: &Sandbox) -> RunState {
    let list = node.engine.list().await.unwrap();
    list.into_iter().find(|listed| listed.sandbox == sandbox.id).unwrap().run
}

async fn a_process_goes_on_where_it_was() {
    let home = Home::new();
    let Some(node) = able(&home).await else { return };
    for mebibytes in [5, 50] {
        let mut sandbox = node.create(with_python()).await;
        begin(&sandbox, mebibytes).await;
        let boot_id = sandbox.output("cat /proc/sys/kernel/random/boot_id").await;
        let mounts = sandbox.output("awk '{print $5, $6, $9}' /proc/self/mountinfo | sort").await;
        let (count, facts) = ask(&sandbox, "hello").await;
        assert_eq!(count, 1);
        let begun = Instant::now();
        node.engine.hibernate(sandbox.id).await.unwrap();
        let saved = begun.elapsed();
        assert_eq!(state(&node, &sandbox).await, RunState::Hibernated);
        assert_eq!(home.live_processes(), 0);
        let begun = Instant::now();
        sandbox.placement = node.engine.start(sandbox.id, Boot::AsPaused).await.unwrap();
        println!("{mebibytes} MB: hibernated in {saved:?}, back in {:?}", begun.elapsed());
        assert_eq!(ask(&sandbox, "hello").await, (2, facts));
        assert_eq!(sandbox.output("cat /proc/sys/kernel/random/boot_id").await, boot_id);
        assert_eq!(sandbox.output("awk '{print $5, $6, $9}' /proc/self/mountinfo | sort").await, mounts);
        node.engine.destroy(sandbox.id).await.unwrap();
    }
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn hibernation_outlives_the_node() {
    let mut home = Home::new();
    home.ephemeral = false;
    let Some(node) = able(&home).await else { return };
    let mut sandbox = node.create(with_python()).await;
    begin(&sandbox, 5).await;
    let (_, facts) = ask(&sandbox, "x").await;
    // Also from the frozen state.
    node.engine.freeze(sandbox.id).await.unwrap();
    node.engine.hibernate(sandbox.id).await.unwrap();
    node.engine.hibernate(sandbox.id).await.unwrap();
    node.stop().await;

    home.ephemeral = true;
    let node = home.start().await;
    assert_eq!(state(&node, &sandbox).await, RunState::Hibernated);
    let refused = node.engine.freeze(sandbox.id).await.unwrap_err();
    assert!(matches!(&refused, EngineError::WrongState(why) if why.contains("is hibernated")), "{refused:?}");
    sandbox.placement = node.engine.start(sandbox.id, Boot::AsPaused).await.unwrap();
    assert_eq!(ask(&sandbox, "x").await, (2, facts.clone()));
    // A restored sandbox can be saved again.
    node.engine.hibernate(sandbox.id).await.unwrap();
    sandbox.placement = node.engine.start(sandbox.id, Boot::AsPaused).await.unwrap();
    assert_eq!(ask(&sandbox, "x").await, (3, facts));
    node.engine.hibernate(sandbox.id).await.unwrap();
    // Its processes are given up, its files are not.
    sandbox.placement = node.engine.start(sandbox.id, Boot::Cold).await.unwrap();
    assert_eq!(sandbox.output("cat /var/tmp/file; pgrep python3 | wc -l").await, "01234567890");
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

/// Starts a process that keeps writing to a file: once the file has grown, an older image cannot reopen it.
pub(crate) async fn write_on(sandbox: &Sandbox) {
    let writer = "exec >>/var/tmp/grows; while :; do echo line; sleep 0.005; done";
    sandbox.output(&format!("sh -c '{writer}' </dev/null 2>/dev/null & echo begun")).await;
}

async fn a_node_killed_while_hibernating_loses_nothing() {
    killed_while(Doing::Hibernate, &[0, 20, 60, 100, 150, 200, 260, 330, 400, 600, 800, 1000]).await;
}

async fn a_node_killed_while_waking_loses_nothing() {
    killed_while(Doing::Wake, &[0, 20, 40, 60, 80, 100, 120, 150, 180, 220, 280, 400]).await;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Hibernate,
    Wake,
}

/// Kills a node this many milliseconds after it got that request. The next one finds the sandbox running or
/// hibernated, and it continues where it was.
async fn killed_while(doing: Doing, delays: &[u64]) {
    let home = Home::new();
    let Some(node) = able(&home).await else { return };
    node.stop().await;
    let (mut process, mut engine, mut stop_client) = home.start_process().await;
    let wanted = CreateSandbox { limits: with_python(), ..spec(small()) };
    let placement = engine.create(&wanted).await.unwrap();
    let sandbox = Sandbox { id: wanted.sandbox, placement };
    begin(&sandbox, 20).await;
    write_on(&sandbox).await;
    let (mut count, facts) = ask(&sandbox, "x").await;
    let (mut ran, mut slept) = (0, 0);
    for delay in delays {
        if doing == Doing::Wake {
            engine.hibernate(sandbox.id).await.unwrap();
        }
        let under_way = {
            let (engine, id) = (engine.clone(), sandbox.id);
            tokio::spawn(async move {
                match doing {
                    Doing::Hibernate => engine.hibernate(id).await,
                    Doing::Wake => engine.start(id, Boot::AsPaused).await.map(drop),
                }
            })
        };
        tokio::time::sleep(Duration::from_millis(*delay)).await;
        process.kill().unwrap();
        process.wait().unwrap();
        under_way.abort();
        stop_client.cancel();
        (process, engine, stop_client) = home.start_process().await;
        let list = engine.list().await.unwrap();
        assert_eq!(list.len(), 1, "{list:?}");
        match &list[0].run {
            RunState::Hibernated => {
                slept += 1;
                engine.start(sandbox.id, Boot::AsPaused).await.unwrap();
            }
            run => {
                assert_eq!(*run, RunState::Running);
                ran += 1;
                reachable(&sandbox).await;
            }
        }
        count += 1;
        assert_eq!(ask(&sandbox, "x").await, (count, facts.clone()), "after {delay} ms");
        let writes = "a=$(stat -c %s /var/tmp/grows); for i in $(seq 500); do \
                      [ $(stat -c %s /var/tmp/grows) != $a ] && exit 0; sleep 0.02; done; exit 1";
        sandbox.output(writes).await;
    }
    println!("killed in the middle of {doing:?}: found running {ran} times, hibernated {slept} times");
    process.kill().unwrap();
    process.wait().unwrap();
    stop_client.cancel();
    let node = home.start().await;
    node.stop().await;
    home.reap_orphans();
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

/// Waits until its process 1 has a listener again.
async fn reachable(sandbox: &Sandbox) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while std::os::unix::net::UnixStream::connect(&sandbox.placement.socket).is_err() {
        assert!(Instant::now() < deadline, "nobody listens again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn forks_go_on_from_one_moment() {
    let home = Home::new();
    let Some(node) = able(&home).await else { return };
    let source = node.create(with_python()).await;
    begin(&source, 20).await;
    let (_, facts) = ask(&source, "x").await;
    let own =
        "hostname; cat /proc/sys/kernel/random/boot_id /etc/machine-id; awk '{print $2}' /proc/self/uid_map";
    let mut identities = vec![source.output(own).await];
    let snapshot = SnapshotId::generate();
    let info = node.engine.snapshot(source.id, snapshot, Memory::With).await.unwrap();
    assert!(info.memory && info.memory_bytes > 20 << 20, "{info:?}");
    println!("20 MB: stood still for {} ms", info.paused_us / 1000);
    // The source continues, and its later changes stay its own.
    assert_eq!(ask(&source, "x").await, (2, facts.clone()));
    source.output("echo later > /var/tmp/later").await;

    let fork = || async {
        let hostname = format!("fork-{}", SnapshotId::generate());
        let limits = with_python();
        let wanted =
            CreateSandbox { hostname, limits, snapshot: Some(snapshot), memory: true, ..spec(small()) };
        let placement = node.engine.create(&wanted).await.unwrap();
        Sandbox { id: wanted.sandbox, placement }
    };
    let begun = Instant::now();
    let (one, two, three) = tokio::join!(fork(), fork(), fork());
    println!("three forks at once in {:?}", begun.elapsed());
    for (extra, fork) in [one, two, three].into_iter().enumerate() {
        assert_eq!(fork.output("ls /var/tmp/later 2>/dev/null || echo none").await, "none");
        for turn in 0..=extra {
            assert_eq!(ask(&fork, "x").await, (2 + u32::try_from(turn).unwrap(), facts.clone()));
        }
        identities.push(fork.output(own).await);
        // Files are its own, with its own users.
        fork.output("touch /var/tmp/mine && [ $(stat -c %u /var/tmp/mine) = 0 ]").await;
        // A fork is a sandbox like any other.
        node.engine.hibernate(fork.id).await.unwrap();
        node.engine.start(fork.id, Boot::AsPaused).await.unwrap();
        assert_eq!(ask(&fork, "x").await.0, 3 + u32::try_from(extra).unwrap());
    }
    for line in 0..4 {
        let different: HashSet<_> = identities.iter().filter_map(|own| own.lines().nth(line)).collect();
        assert_eq!(different.len(), 4, "{identities:?}");
    }
    // Back to that moment, also for the source.
    node.engine.rollback(source.id, snapshot, Memory::With).await.unwrap();
    assert_eq!(ask(&source, "x").await, (2, facts));
    assert_eq!(source.output("ls /var/tmp/later 2>/dev/null || echo none").await, "none");
    // From where it is hibernated too; and if that cannot be, it is as it was.
    node.engine.hibernate(source.id).await.unwrap();
    let pages = home.data_dir().join(format!("pool/snapshots/{snapshot}/memory/pages-1.img"));
    let whole = std::fs::read(&pages).unwrap();
    std::fs::write(&pages, &whole[1..]).unwrap();
    node.engine.rollback(source.id, snapshot, Memory::With).await.unwrap_err();
    node.engine.start(source.id, Boot::AsPaused).await.unwrap();
    assert_eq!(ask(&source, "x").await.0, 3);
    std::fs::write(&pages, &whole).unwrap();
    node.engine.hibernate(source.id).await.unwrap();
    node.engine.rollback(source.id, snapshot, Memory::With).await.unwrap();
    assert_eq!(ask(&source, "x").await.0, 2);
    node.engine.delete_snapshot(snapshot).await.unwrap();
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

/// On an overlay a file that is watched has no name that could be found.
const WATCHES: &str = r#"
import ctypes, time
libc = ctypes.CDLL(None)
watch = libc.inotify_init()
assert libc.inotify_add_watch(watch, b"/var/tmp/file", 2) > 0
open("/dev/shm/watches", "w").write("yes")
time.sleep(600)
"#;

async fn what_cannot_be_saved_goes_on() {
    let home = Home::new();
    let Some(node) = able(&home).await else { return };
    let sandbox = node.create(with_python()).await;
    begin(&sandbox, 5).await;
    let (_, facts) = ask(&sandbox, "x").await;
    sandbox
        .output(&format!(
            "python3 -c '{WATCHES}' >/dev/null 2>&1 </dev/null &\n\
             for i in $(seq 500); do [ -s /dev/shm/watches ] && exit 0; sleep 0.02; done; exit 1"
        ))
        .await;
    for _ in 0..2 {
        let error = node.engine.hibernate(sandbox.id).await.unwrap_err().to_string();
        assert!(error.contains("keeps running") && error.contains("notify"), "{error}");
        assert_eq!(state(&node, &sandbox).await, RunState::Running);
    }
    let error =
        node.engine.snapshot(sandbox.id, SnapshotId::generate(), Memory::With).await.unwrap_err().to_string();
    assert!(error.contains("notify"), "{error}");
    assert_eq!(node.engine.snapshots().await.unwrap(), []);
    assert_eq!(ask(&sandbox, "x").await, (2, facts.clone()));
    sandbox.output("pkill -f inotify_ini[t]").await;
    node.engine.hibernate(sandbox.id).await.unwrap();
    node.engine.start(sandbox.id, Boot::AsPaused).await.unwrap();
    assert_eq!(ask(&sandbox, "x").await, (3, facts));
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn a_damaged_image_is_refused_and_files_stay() {
    let home = Home::new();
    let Some(node) = able(&home).await else { return };
    let sandbox = node.create(with_python()).await;
    begin(&sandbox, 5).await;
    node.engine.hibernate(sandbox.id).await.unwrap();
    let pages = home.data_dir().join(format!("pool/m/{}/pages-1.img", sandbox.id));
    let mut bytes = std::fs::read(&pages).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&pages, &bytes).unwrap();
    let error = node.engine.start(sandbox.id, Boot::AsPaused).await.unwrap_err().to_string();
    assert!(error.contains("pages-1.img") && error.contains("damaged"), "{error}");
    assert_eq!(state(&node, &sandbox).await, RunState::Hibernated);
    node.engine.start(sandbox.id, Boot::Cold).await.unwrap();
    assert_eq!(sandbox.output("cat /var/tmp/file").await, "0123456789");
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn a_restore_that_fails_changes_nothing() {
    let home = Home::new();
    let Some(node) = able(&home).await else { return };
    let sandbox = node.create(with_python()).await;
    begin(&sandbox, 5).await;
    let (_, facts) = ask(&sandbox, "x").await;
    node.engine.hibernate(sandbox.id).await.unwrap();
    // A file that the process has open has changed.
    let uppers = home.data_dir().join(format!("pool/s/{}", sandbox.id));
    let uppers: Vec<_> = std::fs::read_dir(uppers).unwrap().flatten().map(|upper| upper.path()).collect();
    let mut open = uppers.iter().flat_map(|upper| ["var/tmp/file", "tmp/file"].map(|file| upper.join(file)));
    let file = std::fs::File::options().write(true).open(open.find(|file| file.exists()).unwrap()).unwrap();
    file.set_len(11).unwrap();
    let error = node.engine.start(sandbox.id, Boot::AsPaused).await.unwrap_err().to_string();
    assert!(error.contains("bad size 11 (expect 10)"), "{error}");
    assert_eq!(state(&node, &sandbox).await, RunState::Hibernated);
    assert_eq!(home.live_processes(), 0);
    file.set_len(10).unwrap();
    drop(file);
    node.engine.start(sandbox.id, Boot::AsPaused).await.unwrap();
    assert_eq!(ask(&sandbox, "x").await, (2, facts));
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn without_criu_everything_else_works() {
    let home = Home::new();
    let (mut process, engine, stop_client) = home.start_process_with(&[("CRIU_PROGRAM", "/nowhere")]).await;
    let info = engine.info().await.unwrap();
    assert!(!info.capabilities.memory_snapshot);
    assert!(info.memory_snapshot_lacks.unwrap().contains("CRIU is not installed"));
    let wanted = spec(small());
    let placement = engine.create(&wanted).await.unwrap();
    let sandbox = Sandbox { id: wanted.sandbox, placement };
    for refused in [
        engine.hibernate(sandbox.id).await.unwrap_err(),
        engine.snapshot(sandbox.id, SnapshotId::generate(), Memory::With).await.unwrap_err(),
    ] {
        assert!(
            matches!(&refused, EngineError::Unsupported(why) if why.contains("CRIU is not installed")),
            "{refused:?}"
        );
    }
    assert_eq!(sandbox.output("echo here").await, "here");
    engine.destroy(sandbox.id).await.unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    stop_client.cancel();
    home.start().await.stop().await;
    home.reap_orphans();
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}
