//! Bash without Jupyter: commands over a socket pair, cells in a file, output from pipes.
//!
//! It is an interactive bash, because only that one goes on after an interrupt. Each call sends two lines: one reads the
//! cell as a script, in the same shell, and one reports its status. The second one is read even if the first was
//! interrupted. Neither the socket nor its number is open in what the cell starts.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::Receiver;
use uuid::Uuid;

use super::ending::{Ended, Stopping, abandoned};
use crate::line::Line;
use crate::place::Place;
use crate::process::Process;
use crate::stream::Sink;

/// How long a script may ignore interrupts.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest line that reports a status.
const STATUS: usize = 64;
/// The name of the error of a script that failed.
const FAILED: &str = "ExitStatus";

#[derive(Debug)]
pub(super) struct Bash {
    socket: BufReader<UnixStream>,
    stdout: Output,
    stderr: Output,
    process: Arc<Process>,
    cell: PathBuf,
    count: u64,
}

impl Bash {
    pub(super) async fn start(mut command: Command, place: &Place) -> io::Result<(Self, Arc<Process>)> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        command.args(["--noprofile", "--norc", "--noediting", "-i"]).stdin(OwnedFd::from(theirs));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).env("PS1", "").env("PS2", "");
        let (process, pipes) = Process::start(&mut command)?;
        // It holds the other end of the pair.
        drop(command);
        let missing = || io::Error::other("bash has no pipes");
        let cell = place.run.join(format!("{}.sh", &Uuid::new_v4().simple().to_string()[..12]));
        let mut bash = Self {
            socket: BufReader::new(UnixStream::from_std(ours)?),
            stdout: Output::new(pipes.stdout.ok_or_else(missing)?.into())?,
            stderr: Output::new(pipes.stderr.ok_or_else(missing)?.into())?,
            process: Arc::clone(&process),
            cell,
            count: 0,
        };
        let opening = b"PS1= PS2= PROMPT_COMMAND=; set +o history +H +m; exec 9>&0; unset PS0 HISTFILE\n";
        bash.socket.write_all(opening).await?;
        if bash.run(":", None).await == Ended::Died {
            return Err(io::Error::other("bash ended while it started"));
        }
        Ok((bash, process))
    }

    pub(super) async fn run(&mut self, code: &str, sink: Option<&Sink>) -> Ended {
        if let Some(sink) = sink {
            self.count += u64::from(!code.trim().is_empty());
            sink.put(&Line::Count(self.count));
        }
        if self.begin(code).await.is_err() {
            self.process.kill();
            return Ended::Died;
        }
        let mut status = String::new();
        let mut stopping = None;
        loop {
            tokio::select! {
                biased;
                read = read_status(&mut self.socket, &mut status) => {
                    if !matches!(read, Ok(true)) {
                        self.process.kill();
                        return Ended::Died;
                    }
                    break;
                }
                text = self.stdout.read() => put(sink, true, text),
                text = self.stderr.read() => put(sink, false, text),
                () = self.process.ended() => return Ended::Died,
                () = abandoned(sink), if stopping.is_none() => {
                    stopping = Some(Stopping::new(PATIENCE));
                    self.process.signal(Signal::INT);
                }
                again = Stopping::next(&mut stopping) => {
                    if !again {
                        self.process.kill();
                        return Ended::Died;
                    }
                    self.process.signal(Signal::INT);
                }
            }
        }
        // What the cell has printed is in the pipes by now.
        put(sink, true, self.stdout.rest());
        put(sink, false, self.stderr.rest());
        let status = status.trim();
        if let Some(sink) = sink.filter(|_| status != "0") {
            sink.error(FAILED, status);
        }
        Ended::Done
    }

    async fn begin(&mut self, code: &str) -> io::Result<()> {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&self.cell)?;
        io::Write::write_all(&mut file, code.as_bytes())?;
        let commands = format!(". '{}' </dev/null 9>&-\nprintf '%s\\n' $? >&9\n", self.cell.display());
        self.socket.write_all(commands.as_bytes()).await
    }
}

impl Drop for Bash {
    fn drop(&mut self) {
        // It may never have been written.
        let _gone = std::fs::remove_file(&self.cell);
    }
}

/// Reads a line; what was read stays in `status` if the wait for more is given up. False at the end.
async fn read_status(socket: &mut BufReader<UnixStream>, status: &mut String) -> io::Result<bool> {
    loop {
        let found = socket.fill_buf().await?;
        if found.is_empty() || status.len() > STATUS {
            return Ok(false);
        }
        let end = found.iter().position(|byte| *byte == b'\n');
        let count = end.map_or(found.len(), |end| end + 1);
        status.push_str(&String::from_utf8_lossy(&found[..count]));
        socket.consume(count);
        if end.is_some() {
            return Ok(true);
        }
    }
}

fn put(sink: Option<&Sink>, out: bool, text: String) {
    if let Some(sink) = sink.filter(|_| !text.is_empty()) {
        sink.put(&if out { Line::Stdout(&text) } else { Line::Stderr(&text) });
    }
}

/// A pipe of text, in which characters may be split.
#[derive(Debug)]
struct Output {
    pipe: Receiver,
    begun: Vec<u8>,
    closed: bool,
}

impl Output {
    fn new(pipe: OwnedFd) -> io::Result<Self> {
        Ok(Self { pipe: Receiver::from_owned_fd(pipe)?, begun: Vec::new(), closed: false })
    }

    /// Waits for text. A pipe that is closed never has any.
    async fn read(&mut self) -> String {
        while !self.closed && self.pipe.readable().await.is_ok() {
            match self.take() {
                Ok(text) => return text,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => self.closed = true,
            }
        }
        std::future::pending().await
    }

    /// What is there now.
    fn rest(&mut self) -> String {
        let mut text = String::new();
        while let Ok(more) = self.take() {
            text.push_str(&more);
        }
        text.push_str(&String::from_utf8_lossy(&std::mem::take(&mut self.begun)));
        text
    }

    fn take(&mut self) -> io::Result<String> {
        let mut buffer = [0; 32 << 10];
        let count = self.pipe.try_read(&mut buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.begun.extend_from_slice(&buffer[..count]);
        Ok(whole_characters(&mut self.begun))
    }
}

/// Takes all but a character at the end that has only begun.
fn whole_characters(bytes: &mut Vec<u8>) -> String {
    let begun = bytes.utf8_chunks().last().map_or(0, |chunk| {
        let invalid = chunk.invalid();
        let could_go_on = std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
        if could_go_on { invalid.len() } else { 0 }
    });
    let rest = bytes.split_off(bytes.len() - begun);
    let text = String::from_utf8_lossy(bytes).into_owned();
    *bytes = rest;
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_kept_whole() {
        let mut bytes = "a€".as_bytes()[..2].to_vec();
        assert_eq!(whole_characters(&mut bytes), "a");
        assert_eq!(bytes, [0xe2]);
        bytes.extend(&"€".as_bytes()[1..]);
        assert_eq!(whole_characters(&mut bytes), "€");
        assert_eq!(whole_characters(&mut b"a\xffb".to_vec()), "a\u{fffd}b");
    }
}
