//! Where things are in the sandbox.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Paths of one installation. Tests have their own.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The Python environment, with Deno and the IPython profile.
    pub(crate) home: PathBuf,
    /// Connection files and sockets of kernels. On a tmpfs: files of sockets on an overlay do not survive a restore.
    pub(crate) run: PathBuf,
    /// Where contexts begin that name no directory.
    pub(crate) work: PathBuf,
    /// Holds the sandbox's id, which changes when the sandbox gets an owner or is forked.
    pub(crate) identity: PathBuf,
    /// The port of agentd.
    pub(crate) agentd: u16,
}

impl Place {
    /// The sandbox's, unless variables say otherwise.
    pub(crate) fn from_environment() -> Self {
        let path =
            |name: &str, usual: &str| PathBuf::from(std::env::var_os(name).unwrap_or_else(|| usual.into()));
        let agentd = std::env::var("COFFER_CODE_AGENTD").ok().and_then(|port| port.parse().ok());
        Self {
            home: path("COFFER_CODE_HOME", "/opt/code"),
            run: path("COFFER_CODE_RUN", "/dev/shm/coffer-code"),
            work: path("COFFER_CODE_WORK", "/home/user"),
            identity: path("COFFER_CODE_IDENTITY", "/run/e2b/.E2B_SANDBOX_ID"),
            agentd: agentd.unwrap_or(49983),
        }
    }

    /// Makes the directory of kernels' files, which nobody else can open, and ends what a service before us has left:
    /// its kernels answer to nobody any more.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.run)?;
        end_kernels(&self.run);
        for entry in std::fs::read_dir(&self.run)?.flatten() {
            // What cannot be removed is in nobody's way: names are chosen at random.
            let _left = std::fs::remove_file(entry.path());
        }
        Ok(())
    }

    /// Who the sandbox is now; empty outside of one.
    pub(crate) fn identity(&self) -> String {
        std::fs::read_to_string(&self.identity).unwrap_or_default().trim().to_string()
    }

    /// The directory to start a kernel in: the context's if it can be entered.
    pub(crate) fn directory<'a>(&'a self, wanted: &'a str) -> &'a Path {
        [Path::new(wanted), self.work.as_path()]
            .into_iter()
            .find(|path| path.is_absolute() && path.is_dir())
            .unwrap_or(Path::new("/"))
    }
}

/// Ends every process that was started with a connection file of this directory. They are found by their arguments: a
/// restored process has another start time, and may have another number.
fn end_kernels(run: &Path) {
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let arguments = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let is_ours = |argument: &[u8]| {
            let path = Path::new(OsStr::from_bytes(argument));
            path.parent() == Some(run) && path.extension() == Some(OsStr::new("json"))
        };
        if arguments.split(|byte| *byte == 0).any(is_ours)
            && let Some(group) = rustix::process::Pid::from_raw(process)
        {
            // It may end by itself meanwhile.
            let _gone = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::process::Process;

    #[tokio::test]
    async fn kernels_of_a_killed_service_are_ended() {
        let scratch = tempfile::tempdir().unwrap();
        let place = Place { run: scratch.path().join("run"), ..Place::from_environment() };
        place.prepare().unwrap();
        let start = |file: PathBuf| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", "read x", "sh"]).arg(file).stdin(Stdio::piped());
            Process::start(&mut command).unwrap().0
        };
        std::fs::write(place.run.join("a.json"), "").unwrap();
        let (left, other) = (start(place.run.join("a.json")), start(scratch.path().join("a.json")));
        place.prepare().unwrap();
        left.ended().await;
        assert!(!other.has_ended(), "it is not a kernel of ours");
        other.kill();
        assert_eq!(std::fs::read_dir(&place.run).unwrap().count(), 0);
    }
}
