//! `coffer doctor` against a machine on which something is wrong, for real where that can be arranged.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::harness::{Home, Up, cannot_run_sandboxes, coffer};
use rustix::process::Signal;

fn doctor(data: &Path, arguments: &[&str]) -> Output {
    let mut command = coffer();
    command.args(["doctor", "-o", "json", "--data-dir"]).arg(data).args(arguments);
    command.output().unwrap()
}

/// Status, found and fix of a check.
fn finding(output: &Output, check: &str) -> (String, String, String) {
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("no JSON: {}", String::from_utf8_lossy(&output.stderr)));
    let findings = report["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["check"] == check);
    let found = found.unwrap_or_else(|| panic!("no {check} in {findings:#?}"));
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_string();
    (text("status"), text("found"), text("fix"))
}

#[test]
fn settings_that_cannot_be_used_are_named_and_other_checks_still_run() {
    let home = Home::new();
    let output = doctor(&home.data(), &["--quick", "--set", "sandbox.cpus=many"]);
    assert_eq!(output.status.code(), Some(1));
    let (status, found, _) = finding(&output, "settings");
    assert_eq!(status, "fail");
    assert!(found.contains("sandbox.cpus"), "{found}");
    assert_eq!(finding(&output, "kernel").0, "ok");
    assert!(!home.data().exists(), "a look creates nothing");
}

#[test]
fn a_taken_port_a_missing_database_and_a_missing_wildcard_fail() {
    let home = Home::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = coffer();
    command.args([
        "doctor",
        "-o",
        "json",
        "--quick",
        "--listen",
        &at,
        "--domain",
        "nothing.invalid",
        "--data-dir",
    ]);
    command
        .arg(home.data())
        .env("COFFER_DATABASE_URL", format!("postgres://somebody:hidden@{closed}/coffer"));
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let (status, found, fix) = finding(&output, "port");
    assert_eq!(status, "fail");
    assert!(found.contains(&at) && found.contains("pid"), "{found}");
    assert!(fix.contains("--listen"), "{fix}");
    let (status, found, _) = finding(&output, "database");
    assert_eq!(status, "fail");
    assert!(found.contains(&closed.to_string()), "{found}");
    assert_eq!(finding(&output, "domain").0, "fail");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("hidden"));
}

#[test]
fn a_name_server_that_does_not_answer_and_missing_kernel_features_are_named() {
    let home = Home::new();
    let closed = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let lacks = "node.kernel_lacks=btrfs,landlock";
    let output = doctor(&home.data(), &["--listen", "127.0.0.1:0", "--nameserver", &closed, "--set", lacks]);
    let (status, found, _) = finding(&output, "dns");
    assert_eq!((status.as_str(), found.contains(&closed)), ("fail", true), "{found}");
    if cannot_run_sandboxes() {
        return;
    }
    for feature in ["kernel.btrfs", "kernel.landlock"] {
        let (status, _, fix) = finding(&output, feature);
        assert_eq!((status.as_str(), fix.is_empty()), ("warn", false), "{feature}");
    }
    assert_eq!(finding(&output, "sandboxes").0, "ok");
    // Without rules for packets nothing leads a sandbox to egress.
    let output = doctor(&home.data(), &["--listen", "127.0.0.1:0", "--set", "node.kernel_lacks=nf_tables"]);
    let report = String::from_utf8_lossy(&output.stdout);
    assert_eq!(finding(&output, "kernel.nf_tables").0, "warn", "{report}");
    assert!(home.left_over().is_empty());
}

#[test]
fn orphans_are_found_and_removed_when_asked() {
    if cannot_run_sandboxes() {
        return;
    }
    let home = Home::new();
    let up = Up::start(&home.data(), &[]);
    let log = std::fs::read_to_string(home.data().with_extension("log")).unwrap();
    assert!(!log.contains("could not be run"), "`up` starts no program to look for faults: {log}");
    // The server answers, and its own files and cgroups are no orphans.
    let listen = up.listen.to_string();
    let healthy = doctor(&home.data(), &["--listen", &listen]);
    assert_eq!(finding(&healthy, "server").0, "ok");
    assert_eq!(finding(&healthy, "sandboxes").0, "ok");

    let files = home.data().join("node/pool/s/nobody");
    let made = Command::new("btrfs").args(["subvolume", "create"]).arg(&files).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let cgroup = cgroup_root().join("coffer-0d0c7012");
    std::fs::create_dir(&cgroup).unwrap();
    let output = doctor(&home.data(), &["--quick", "--listen", &listen]);
    let (status, found, fix) = finding(&output, "orphans.files");
    assert_eq!((status.as_str(), fix.as_str()), ("warn", "coffer doctor --fix"));
    assert!(found.contains("pool/s/nobody"), "{found}");
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(report.contains("coffer-0d0c7012"), "{report}");
    assert!(files.exists() && cgroup.exists(), "a look removes nothing");

    let fixed = doctor(&home.data(), &["--quick", "--fix", "--listen", &listen]);
    assert!(!files.exists() && !cgroup.exists(), "{}", String::from_utf8_lossy(&fixed.stdout));
    let again = doctor(&home.data(), &["--quick", "--listen", &listen]);
    assert!(!String::from_utf8_lossy(&again.stdout).contains("pool/s/nobody"));
    up.end(Signal::TERM);
}

/// A hierarchy in which cgroups can be made.
fn cgroup_root() -> std::path::PathBuf {
    let root = Path::new("/sys/fs/cgroup");
    let places = [root.to_path_buf(), root.join("unified"), root.join("pids"), root.join("memory")];
    places.into_iter().find(|place| place.join("cgroup.procs").exists()).unwrap()
}
