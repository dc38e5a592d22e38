//! Where things are in the sandbox.

use std::io;
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
        for entry in std::fs::read_dir(&self.run)?.flatten() {
            let name = entry.file_name();
            if let Some(number) = name.to_str().and_then(|name| name.strip_prefix(NOTE)) {
                end_if_same(number, &std::fs::read_to_string(entry.path()).unwrap_or_default());
            }
            // What cannot be removed is in nobody's way: names are chosen at random.
            let _left = std::fs::remove_file(entry.path());
        }
        Ok(())
    }

    /// Notes a kernel, for the service after us.
    pub(crate) fn note(&self, process: i32) -> Note {
        let path = self.run.join(format!("{NOTE}{process}"));
        // Without it, a kernel is left only if the service is killed.
        let _unwritten = std::fs::write(&path, start_time(process).unwrap_or_default());
        Note(path)
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

const NOTE: &str = "process-";

/// Names a kernel that runs; goes with it.
#[derive(Debug)]
pub(crate) struct Note(PathBuf);

impl Drop for Note {
    fn drop(&mut self) {
        // A service that starts removes what is left.
        let _gone = std::fs::remove_file(&self.0);
    }
}

/// When a process was started, by which it is told from another one that has its number.
fn start_time(process: i32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name may have anything in it, parentheses too. The time is the 20th field after it.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19).map(ToString::to_string)
}

fn end_if_same(number: &str, started: &str) {
    let Some(process) = number.parse().ok().filter(|process| *process > 1) else { return };
    if start_time(process).is_some_and(|time| time == started)
        && let Some(group) = rustix::process::Pid::from_raw(process)
    {
        // It may end by itself meanwhile.
        let _gone = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
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
        let start = || Process::start(Command::new("sleep").arg("1000").stdin(Stdio::null())).unwrap().0;
        let (left, other) = (start(), start());
        std::mem::forget(place.note(left.id()));
        std::fs::write(place.run.join(format!("{NOTE}{}", other.id())), "1").unwrap();
        place.prepare().unwrap();
        left.ended().await;
        assert!(!other.has_ended(), "its number alone does not make it the one that was noted");
        other.kill();
        assert_eq!(std::fs::read_dir(&place.run).unwrap().count(), 0);
        drop(place.note(other.id()));
        assert_eq!(std::fs::read_dir(&place.run).unwrap().count(), 0);
    }
}
