//! The process that is sandboxes' way out, as `up` starts it.

use std::collections::HashMap;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::harness::{Home, Up, cannot_run_sandboxes};

#[test]
fn egress_has_nothing_and_comes_back_when_killed() {
    if cannot_run_sandboxes() {
        return;
    }
    let home = Home::new();
    let data = home.data();
    let up = Up::start(&data, &[]);
    let (egress, server) = (up.part("egress").unwrap(), up.part("server").unwrap());

    let status = status(egress);
    let uid = status["Uid"].split('\t').next().unwrap();
    assert_eq!(status["Uid"], [uid; 4].join("\t"));
    assert_eq!(status["Gid"], [status["Groups"].trim(); 4].join("\t"));
    assert_ne!(uid, "0");
    assert_ne!(status["Uid"], self::status(server)["Uid"]);
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status[set], "0000000000000000", "{set}");
    }
    assert_eq!((status["NoNewPrivs"].as_str(), status["Seccomp"].as_str()), ("1", "2"));

    assert_eq!(std::fs::read_dir(of(egress, "root")).unwrap().count(), 0, "there are files");
    assert_eq!(std::fs::read_to_string(of(egress, "mountinfo")).unwrap().lines().count(), 1);
    assert_eq!(std::fs::read(of(egress, "environ")).unwrap(), b"", "it has an environment");
    for descriptor in std::fs::read_dir(of(egress, "fd")).unwrap().flatten() {
        let to = std::fs::read_link(descriptor.path()).unwrap_or_default();
        let number: u32 = descriptor.file_name().to_str().unwrap().parse().unwrap();
        assert!(number < 3 || !to.is_absolute(), "{number} is {}", to.display());
    }
    let limits = std::fs::read_to_string(of(egress, "limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");

    let socket = run_dir(egress).join("egress.sock");
    let metadata = socket.metadata().unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!((metadata.uid(), metadata.mode() & 0o777), (0, 0o600));

    let away = up.kill_part("egress", || orders(&data) == 2);
    eprintln!("egress was away for {away:?}");
    assert!(away < Duration::from_secs(3), "{away:?}");
    assert_eq!(self::status(up.part("egress").unwrap())["Uid"], status["Uid"]);

    // A node that was killed finds the same egress.
    let egress = up.part("egress");
    up.kill_part("node", || orders(&data) == 3);
    assert_eq!(up.part("egress"), egress);

    let egress = egress.unwrap();
    up.end(Signal::KILL);
    let since = Instant::now();
    while of(egress, "status").exists() {
        assert!(since.elapsed() < Duration::from_secs(10), "egress outlives `up`");
        std::thread::sleep(Duration::from_millis(5));
    }

    let up = Up::start(&data, &["--no-network", "--ephemeral"]);
    assert_eq!(up.part("egress"), None);
    assert!(up.end(Signal::TERM).success());
}

fn of(pid: Pid, file: &str) -> PathBuf {
    Path::new("/proc").join(pid.as_raw_nonzero().to_string()).join(file)
}

fn status(pid: Pid) -> HashMap<String, String> {
    let text = std::fs::read_to_string(of(pid, "status")).unwrap();
    let pairs = text.lines().filter_map(|line| line.split_once(":\t"));
    pairs.map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

fn run_dir(pid: Pid) -> PathBuf {
    let line = std::fs::read_to_string(of(pid, "cmdline")).unwrap();
    line.split('\0').find_map(|argument| argument.strip_prefix("--run-dir=")).unwrap().into()
}

/// How often a node has begun to give orders.
fn orders(data: &Path) -> usize {
    let log = std::fs::read_to_string(data.with_extension("log")).unwrap();
    log.matches("node connected").count()
}
