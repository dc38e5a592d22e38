//! That an image can be restored is found out before anything ends, and what else comes back. Needs CRIU; skips
//! loudly without.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use coffer_engine::Engine as _;
use coffer_wire::node::{CreateSandbox, RunState};

use crate::harness::{Home, Sandbox, small, spec};
use crate::memory::{able, ask, begin, with_python, write_on};

crate::tests![an_image_that_cannot_be_restored_ends_nothing, locks_are_held_again];

/// A CRIU that, while there is a file called as the second of these, spoils what it dumps before anybody can
/// take its checksum.
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
        assert!(error.contains("goes on") && error.contains("could not be restored"), "{error}");
        assert_eq!(engine.list().await.unwrap()[0].run, RunState::Running);
        assert!(!home.data_dir().join(format!("pool/m/{}", sandbox.id)).exists());
        assert_eq!(ask(&sandbox, "x").await, (count, facts.clone()));
    }
    fs::remove_file(flag).unwrap();
    engine.hibernate(sandbox.id).await.unwrap();
    assert_eq!(engine.list().await.unwrap()[0].run, RunState::Hibernated);
    assert_eq!(home.live_processes(), 0);
    engine.start(sandbox.id, false).await.unwrap();
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
        node.engine.start(sandbox.id, false).await.unwrap();
        assert_eq!(sandbox.output(take).await, "held held free");
    }
    sandbox.output("pkill -f lock[s].py; while pgrep -f lock[s].py; do sleep 0.01; done").await;
    assert_eq!(sandbox.output(take).await, "free free free");
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}
