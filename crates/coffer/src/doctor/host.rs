//! The machine: rights, limits of the kernel, programs, clock.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::geteuid;

use super::finding::Finding;

/// Fewer process ids than this are used up by a few dozen busy sandboxes.
const FEW_PIDS: u64 = 131_072;
const FEW_NAMESPACES: u64 = 1_024;
/// Long before this program was written.
const NO_EARLIER_THAN_MS: i64 = 1_735_689_600_000;

/// Where facts about the machine are read.
#[derive(Debug)]
pub(super) struct Machine {
    proc: PathBuf,
    dev: PathBuf,
    is_root: bool,
    now_ms: i64,
    /// Why CRIU cannot save memory here.
    no_criu: Option<String>,
    gvisor: bool,
    release: String,
}

impl Machine {
    pub(super) fn this() -> Self {
        let gvisor = output_of("runsc", "--version").is_some();
        Self { no_criu: coffer_node::memory_lacks(), gvisor, ..Self::unasked() }
    }

    /// What is known without starting a program.
    fn unasked() -> Self {
        Self {
            proc: "/proc".into(),
            dev: "/dev".into(),
            is_root: geteuid().is_root(),
            now_ms: coffer_core::clock::now_ms(),
            no_criu: None,
            gvisor: false,
            release: rustix::system::uname().release().to_string_lossy().into_owned(),
        }
    }

    /// A number in a file below /proc.
    fn number(&self, path: &str) -> Option<u64> {
        std::fs::read_to_string(self.proc.join(path)).ok()?.trim().parse().ok()
    }
}

fn output_of(program: &str, argument: &str) -> Option<String> {
    let output = Command::new(program).arg(argument).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The checks that start no program: `up` collects every child that ends, so it cannot wait for one of its own here.
pub(super) fn check_without_programs() -> Vec<Finding> {
    limits(&Machine::unasked())
}

pub(super) fn check(machine: &Machine) -> Vec<Finding> {
    let mut findings = vec![rights(machine), Finding::ok("kernel", format!("Linux {}", machine.release))];
    findings.extend(limits(machine));
    findings.push(clock(machine));
    findings.push(criu(machine));
    findings.push(match machine.dev.join("kvm").exists() {
        true => Finding::ok("kvm", "/dev/kvm is there; no engine uses it yet"),
        false => Finding::skipped("kvm", "no /dev/kvm; sandboxes do not need it"),
    });
    findings.push(match machine.gvisor {
        true => Finding::ok("gvisor", "runsc is installed; no engine uses it yet"),
        false => Finding::skipped("gvisor", "runsc is not installed; sandboxes do not need it"),
    });
    findings
}

fn rights(machine: &Machine) -> Finding {
    if machine.is_root {
        return Finding::ok("root", "running as root");
    }
    Finding::fail("root", "not running as root")
        .matters("`coffer up` creates namespaces, mounts and cgroups, and most checks need the same rights")
        .fix("sudo coffer doctor")
}

fn limits(machine: &Machine) -> Vec<Finding> {
    let rows = [
        ("pid_max", "sys/kernel/pid_max", FEW_PIDS, "processes", "kernel.pid_max=4194304"),
        (
            "user_namespaces",
            "sys/user/max_user_namespaces",
            FEW_NAMESPACES,
            "user namespaces",
            "user.max_user_namespaces=65536",
        ),
    ];
    let finding = |(check, path, few, what, setting): (&str, &str, u64, &str, &str)| {
        let Some(most) = machine.number(path) else {
            return Finding::skipped(check, format!("could not read /proc/{path}"));
        };
        let found = format!("at most {most} {what}");
        if most >= few {
            return Finding::ok(check, found);
        }
        Finding::warn(check, found)
            .matters("sandboxes fail to start processes when the machine has run out of them")
            .fix(format!("sysctl -w {setting}, and the same line in /etc/sysctl.d/coffer.conf"))
    };
    rows.map(finding).into()
}

/// Certificates, leases and timeouts go by the clock.
fn clock(machine: &Machine) -> Finding {
    if machine.now_ms < NO_EARLIER_THAN_MS {
        return Finding::fail("clock", "the clock is years behind")
            .matters("certificates seem not yet valid, and sandboxes end at the wrong time")
            .fix("timedatectl set-ntp true (or install chrony)");
    }
    match synchronized() {
        Some(true) => Finding::ok("clock", "kept in step by a time service"),
        Some(false) => Finding::warn("clock", "no time service keeps the clock in step")
            .matters("certificates, leases and tokens go by the clock")
            .fix("timedatectl set-ntp true (or install chrony)"),
        None => Finding::skipped("clock", "could not ask the kernel whether the clock is in step"),
    }
}

fn synchronized() -> Option<bool> {
    // timedatectl needs systemd; the kernel's own flag does not, but reading it needs unsafe code here.
    let text = output_of("timedatectl", "show")?;
    text.lines().find_map(|line| line.strip_prefix("NTPSynchronized=")).map(|value| value == "yes")
}

/// The node decides which CRIU is new enough for this kernel.
fn criu(machine: &Machine) -> Finding {
    let Some(why) = &machine.no_criu else { return Finding::ok("criu", "saves the memory of sandboxes") };
    Finding::warn("criu", why)
        .matters("without it a snapshot has files only, and a pause keeps processes in the host's memory")
        .fix("`scripts/setup run` installs one that fits, or install criu from Debian 13 or its backports")
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::*;

    fn machine(proc: &std::path::Path) -> Machine {
        Machine {
            proc: proc.into(),
            dev: proc.into(),
            is_root: true,
            now_ms: NO_EARLIER_THAN_MS * 2,
            no_criu: None,
            gvisor: false,
            release: "6.18.1".into(),
        }
    }

    fn found(machine: &Machine, check: &str) -> Finding {
        super::check(machine).into_iter().find(|finding| finding.check == check).unwrap()
    }

    #[test]
    fn few_process_ids_are_named_with_the_line_that_raises_them() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temp.path().join("sys/kernel")).unwrap();
        let file = temp.path().join("sys/kernel/pid_max");
        std::fs::write(&file, "32768\n").unwrap();
        let low = found(&machine(temp.path()), "pid_max");
        assert_eq!((low.status, low.found.as_str()), (Status::Warn, "at most 32768 processes"));
        assert!(low.fix.unwrap().contains("sysctl -w kernel.pid_max="));
        std::fs::write(&file, "4194304\n").unwrap();
        assert_eq!(found(&machine(temp.path()), "pid_max").status, Status::Ok);
        assert_eq!(found(&machine(temp.path()), "user_namespaces").status, Status::Skipped);
    }

    #[test]
    fn a_missing_or_old_criu_is_named() {
        let temp = tempfile::tempdir().unwrap();
        assert_eq!(found(&machine(temp.path()), "criu").status, Status::Ok);
        let why = "CRIU 4.0 is too old for Linux 6.18.1: 4.2 or later is needed";
        let old = Machine { no_criu: Some(why.into()), ..machine(temp.path()) };
        let finding = found(&old, "criu");
        assert_eq!((finding.status, finding.found.as_str()), (Status::Warn, why));
    }

    #[test]
    fn a_clock_of_another_year_and_missing_rights_fail() {
        let temp = tempfile::tempdir().unwrap();
        let behind = Machine { now_ms: 0, ..machine(temp.path()) };
        assert_eq!(found(&behind, "clock").status, Status::Fail);
        let somebody = Machine { is_root: false, ..machine(temp.path()) };
        assert_eq!(found(&somebody, "root").status, Status::Fail);
    }
}
