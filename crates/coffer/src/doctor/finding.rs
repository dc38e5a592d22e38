//! What a check found, and how it is shown.

use std::fmt::Write as _;

use serde::Serialize;

/// From best to worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    Ok,
    /// It could not be looked at, or does not apply.
    Skipped,
    /// Something works less well than it could.
    Warn,
    /// Something does not work.
    Fail,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// What was looked at, such as `disk` or `kernel.btrfs`; stable, for scripts.
    pub(super) check: String,
    pub(super) status: Status,
    pub(super) found: String,
    /// Why it matters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) matters: Option<String>,
    /// The line that fixes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fix: Option<String>,
}

impl Finding {
    fn new(check: impl Into<String>, status: Status, found: impl Into<String>) -> Self {
        Self { check: check.into(), status, found: found.into(), matters: None, fix: None }
    }

    pub(super) fn ok(check: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(check, Status::Ok, found)
    }

    pub(super) fn skipped(check: impl Into<String>, why: impl Into<String>) -> Self {
        Self::new(check, Status::Skipped, why)
    }

    pub(super) fn warn(check: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(check, Status::Warn, found)
    }

    pub(super) fn fail(check: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(check, Status::Fail, found)
    }

    pub(super) fn matters(self, why: impl Into<String>) -> Self {
        Self { matters: Some(why.into()), ..self }
    }

    pub(super) fn fix(self, line: impl Into<String>) -> Self {
        Self { fix: Some(line.into()), ..self }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Summary {
    ok: usize,
    warnings: usize,
    pub(super) failed: usize,
    skipped: usize,
}

impl Summary {
    pub(super) fn of(findings: &[Finding]) -> Self {
        let count = |status| findings.iter().filter(|finding| finding.status == status).count();
        Self {
            ok: count(Status::Ok),
            warnings: count(Status::Warn),
            failed: count(Status::Fail),
            skipped: count(Status::Skipped),
        }
    }
}

/// The output of `-o json`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) summary: Summary,
    pub(super) findings: Vec<Finding>,
}

/// For people: a line per finding, reason and fix below those that need one, and a count at the end.
pub(super) fn text(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Finding { check, status, found, matters, fix } in findings {
        let mark = match status {
            Status::Ok => "ok",
            Status::Skipped => "-",
            Status::Warn => "warn",
            Status::Fail => "FAIL",
        };
        // Output of other programs may have several lines.
        let found = found.replace('\n', "; ");
        let _ = writeln!(text, "{mark:<5} {check:<width$}  {found}");
        for (word, line) in [("why", matters), ("fix", fix)] {
            if let Some(line) = line {
                let _ = writeln!(text, "{:width$}        {word}: {line}", "");
            }
        }
    }
    let Summary { ok, warnings, failed, skipped } = Summary::of(findings);
    let _ = writeln!(text, "\n{ok} ok, {warnings} to look at, {failed} failed, {skipped} not checked");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_and_fix_are_below_the_finding_and_everything_is_counted() {
        let findings = [
            Finding::ok("disk", "90 GiB free"),
            Finding::fail("port", "127.0.0.1:3000 is taken").matters("no start").fix("stop it"),
            Finding::skipped("kvm", "no device"),
        ];
        let expected = "ok    disk  90 GiB free\n\
                        FAIL  port  127.0.0.1:3000 is taken\n            why: no start\n            fix: stop it\n\
                        -     kvm   no device\n\n1 ok, 0 to look at, 1 failed, 1 not checked\n";
        assert_eq!(text(&findings), expected);
        assert_eq!(Summary::of(&findings).failed, 1);
    }
}
