//! A running git process, as its client sees it.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, sendmsg};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::{Receiver, Sender};

use super::confine::has_landlock;
use super::error::GitError;
use super::runner::{GitRunner, Order, Reply};

/// How git processes are started.
#[derive(Debug, Clone)]
pub struct GitProcesses {
    /// The socket of a [`GitRunner`]; without one, threads of this process start git.
    pub runner: Option<PathBuf>,
    /// Whether to use Landlock; only for threads of this process.
    pub landlock: bool,
}

impl Default for GitProcesses {
    fn default() -> Self {
        Self { runner: None, landlock: has_landlock() }
    }
}

/// Git's streams: input, output, errors.
type Pipes = (Sender, Receiver, Receiver);

/// The service that starts processes.
#[derive(Debug)]
pub(super) enum Starter {
    Here(GitRunner),
    Apart(PathBuf),
}

impl Starter {
    pub(super) fn new(processes: GitProcesses) -> std::io::Result<Self> {
        Ok(match processes.runner {
            Some(socket) => Self::Apart(socket),
            None => Self::Here(GitRunner::new(processes.landlock)?),
        })
    }

    pub(super) async fn start(&self, order: &Order) -> Result<Running, GitError> {
        let failed = |error: std::io::Error| GitError::Failed(format!("could not start git: {error}"));
        let mut stream = self.connect().await.map_err(failed)?;
        let (pipes, theirs) = pipes().map_err(failed)?;
        let order = serde_json::to_vec(order).map_err(|error| failed(error.into()))?;
        send(&mut stream, &order, &theirs).await.map_err(failed)?;
        // Wait until git is limited before sending input.
        let mut reply = vec![0];
        stream.read_exact(&mut reply).await.map_err(failed)?;
        Ok(Running { stream, pipes: Some(pipes), reply })
    }

    async fn connect(&self) -> std::io::Result<UnixStream> {
        match self {
            Self::Apart(socket) => UnixStream::connect(socket).await,
            Self::Here(runner) => {
                let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
                runner.attend(theirs);
                ours.set_nonblocking(true)?;
                UnixStream::from_std(ours)
            }
        }
    }
}

/// Our ends, and git's.
fn pipes() -> std::io::Result<(Pipes, [OwnedFd; 3])> {
    let (stdin, to_git) = std::io::pipe()?;
    let (from_git, stdout) = std::io::pipe()?;
    let (complaints, stderr) = std::io::pipe()?;
    let ours = (
        Sender::from_owned_fd(to_git.into())?,
        Receiver::from_owned_fd(from_git.into())?,
        Receiver::from_owned_fd(complaints.into())?,
    );
    Ok((ours, [stdin.into(), stdout.into(), stderr.into()]))
}

async fn send(stream: &mut UnixStream, order: &[u8], streams: &[OwnedFd; 3]) -> std::io::Result<()> {
    let length = u32::try_from(order.len()).map_err(|_| std::io::ErrorKind::InvalidInput)?.to_be_bytes();
    let descriptors = streams.each_ref().map(|stream| stream.as_fd());
    let with_streams = || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        // There is room for them.
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        Ok(sendmsg(&*stream, &[IoSlice::new(&length)], &mut ancillary, SendFlags::NOSIGNAL)?)
    };
    stream.async_io(Interest::WRITABLE, with_streams).await?;
    stream.write_all(order).await
}

/// A running git process; dropping this ends it with its children.
#[derive(Debug)]
pub(crate) struct Running {
    stream: UnixStream,
    pipes: Option<Pipes>,
    /// The runner's reply so far.
    reply: Vec<u8>,
}

impl Running {
    /// Its streams, once.
    pub(crate) fn pipes(&mut self) -> Pipes {
        self.pipes.take().expect("the streams of a process are taken once")
    }

    /// Waits for its end; `None` if a signal ended it.
    pub(crate) async fn wait(&mut self) -> Result<Option<i32>, GitError> {
        let heard = self.stream.read_to_end(&mut self.reply).await;
        heard.map_err(|error| GitError::Failed(error.to_string()))?;
        match serde_json::from_slice(&self.reply) {
            Ok(Reply::Ended(code)) => Ok(code),
            Ok(Reply::Missing) => Err(GitError::Missing),
            Ok(Reply::Failed(why)) => Err(GitError::Failed(why)),
            Err(_) => Err(GitError::Failed("the process that starts git ended".into())),
        }
    }

    /// Ends it now.
    pub(crate) fn end(&self) {
        let _ = rustix::net::shutdown(&self.stream, Shutdown::Write);
    }
}
