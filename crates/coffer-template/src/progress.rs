//! Progress of a build, from the output of the bootstrap tools.

use std::fmt;

/// The phase of a build. In this order; phases may be skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Another process builds the same template.
    Waiting,
    /// Node, which no distribution has in the version that is wanted.
    Node,
    Index,
    Essential,
    Download,
    Install,
    Finish,
}

impl Phase {
    /// The measured share of the whole at which this phase begins.
    fn begins_at(self) -> f64 {
        match self {
            Self::Waiting | Self::Node => 0.0,
            Self::Index => 0.05,
            Self::Essential => 0.08,
            Self::Download => 0.26,
            Self::Install => 0.45,
            Self::Finish => 0.97,
        }
    }

    fn ends_at(self) -> f64 {
        match self {
            Self::Waiting => 0.0,
            Self::Node => Self::Index.begins_at(),
            Self::Index => Self::Essential.begins_at(),
            Self::Essential => Self::Download.begins_at(),
            Self::Download => Self::Install.begins_at(),
            Self::Install => Self::Finish.begins_at(),
            Self::Finish => 1.0,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Waiting => "waiting for another build",
            Self::Node => "downloading Node",
            Self::Index => "reading the package index",
            Self::Essential => "laying the essential packages",
            Self::Download => "downloading packages",
            Self::Install => "installing packages",
            Self::Finish => "finishing",
        })
    }
}

/// One report. `total` is 0 while it is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub phase: Phase,
    pub done: u64,
    pub total: u64,
}

impl Progress {
    pub(super) fn at(phase: Phase) -> Self {
        Self { phase, done: 0, total: 0 }
    }

    /// The progress of the whole build, from 0 to 1.
    pub fn overall(&self) -> f64 {
        let within = match self.total {
            0 => 0.0,
            #[expect(clippy::cast_precision_loss, reason = "counts of packages are small")]
            total => self.done.min(total) as f64 / total as f64,
        };
        self.phase.begins_at() + within * (self.phase.ends_at() - self.phase.begins_at())
    }
}

/// Parses the output of `mmdebstrap --verbose`, `debootstrap` and `apt-get install`.
#[derive(Debug)]
pub(super) struct Reader {
    now: Progress,
    /// Packages that the current round of apt or dpkg installs.
    packages: u64,
    /// The first round installs the essential packages, the second everything else.
    essential: bool,
}

impl Reader {
    pub(super) fn new() -> Self {
        Self { now: Progress::at(Phase::Index), packages: 0, essential: true }
    }

    /// Takes one line; returns a report if there was progress.
    pub(super) fn line(&mut self, line: &str) -> Option<Progress> {
        let before = self.now;
        if let Some(message) = line.strip_prefix("I: ") {
            self.announcement(message);
        } else if let Some(packages) = newly_installed(line) {
            self.packages = packages;
        } else if !self.essential && line.starts_with("Get:") && self.packages > 0 {
            self.count(Phase::Download, self.packages);
        } else if line.starts_with("Unpacking ") || line.starts_with("Setting up ") {
            let phase = if self.essential { Phase::Essential } else { Phase::Install };
            self.count(phase, self.packages * 2);
        }
        (self.now != before).then_some(self.now)
    }

    fn announcement(&mut self, message: &str) {
        if message.starts_with("downloading packages") || message.starts_with("Retrieving ") {
            self.enter(Phase::Essential);
        } else if message.starts_with("installing remaining packages")
            || message.starts_with("Base system installed successfully")
        {
            self.essential = false;
            self.packages = 0;
            self.enter(Phase::Download);
        } else if message.starts_with("cleaning package lists") {
            self.enter(Phase::Finish);
        }
    }

    /// Phases only advance, whatever the tools print.
    fn enter(&mut self, phase: Phase) {
        if self.now.phase < phase {
            self.now = Progress::at(phase);
        }
    }

    fn count(&mut self, phase: Phase, total: u64) {
        self.enter(phase);
        if self.now.phase == phase {
            self.now.done = (self.now.done + 1).min(total);
            self.now.total = total;
        }
    }
}

/// apt's summary: `0 upgraded, 488 newly installed, 0 to remove and 0 not upgraded.`
fn newly_installed(line: &str) -> Option<u64> {
    let (before, _) = line.split_once(" newly installed")?;
    before.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "\
I: running apt-get update...
Get:1 m.test bookworm InRelease [151 kB]
I: downloading packages with apt...
0 upgraded, 2 newly installed, 0 to remove and 0 not upgraded.
Get:1 m.test bookworm/main amd64 bash amd64 5.2 [1 kB]
I: extracting archives...
I: installing essential packages...
Unpacking libc6:amd64 (2.36) ...
Unpacking bash (5.2) ...
Setting up libc6:amd64 (2.36) ...
Setting up bash (5.2) ...
I: installing remaining packages inside the chroot...
0 upgraded, 3 newly installed, 0 to remove and 0 not upgraded.
Get:1 m.test bookworm/main amd64 a
Get:2 m.test bookworm/main amd64 b
Get:3 m.test bookworm/main amd64 c
Unpacking a (1) ...
Setting up a (1) ...
Unpacking b (1) ...
Unpacking c (1) ...
Setting up b (1) ...
Setting up c (1) ...
I: cleaning package lists and apt cache...
I: success in 131.3410 seconds";

    #[test]
    fn a_build_goes_forward_through_its_phases() {
        let mut reader = Reader::new();
        let reports: Vec<Progress> = LINES.lines().filter_map(|line| reader.line(line)).collect();
        let overall: Vec<f64> = reports.iter().map(Progress::overall).collect();
        assert!(overall.is_sorted(), "{overall:?}");
        let last_of = |phase| reports.iter().rfind(|report| report.phase == phase).copied();
        assert_eq!(last_of(Phase::Essential), Some(Progress { phase: Phase::Essential, done: 4, total: 4 }));
        assert_eq!(last_of(Phase::Download), Some(Progress { phase: Phase::Download, done: 3, total: 3 }));
        assert_eq!(last_of(Phase::Install), Some(Progress { phase: Phase::Install, done: 6, total: 6 }));
        assert_eq!(reports.last(), Some(&Progress::at(Phase::Finish)));
    }

    #[test]
    fn debootstrap_and_then_apt_go_forward_too() {
        let lines = "I: Retrieving InRelease \nI: Retrieving libacl1 2.3\nI: Unpacking libacl1...\n\
                     I: Base system installed successfully.\nGet:1 m.test bookworm InRelease [151 kB]\n\
                     0 upgraded, 1 newly installed, 0 to remove and 0 not upgraded.\n\
                     Get:1 m.test bookworm/main amd64 a\nUnpacking a (1) ...\nSetting up a (1) ...";
        let mut reader = Reader::new();
        let reports: Vec<Progress> = lines.lines().filter_map(|line| reader.line(line)).collect();
        let phases: Vec<Phase> = reports.iter().map(|report| report.phase).collect();
        assert_eq!(
            phases,
            [Phase::Essential, Phase::Download, Phase::Download, Phase::Install, Phase::Install]
        );
        assert_eq!(reports.last(), Some(&Progress { phase: Phase::Install, done: 2, total: 2 }));
    }

    #[test]
    fn odd_lines_never_exceed_the_total() {
        let mut reader = Reader::new();
        for line in ["Setting up x", "9999999999999999999999 newly installed", " newly installed", "I: "] {
            reader.line(line);
            assert!(reader.now.done <= reader.now.total || reader.now.total == 0);
        }
    }
}
