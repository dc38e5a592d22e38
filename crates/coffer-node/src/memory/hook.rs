//! The point at which CRIU pauses and asks the node whether to continue.
//!
//! CRIU runs a program at each of its steps. Ours is a short shell script: it reports which process is
//! concerned and waits for an answer, both through pipes of this process that it opens by their names below
//! `/proc`. So it never waits for a node that is gone: then the names are gone too, or the pipe ends, and
//! CRIU rolls back.
//!
//! Those names contain descriptor numbers, and free numbers are reused. A script that comes after its hook
//! was dropped could open a pipe of another sandbox and take its answer, so it compares what it opened with
//! the pipes that it was written for.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::pipe::PipeFlags;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;

/// When it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Everything is written and frozen.
    Dumped,
    /// The namespaces exist, and are empty.
    NamespacesMade,
    /// Everything is restored, and nothing has run yet.
    Restored,
}

impl Moment {
    const fn name(self) -> &'static str {
        match self {
            Self::Dumped => "post-dump",
            Self::NamespacesMade => "setup-namespaces",
            Self::Restored => "post-restore",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Hook {
    script: PathBuf,
    asks: pipe::Receiver,
    /// Opened by the script, by name.
    _asks_other_end: OwnedFd,
    answers: OwnedFd,
    _answers_other_end: OwnedFd,
}

impl Hook {
    /// Writes the script into `directory`; it asks at each of these moments.
    pub(crate) fn new(directory: &Path, moments: &[Moment]) -> io::Result<Self> {
        let (asks, asks_other_end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let (answers_other_end, answers) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let name = |end: &OwnedFd| format!("/proc/{}/fd/{}", std::process::id(), end.as_raw_fd());
        let link = |end: &OwnedFd| rustix::fs::fstat(end).map(|stat| format!("pipe:[{}]", stat.st_ino));
        let moments: Vec<_> = moments.iter().map(|moment| moment.name()).collect();
        let text = format!(
            "#!/bin/sh\ncase \"$CRTOOLS_SCRIPT_ACTION\" in {}) ;; *) exit 0 ;; esac\n\
             exec 3>{} 4<{} || exit 1\n\
             [ \"$(readlink /proc/self/fd/3 /proc/self/fd/4)\" = '{}\n{}' ] || exit 1\n\
             echo \"${{CRTOOLS_INIT_PID:-0}}\" >&3 && read -r go <&4\n",
            moments.join("|"),
            name(&asks_other_end),
            name(&answers_other_end),
            link(&asks_other_end)?,
            link(&answers_other_end)?,
        );
        let script = directory.join("hook");
        fs::write(&script, text)?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o700))?;
        let asks = pipe::Receiver::from_owned_fd(asks)?;
        Ok(Self {
            script,
            asks,
            _asks_other_end: asks_other_end,
            answers,
            _answers_other_end: answers_other_end,
        })
    }

    pub(crate) fn script(&self) -> &Path {
        &self.script
    }

    /// Waits until it asks, and returns the pid of the first process.
    pub(crate) async fn asked(&mut self) -> io::Result<i32> {
        let mut line = Vec::new();
        loop {
            let byte = self.asks.read_u8().await?;
            if byte == b'\n' {
                let number = std::str::from_utf8(&line).ok().and_then(|line| line.trim().parse().ok());
                return number.ok_or_else(|| io::ErrorKind::InvalidData.into());
            }
            line.push(byte);
            if line.len() > 20 {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }

    /// Lets CRIU continue. Dropping the hook makes it roll back.
    pub(crate) fn go_on(&self) -> io::Result<()> {
        rustix::io::write(&self.answers, b"go\n")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn run(script: &Path) -> Command {
        // Not the script itself: one that another test's fork still has open for writing cannot be executed.
        let mut command = Command::new("sh");
        command
            .arg(script)
            .env("CRTOOLS_SCRIPT_ACTION", Moment::Restored.name())
            .env("CRTOOLS_INIT_PID", "4711");
        command
    }

    #[tokio::test]
    async fn a_script_asks_and_waits_for_the_answer() {
        let directory = tempfile::tempdir().unwrap();
        let mut hook = Hook::new(directory.path(), &[Moment::Restored]).unwrap();
        let mut asking = run(hook.script()).spawn().unwrap();
        assert_eq!(hook.asked().await.unwrap(), 4711);
        assert!(asking.try_wait().unwrap().is_none());
        hook.go_on().unwrap();
        assert!(asking.wait().unwrap().success());
        let mut asking = run(hook.script()).spawn().unwrap();
        hook.asked().await.unwrap();
        drop(hook);
        assert!(!asking.wait().unwrap().success(), "nothing was answered");
    }

    #[tokio::test]
    async fn a_late_script_takes_nothing_from_pipes_that_have_its_numbers() {
        let directory = tempfile::tempdir().unwrap();
        let hook = Hook::new(directory.path(), &[Moment::Restored]).unwrap();
        let script = hook.script().to_path_buf();
        drop(hook);
        let pipes: Vec<_> = (0..4).map(|_| rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap()).collect();
        for (_, write) in &pipes {
            rustix::io::write(write, b"go\n").unwrap();
        }
        assert!(!run(&script).status().unwrap().success());
        for (read, _) in &pipes {
            assert_eq!(rustix::io::read(read, &mut [0; 8]).unwrap(), 3);
        }
    }
}
