//! A kernel's process and its group.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStderr, ChildStdout, Command};
use std::sync::Arc;

use coffer_core::sync::Mutex;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::sync::watch;

/// The thread that waits for a process needs hardly any stack.
const WAITER_STACK: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Process {
    group: Pid,
    /// Whether the process was reaped: its number may belong to another one then.
    reaped: Mutex<bool>,
    ended: watch::Receiver<bool>,
}

/// What a process prints, if it was given pipes.
#[derive(Debug, Default)]
pub(crate) struct Pipes {
    pub(crate) stdout: Option<ChildStdout>,
    pub(crate) stderr: Option<ChildStderr>,
}

impl Process {
    /// Starts it in a group of its own. A thread waits for its end, because a descriptor of a process cannot be saved
    /// by CRIU 4.0.
    pub(crate) fn start(command: &mut Command) -> io::Result<(Arc<Self>, Pipes)> {
        let mut child = command.process_group(0).spawn()?;
        let pipes = Pipes { stdout: child.stdout.take(), stderr: child.stderr.take() };
        let group = Pid::from_child(&child);
        let (tell, ended) = watch::channel(false);
        let process = Arc::new(Self { group, reaped: Mutex::new(false), ended });
        let waiter = Arc::clone(&process);
        let waiting = std::thread::Builder::new().name("waiter".into()).stack_size(WAITER_STACK);
        waiting.spawn(move || {
            waiter.wait(child);
            tell.send_replace(true);
        })?;
        Ok((process, pipes))
    }

    fn wait(&self, mut child: Child) {
        // Leaves a zombie, whose number nobody else gets: what is left of the group can be killed safely.
        while let Err(rustix::io::Errno::INTR) =
            waitid(WaitId::Pid(self.group), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
        {}
        self.signal(Signal::KILL);
        let mut reaped = self.reaped.lock();
        // It has ended; there is nothing else to learn.
        let _status = child.wait();
        *reaped = true;
    }

    /// Signals the whole group, if it is still there.
    pub(crate) fn signal(&self, signal: Signal) {
        let reaped = self.reaped.lock();
        if !*reaped {
            // Fails only if all of it has ended.
            let _gone = kill_process_group(self.group, signal);
        }
    }

    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    pub(crate) fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    pub(crate) async fn ended(&self) {
        // The sender is dropped only after it has told.
        let mut ended = self.ended.clone();
        let _told = ended.wait_for(|ended| *ended).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_group_ends_with_its_leader() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sleep 1000 & echo $!; exec sleep 0.1"]).stdout(std::process::Stdio::piped());
        let (process, pipes) = Process::start(&mut command).unwrap();
        let mut said = String::new();
        // Ends when nobody in the group holds the pipe any more.
        let read = tokio::task::spawn_blocking(move || {
            io::Read::read_to_string(&mut pipes.stdout.unwrap(), &mut said).unwrap();
        });
        tokio::time::timeout(Duration::from_secs(20), read).await.unwrap().unwrap();
        process.ended().await;
        assert!(process.has_ended());
        process.kill();
    }
}
