//! The node tests whether an image can be restored before it ends any process, and what else comes back.
//! Needs CRIU; skips loudly without.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use coffer_core::Boot;
use coffer_engine::Engine as _;
use coffer_wire::node::{CreateSandbox, RunState};
use rustix::process::{Pid, Signal};

use crate::harness::{Home, Sandbox, small, spec};
use crate::memory::{able, ask, begin, with_python, write_on};

crate::tests![
    an_image_that_cannot_be_restored_ends_nothing,
    locks_are_held_again,
    a_kill_while_memory_is_saved_holds_nothing_up,
];

/// A CRIU that, while the second of these files exists, corrupts its dump before the node takes its checksum.
fn spoiling(directory: &Path) -> (PathBuf, PathBuf) {
    let own = fs::read_to_string("/usr/local/lib/coffer/criu/command");
    let words = own.map_or_else(|_| "criu".to_string(), |words| words.lines().collect::<Vec<_>>().join(" "));
    let (program, flag) = (directory.join("criu"), directory.join("spoil"));
    let text = format!(
        r#"#!/bin/sh -p
if [ "$1" = dump ] && [ -e {flag} ]; then
    for word; do
        case $before in --images-dir) images=$word ;; --action-script) hook=$word ;; esac
        before=$word
    done
    mv "$hook" "$hook.own"
    cat > "$hook" <<END
#!/bin/sh
[ "\$CRTOOLS_SCRIPT_ACTION" != post-dump ] || printf spoilt! | dd of=$images/core-1.img conv=notrunc 2>/dev/null
exec $hook.own
END
    chmod 755 "$hook" "$hook.own"
fi
exec {words} "$@"
"#,
        flag = flag.display()
    );
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&flag, "").unwrap();
    (program, flag)
}

async fn an_image_that_cannot_be_restored_ends_nothing() {
    let home = Home::new();
    let Some(node) = able(&home).await else { return };
    node.stop().await;
    let scratch = tempfile::tempdir().unwrap();
    let (program, flag) = spoiling(scratch.path());
    let variables = [("CRIU_PROGRAM", program.to_str().unwrap())];
    let (mut process, engine, stop_client) = home.start_process_with(&variables).await;
    let wanted = CreateSandbox { limits: with_python(), ..spec(small()) };
    let placement = engine.create(&wanted).await.unwrap();
    let sandbox = Sandbox { id: wanted.sandbox, placement };
    begin(&sandbox, 5).await;
    write_on(&sandbox).await;
    let (_, facts) = ask(&sandbox, "x").await;
    for count in [2, 3] {
        let error = engine.hibernate(sandbox.id).await.unwrap_err().to_string();
        assert!(error.contains("keeps running") && error.contains("could not be restored"), "{error}");
        assert_eq!(engine.list().await.unwrap()[0].run, RunState::Running);
        assert!(!home.data_dir().join(format!("pool/m/{}", sandbox.id)).exists());
        assert_eq!(ask(&sandbox, "x").await, (count, facts.clone()));
    }
    fs::remove_file(flag).unwrap();
    engine.hibernate(sandbox.id).await.unwrap();
    assert_eq!(engine.list().await.unwrap()[0].run, RunState::Hibernated);
    assert_eq!(home.live_processes(), 0);
    engine.start(sandbox.id, Boot::AsPaused).await.unwrap();
    assert_eq!(ask(&sandbox, "x").await, (4, facts));
    engine.destroy(sandbox.id).await.unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    stop_client.cancel();
    home.start().await.stop().await;
    home.reap_orphans();
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

/// Holds a lock on a file as `flock` gives it, and on a part of another as `fcntl` does.
const LOCKS: &str = r#"
import fcntl, time
whole, part = open("/var/tmp/whole", "w"), open("/var/tmp/part", "w")
fcntl.flock(whole, fcntl.LOCK_EX)
fcntl.lockf(part, fcntl.LOCK_EX, 10, 5)
open("/dev/shm/locked", "w").write("yes")
time.sleep(600)
"#;

async fn locks_are_held_again() {
    let home = Home::new();
    let Some(node) = able(&home).await else { return };
    let sandbox = node.create(with_python()).await;
    sandbox
        .output(&format!(
            "cat > /var/tmp/locks.py <<'END'\n{LOCKS}\nEND\n\
             python3 /var/tmp/locks.py >/dev/null 2>&1 </dev/null &\n\
             for i in $(seq 500); do [ -s /dev/shm/locked ] && exit 0; sleep 0.02; done; exit 1"
        ))
        .await;
    let take = r#"python3 -c '
import fcntl
def can(path, take):
    try: take(open(path, "r+")); return "free"
    except BlockingIOError: return "held"
now = fcntl.LOCK_EX | fcntl.LOCK_NB
print(can("/var/tmp/whole", lambda f: fcntl.flock(f, now)), can("/var/tmp/part", lambda f: fcntl.lockf(f, now, 1, 7)),
      can("/var/tmp/part", lambda f: fcntl.lockf(f, now, 1, 20)))'"#;
    assert_eq!(sandbox.output(take).await, "held held free");
    for _ in 0..2 {
        node.engine.hibernate(sandbox.id).await.unwrap();
        node.engine.start(sandbox.id, Boot::AsPaused).await.unwrap();
        assert_eq!(sandbox.output(take).await, "held held free");
    }
    sandbox.output("pkill -f lock[s].py; while pgrep -f lock[s].py; do sleep 0.01; done").await;
    assert_eq!(sandbox.output(take).await, "free free free");
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

/// The first process, once CRIU holds it.
async fn held_first(home: &Home, sandbox: &Sandbox) -> Pid {
    let entry = fs::read(home.data_dir().join(format!("sandboxes/{}.json", sandbox.id))).unwrap();
    let entry: serde_json::Value = serde_json::from_slice(&entry).unwrap();
    let pid = i32::try_from(entry["phase"]["process"]["pid"].as_i64().unwrap()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        if status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0")) {
            return Pid::from_raw(pid).unwrap();
        }
        assert!(Instant::now() < deadline, "no process holds {pid}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// CRIU waits for the first process, that for its children, and those for CRIU.
async fn a_kill_while_memory_is_saved_holds_nothing_up() {
    let home = Home::new();
    let Some(node) = able(&home).await else { return };
    // It is in the first milliseconds that they come to wait for each other.
    for after_ms in (0..12).chain([30, 60, 90, 150]) {
        let sandbox = node.create(small()).await;
        sandbox.output("for i in 1 2 3; do sleep 600 >/dev/null 2>&1 </dev/null & done").await;
        let (saved, ()) = tokio::join!(
            tokio::time::timeout(Duration::from_secs(20), node.engine.hibernate(sandbox.id)),
            async {
                let first = held_first(&home, &sandbox).await;
                tokio::time::sleep(Duration::from_millis(after_ms)).await;
                let _ended = rustix::process::kill_process(first, Signal::KILL);
            }
        );
        let saved = saved.unwrap_or_else(|_| panic!("no answer, of a kill after {after_ms} ms"));
        // Its image was whole before the kill, or it died of it.
        match saved {
            Ok(_) => {
                assert_eq!(node.engine.list().await.unwrap()[0].run, RunState::Hibernated);
                node.engine.start(sandbox.id, Boot::AsPaused).await.unwrap();
                assert_eq!(sandbox.output("pgrep -c sleep").await, "3");
            }
            Err(error) => assert!(error.to_string().contains("could not be saved"), "{error}"),
        }
        node.engine.destroy(sandbox.id).await.unwrap();
    }
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}
