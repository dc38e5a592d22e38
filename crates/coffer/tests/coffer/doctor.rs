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

/// Runs doctor in a mount namespace of its own, after a line of the shell that makes something wrong there.
fn doctor_where(wrong: &str, home: &Home, path: Option<&Path>) -> Option<Output> {
    let unshare = Command::new("unshare").args(["--mount", "true"]).output();
    if !unshare.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: no mount namespace of its own can be made here");
        return None;
    }
    let quiet = coffer();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-euc"]).arg(format!("{wrong}; exec \"$0\" \"$@\""));
    command.arg(quiet.get_program()).args(["doctor", "-o", "json", "--quick", "--listen", "127.0.0.1:0"]);
    command.arg("--data-dir").arg(home.data()).env("HOME_OF_TEST", home.data());
    for (name, _) in quiet.get_envs() {
        command.env_remove(name);
    }
    if let Some(path) = path {
        command.env("PATH", format!("{}:{}", path.display(), std::env::var("PATH").unwrap()));
    }
    Some(command.output().unwrap())
}

#[test]
fn a_full_disk_few_process_ids_an_old_criu_and_a_clock_that_was_set_back_are_found() {
    let home = Home::new();
    let programs = tempfile::tempdir().unwrap();
    let criu = programs.path().join("criu");
    std::fs::write(&criu, "#!/bin/sh\necho Version: 3.11\n").unwrap();
    std::fs::set_permissions(&criu, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let wrong = "mkdir -p \"$HOME_OF_TEST\"; mount -t tmpfs -o size=64m none \"$HOME_OF_TEST\"; \
                 touch -d tomorrow \"$HOME_OF_TEST/env\"; \
                 echo 8192 >\"$HOME_OF_TEST/few\"; mount --bind \"$HOME_OF_TEST/few\" /proc/sys/kernel/pid_max; \
                 [ ! -d /usr/local/lib/coffer ] || mount -t tmpfs none /usr/local/lib/coffer";
    let Some(output) = doctor_where(wrong, &home, Some(programs.path())) else { return };
    let (status, found, fix) = finding(&output, "disk");
    assert_eq!((status.as_str(), fix.is_empty()), ("fail", false), "{found}");
    let (status, found, fix) = finding(&output, "pid_max");
    assert_eq!((status.as_str(), found.as_str()), ("warn", "at most 8192 processes"));
    assert!(fix.contains("sysctl -w kernel.pid_max"), "{fix}");
    let (status, found, fix) = finding(&output, "criu");
    assert_eq!((status.as_str(), fix.is_empty()), ("warn", false), "{found}");
    assert!(found.contains("3.11"), "{found}");
    let (status, found, _) = finding(&output, "clock.back");
    assert_eq!(status, "fail", "{found}");
}

#[test]
fn a_loop_device_of_a_pool_that_was_deleted_is_an_orphan() {
    if cannot_run_sandboxes() {
        return;
    }
    let home = Home::new();
    std::fs::create_dir_all(home.data().join("node")).unwrap();
    let image = home.data().join("node/pool.img");
    std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let made = Command::new("losetup").args(["--find", "--show"]).arg(&image).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let device = String::from_utf8(made.stdout).unwrap().trim().to_string();
    std::fs::remove_file(&image).unwrap();
    let output = doctor(&home.data(), &["--quick", "--listen", "127.0.0.1:0"]);
    let gone = Command::new("losetup").args(["-d", &device]).status().unwrap();
    assert!(gone.success());
    let report = String::from_utf8_lossy(&output.stdout);
    let (status, _, fix) = finding(&output, "orphans.loop_device");
    assert_eq!((status.as_str(), fix.as_str()), ("warn", "coffer doctor --fix"));
    assert!(report.contains(&device), "{device} is not in {report}");
}
