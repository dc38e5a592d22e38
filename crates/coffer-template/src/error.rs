use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use super::sources::SourcesError;

/// Why a template could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("building a template needs root")]
    NotRoot,
    #[error("neither `mmdebstrap` nor `debootstrap` is installed")]
    NoTool,
    #[error("could not find the package sources for `base`")]
    Sources(#[from] SourcesError),
    #[error("`{path}` has {free_bytes} bytes free, the build needs {needed_bytes}")]
    NoSpace { path: PathBuf, free_bytes: u64, needed_bytes: u64 },
    #[error("could not start `{tool}`")]
    Start { tool: String, source: io::Error },
    #[error("`{tool}` failed ({status}); its last lines were:\n{}", indented(.tail))]
    Tool { tool: String, status: ExitStatus, log: PathBuf, tail: Vec<String> },
    #[error("`{path}` is not part of `/usr` on this host, so its `/usr` alone cannot be a template")]
    NotMerged { path: PathBuf },
    #[error("could not {doing} `{path}`")]
    File { doing: &'static str, path: PathBuf, source: io::Error },
}

fn indented(lines: &[String]) -> String {
    let lines: Vec<String> = lines.iter().map(|line| format!("  | {line}")).collect();
    lines.join("\n")
}

impl BuildError {
    pub(super) fn file(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { doing, path, source }
    }

    /// A hint for a person.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NotRoot => Some("run it with sudo".into()),
            Self::NoTool => Some("install it: apt-get install mmdebstrap".into()),
            Self::Sources(error) => Some(error.hint().into()),
            Self::NoSpace { .. } => {
                Some("free some space or name another directory with --template-dir".into())
            }
            Self::Tool { log, tail, .. } => {
                let cause = tool_hint(&tail.join("\n"));
                let log = format!("the whole log is in {}", log.display());
                Some(cause.map_or_else(|| log.clone(), |cause| format!("{cause}; {log}")))
            }
            Self::NotMerged { .. } => Some("build the `base` template instead".into()),
            Self::Start { .. } | Self::File { .. } => None,
        }
    }
}

/// Guesses the usual causes from apt's output.
fn tool_hint(tail: &str) -> Option<&'static str> {
    const SIGNS: [(&[&str], &str); 5] = [
        (&["No space left on device"], "the disk is full"),
        (
            &["NO_PUBKEY", "is not signed", "couldn't be verified", "BADSIG"],
            "the mirror's signature is unknown: is the distribution's archive keyring installed",
        ),
        (&["is not valid yet", "Release file expired", "is expired"], "is the clock right"),
        (
            &["Unable to locate package", "has no installation candidate", "Couldn't find these debs"],
            "a package is missing from the mirror: does it carry every component of the distribution",
        ),
        (
            &[
                "Temporary failure resolving",
                "Could not resolve",
                "Could not connect",
                "Unable to connect",
                "Connection timed out",
                "Connection refused",
                "Network is unreachable",
                "Failed to fetch",
                "Failed getting release file",
            ],
            "the mirror was not reached: is there a network, or a proxy to set in apt's configuration \
             or http_proxy? another mirror can be named with --mirror",
        ),
    ];
    SIGNS.iter().find(|(signs, _)| signs.iter().any(|sign| tail.contains(sign))).map(|(_, hint)| *hint)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn failed(tail: &[&str]) -> BuildError {
        BuildError::Tool {
            tool: "mmdebstrap".into(),
            status: ExitStatus::from_raw(25 << 8),
            log: "/x/build.log".into(),
            tail: tail.iter().map(|line| line.to_string()).collect(),
        }
    }

    #[test]
    fn the_last_lines_and_the_log_are_named() {
        let error = failed(&["Err:1 m.test InRelease", "E: Temporary failure resolving 'm.test'"]);
        let text = error.to_string();
        assert!(text.contains("  | E: Temporary failure resolving 'm.test'"), "{text}");
        let hint = error.hint().unwrap();
        assert!(hint.contains("is there a network") && hint.contains("/x/build.log"), "{hint}");
    }

    #[test]
    fn a_full_disk_is_told_from_a_missing_network() {
        let hint = failed(&["Failed to fetch a", "write error: No space left on device"]).hint().unwrap();
        assert!(hint.starts_with("the disk is full"), "{hint}");
    }

    #[test]
    fn an_unknown_failure_still_names_the_log() {
        assert_eq!(failed(&["hm"]).hint().unwrap(), "the whole log is in /x/build.log");
    }
}
