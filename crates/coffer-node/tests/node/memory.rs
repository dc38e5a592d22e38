//! Memory on disk and back. Needs CRIU; skips loudly without.

use std::time::{Duration, Instant};

use coffer_core::Limits;
use coffer_engine::Engine as _;
use coffer_wire::node::RunState;

use crate::harness::{Home, Sandbox, TestNode, small};

crate::tests![a_process_goes_on_where_it_was];

/// A process with 50 MB of its own, a position in a file, a terminal, a file in memory, connected sockets and
/// a pipe with something in it. It tells how it is whenever a line comes in through its first pipe.
const PROGRAM: &str = r#"
import hashlib, os, pty, socket, sys, time
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
os.mkfifo("/var/tmp/ask"); os.mkfifo("/var/tmp/tell")
count, started = 0, time.monotonic()
while True:
    with open("/var/tmp/ask") as ask: word = ask.read().strip()
    count += 1
    near.sendall(b"x")
    os.write(master, b"y\n")
    facts = [
        os.getpid(), count, hashlib.sha256(data).hexdigest()[:16], position.tell(),
        far.recv(1).decode(), os.read(slave, 2).decode().strip(), open("/dev/shm/file").read(),
        int(time.monotonic() - started) < 600, word,
    ]
    with open("/var/tmp/tell", "w") as tell: tell.write(" ".join(str(fact) for fact in facts))
"#;

fn with_python() -> Limits {
    Limits { memory_mib: 512, disk_mib: 256, ..small() }
}

/// A node that can save memory.
async fn able(home: &Home) -> Option<TestNode> {
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

async fn begin(sandbox: &Sandbox, mebibytes: usize) {
    sandbox.output(&format!("cat > /var/tmp/program.py <<'END'\n{PROGRAM}\nEND\n")).await;
    let start = format!(
        "python3 /var/tmp/program.py {mebibytes} >/var/tmp/log 2>&1 </dev/null &\n\
        for i in $(seq 500); do [ -p /var/tmp/tell ] && exit 0; sleep 0.02; done; cat /var/tmp/log; exit 1"
    );
    sandbox.output(&start).await;
}

/// What the process says of itself, without its count.
async fn ask(sandbox: &Sandbox, word: &str) -> (u32, String) {
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
        sandbox.placement = node.engine.start(sandbox.id, false).await.unwrap();
        println!("{mebibytes} MB: hibernated in {saved:?}, back in {:?}", begun.elapsed());
        assert_eq!(ask(&sandbox, "hello").await, (2, facts));
        assert_eq!(sandbox.output("cat /proc/sys/kernel/random/boot_id").await, boot_id);
        assert_eq!(sandbox.output("awk '{print $5, $6, $9}' /proc/self/mountinfo | sort").await, mounts);
        node.engine.destroy(sandbox.id).await.unwrap();
    }
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
    let _ = Duration::ZERO;
}
