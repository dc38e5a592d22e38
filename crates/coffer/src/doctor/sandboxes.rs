//! Whether sandboxes work: the kernel's features, and one sandbox that is created, used and destroyed.

use std::process::{Command, Stdio};

use coffer_engine::{Engine as _, KernelFeature, NodeEngine};
use coffer_node::features::{Need, TABLE};
use tokio_util::sync::CancellationToken;

use super::finding::Finding;
use super::pool::{self, Pool};
use crate::config::{self, Flags, Settings, Sources};
use crate::data_dir::DataDir;
use crate::preflight::{Fails, Report, Works};

/// Asks the running node, or tries a sandbox in a scratch directory.
pub(super) fn check(
    settings: &Settings,
    running: bool,
    runtime: &tokio::runtime::Runtime,
    sources: &Sources,
    flags: &Flags,
) -> Vec<Finding> {
    if !rustix::process::geteuid().is_root() {
        return vec![Finding::skipped("sandboxes", "trying a sandbox needs root")];
    }
    if running { ask_node(settings, runtime) } else { try_one(sources, flags) }
}

fn ask_node(settings: &Settings, runtime: &tokio::runtime::Runtime) -> Vec<Finding> {
    let asked = runtime.block_on(async {
        let dir = DataDir::open(&settings.data_dir)?;
        let engine = NodeEngine::start(dir.run_dir().join("node.sock"), CancellationToken::new());
        let info = engine.info().await?;
        let pool = Pool::of(&info, &dir.node(), settings.node.warm_slots);
        anyhow::Ok((info.kernel, info.warnings, pool, engine.list().await?.len()))
    });
    match asked {
        Ok((kernel, warnings, pool, live)) => {
            let mut findings = features(&kernel);
            findings.extend(warnings.into_iter().map(|text| Finding::warn("node", text)));
            findings.push(Finding::ok("sandboxes", format!("the node answers and has {live}")));
            findings.extend(pool::judge(&pool));
            findings
        }
        Err(error) => vec![
            Finding::fail("sandboxes", format!("the node does not answer: {error:#}"))
                .matters("no sandbox can be created or reached")
                .fix("look at its log: journalctl -u coffer, or the terminal of `coffer up`"),
        ],
    }
}

/// In a process of its own, because the node's files and mounts must not outlive the trial.
fn try_one(sources: &Sources, flags: &Flags) -> Vec<Finding> {
    let fix = "docs/kernels.md says what a host needs";
    let failed = |why: String| {
        vec![Finding::fail("sandboxes", why).matters("no sandbox can be created on this host").fix(fix)]
    };
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return failed(format!("could not find this program: {error}")),
    };
    let output = Command::new(program)
        .args(["up", "--check", "--check-json", "--log=warn"])
        .args(config::arguments(sources, flags))
        .stdin(Stdio::null())
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => return failed(format!("could not start `coffer up --check`: {error}")),
    };
    let Some(report) = output.stdout.split(|&byte| byte == b'\n').find_map(|line| {
        let report: Option<Report> = serde_json::from_slice(line).ok();
        report
    }) else {
        let log = String::from_utf8_lossy(&output.stderr);
        let error = log.split_once("error: ").map_or(log.as_ref(), |(_, error)| error);
        return failed(error.trim().to_string());
    };
    let mut findings = features(&report.kernel);
    findings.extend(report.warnings.into_iter().map(|text| Finding::warn("node", text)));
    findings.push(match report.outcome {
        Ok(Works { took_ms }) => {
            Finding::ok("sandboxes", format!("one was created, used and destroyed in {took_ms} ms"))
        }
        Err(Fails { why, .. }) => Finding::fail("sandboxes", why).fix(fix),
    });
    findings
}

/// One line for what the kernel has, and one for each feature that it lacks.
fn features(kernel: &[KernelFeature]) -> Vec<Finding> {
    let present = kernel.iter().filter(|feature| feature.present).count();
    let mut findings =
        vec![Finding::ok("kernel.features", format!("{present} of {} are there", kernel.len()))];
    // CRIU has a check of its own, also with `--quick`.
    for feature in kernel.iter().filter(|feature| !feature.present && feature.name != "criu") {
        let check = format!("kernel.{}", feature.name);
        let found = format!("missing: {}", feature.why.as_deref().unwrap_or("the probe failed"));
        let row = TABLE.iter().find(|row| row.name == feature.name);
        let finding = match row.map(|row| row.need) {
            Some(Need::Required) => Finding::fail(check, found),
            // Done in another way; nobody notices.
            Some(Need::Fallback) => Finding::skipped(check, found),
            Some(Need::Optional) | None => Finding::warn(check, found),
        };
        let without = feature.without.as_deref().or(row.map(|row| row.without)).unwrap_or_default();
        let finding = finding.matters(format!("without it: {without}"));
        findings.push(match row {
            Some(row) => finding.fix(row.fix),
            None => finding,
        });
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::*;

    #[test]
    fn a_missing_feature_says_what_follows_and_what_to_do() {
        let lacks = |name: &str| KernelFeature {
            name: name.into(),
            present: false,
            why: Some("ENOENT".into()),
            without: Some("less".into()),
        };
        let findings = features(&[lacks("btrfs"), lacks("openat2"), lacks("cgroup_kill")]);
        let of = |check: &str| findings.iter().find(|finding| finding.check == check).unwrap();
        assert_eq!(of("kernel.btrfs").status, Status::Warn);
        assert_eq!(of("kernel.openat2").status, Status::Fail);
        assert_eq!(of("kernel.cgroup_kill").status, Status::Skipped);
        assert!(of("kernel.btrfs").fix.is_some());
    }
}
