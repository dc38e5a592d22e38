//! Creates, uses and destroys one sandbox before `up` reports that it is ready.

use std::time::Duration;

use super::part::Part;
use super::{OwnChildren, Plan};
use crate::data_dir::DataDir;
use crate::preflight::{Fails, Report, Works};
use crate::printer::{self, HostUnusable};
use crate::privilege::Identity;

/// Longer than the preflight itself waits.
const PATIENCE: Duration = Duration::from_secs(300);

impl Plan {
    /// Proves that sandboxes work here; an error if they never will.
    pub(super) async fn preflight(
        &self,
        dir: &DataDir,
        identity: Identity,
        children: &OwnChildren,
    ) -> anyhow::Result<()> {
        let mut part = Part::start("preflight", self.unprivileged_arguments(dir, identity), children)?;
        let report: Report = part.first_line(PATIENCE).await?;
        part.stop(Duration::from_secs(5)).await;
        if self.check_json {
            printer::line(serde_json::to_string(&report)?);
        } else if self.check {
            printer::line(shown(&report).trim_end());
        }
        match report.outcome {
            Ok(Works { took_ms }) => {
                tracing::info!(took_ms, "preflight passed: a sandbox was created, used and destroyed");
                Ok(())
            }
            // Running sandboxes must stay reachable, even if new ones cannot be created.
            Err(Fails { why, may_pass }) if !self.check && (may_pass || report.live > 0) => {
                tracing::error!("preflight failed, new sandboxes may fail too: {why}");
                Ok(())
            }
            Err(Fails { why, .. }) => Err(HostUnusable::new(
                format!("this host cannot run sandboxes: {why}"),
                "the log above lists the kernel features that are missing; docs/kernels.md explains them",
            )
            .into()),
        }
    }
}

/// The output of `--check`.
fn shown(report: &Report) -> String {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut text = format!("Linux {release}\n");
    let mut line = |mark: &str, words: String| text.push_str(&format!("{mark:<6}{words}\n"));
    for feature in &report.kernel {
        match (feature.present, &feature.why, &feature.without) {
            (true, ..) => line("ok", feature.name.clone()),
            (false, why, without) => {
                let (why, without) = (why.as_deref().unwrap_or("-"), without.as_deref().unwrap_or("-"));
                line("lacks", format!("{}: {without} ({why})", feature.name));
            }
        }
    }
    for warning in &report.warnings {
        line("warn", warning.clone());
    }
    match &report.outcome {
        Ok(Works { took_ms }) => {
            line("ok", format!("a sandbox was created, used and destroyed in {took_ms} ms"))
        }
        Err(Fails { why, .. }) => line("fails", why.clone()),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use coffer_engine::KernelFeature;

    #[test]
    fn a_report_names_what_is_missing_and_what_follows() {
        let lacking = KernelFeature {
            name: "cgroup_kill".into(),
            present: false,
            why: Some("no file".into()),
            without: Some("killed one by one".into()),
        };
        let present = KernelFeature { name: "openat2".into(), present: true, why: None, without: None };
        let report = Report {
            outcome: Err(Fails { why: "no overlay".into(), may_pass: false }),
            live: 0,
            kernel: vec![present, lacking],
            warnings: vec!["memory is not limited".into()],
        };
        let text = shown(&report);
        let lines: Vec<_> = text.lines().skip(1).collect();
        let expected = [
            "ok    openat2",
            "lacks cgroup_kill: killed one by one (no file)",
            "warn  memory is not limited",
            "fails no overlay",
        ];
        assert_eq!(lines, expected);
    }
}
