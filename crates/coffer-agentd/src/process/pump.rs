//! Moves output from a process's descriptors to its ring and the journal.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coffer_wire::agentd::OutputStream;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::task::JoinHandle;

use super::output::Output;
use crate::journal::Journal;

/// The largest pieces of output that clients get.
const PIPE_CHUNK: usize = 32 << 10;
const TERMINAL_CHUNK: usize = 16 << 10;

/// How long an ended process whose child keeps its output open may be silent, and how long it may take in
/// all, before it counts as ended.
const DRAIN_SILENCE: Duration = Duration::from_millis(150);
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// One descriptor that a process writes to.
pub(super) struct Source {
    pub(super) fd: Arc<AsyncFd<OwnedFd>>,
    pub(super) stream: OutputStream,
}

impl Source {
    /// Reads to the end, also after the process has ended: the writer must neither block nor die of a broken
    /// pipe.
    pub(super) async fn pump(self, pid: u32, output: &Output, journal: &Journal) {
        loop {
            let Ok(mut ready) = self.fd.readable().await else {
                return;
            };
            match self.take(&mut ready) {
                Taken::Nothing => continue,
                Taken::Last => return,
                Taken::Data(data) => {
                    if let Some(offset) = output.push(self.stream, data.clone()) {
                        journal.output(pid, self.stream, offset, data);
                    }
                }
            }
            output.room().await;
        }
    }

    /// The buffer is only on the stack of this call, so an idle process costs none.
    fn take(&self, ready: &mut AsyncFdReadyGuard<'_, OwnedFd>) -> Taken {
        let mut buffer = [0; PIPE_CHUNK];
        let length = match self.stream {
            OutputStream::Pty => TERMINAL_CHUNK,
            OutputStream::Stdout | OutputStream::Stderr => PIPE_CHUNK,
        };
        let buffer = &mut buffer[..length];
        match ready.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut *buffer)?)) {
            Err(_would_block) => Taken::Nothing,
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => Taken::Nothing,
            // A terminal whose other side is closed returns EIO.
            Ok(Ok(0) | Err(_)) => Taken::Last,
            Ok(Ok(length)) => Taken::Data(Bytes::copy_from_slice(&buffer[..length])),
        }
    }
}

enum Taken {
    Nothing,
    Data(Bytes),
    Last,
}

/// Waits until all output of an ended process has arrived, within bounds: a child may keep the other end
/// open.
pub(super) async fn drained(output: &Output, pumps: &[JoinHandle<()>]) {
    const STEP: Duration = Duration::from_millis(10);
    let mut silent = Duration::ZERO;
    let mut waited = Duration::ZERO;
    let mut progress = output.progress();
    // The usual case: everything ends as soon as the pumps have run.
    for _ in 0..16 {
        if pumps.iter().all(JoinHandle::is_finished) {
            return;
        }
        tokio::task::yield_now().await;
    }
    while !pumps.iter().all(JoinHandle::is_finished) {
        if silent >= DRAIN_SILENCE || waited >= DRAIN_LIMIT {
            return;
        }
        tokio::time::sleep(STEP).await;
        if output.is_full() {
            // A reader is behind; that time does not count.
            continue;
        }
        waited += STEP;
        let now = output.progress();
        if now == progress {
            silent += STEP;
        } else {
            silent = Duration::ZERO;
            progress = now;
        }
    }
}
