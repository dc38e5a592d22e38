//! Java without Jupyter: a program of ours that has the JDK's JShell (`CofferJava.java` in the catalogue), and frames over a
//! socket pair: a letter, a length, a line feed, and so many bytes.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

use super::ending::{Ended, Stopping, abandoned};
use crate::line::{Bundle, Line};
use crate::process::Process;
use crate::stream::Sink;
use crate::task;

/// How long code may go on after it was told to stop.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest head of a frame, and the most bytes of one.
const HEAD: u64 = 32;
const LARGEST: usize = 16 << 20;
/// Frames that wait to be read. The program waits while it is full.
const WAITING: usize = 64;

#[derive(Debug)]
pub(super) struct Java {
    orders: OwnedWriteHalf,
    frames: mpsc::Receiver<Frame>,
    process: Arc<Process>,
    count: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct Frame {
    kind: u8,
    text: String,
}

impl Java {
    pub(super) async fn start(mut command: Command) -> io::Result<(Self, Arc<Process>)> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        command.stdin(OwnedFd::from(theirs));
        let (process, _) = Process::start(&mut command)?;
        // It holds the other end of the pair.
        drop(command);
        let (read, orders) = UnixStream::from_std(ours)?.into_split();
        let (tell, frames) = mpsc::channel(WAITING);
        task::spawn(read_all(BufReader::new(read), tell));
        let mut java = Self { orders, frames, process: Arc::clone(&process), count: 0 };
        if java.run_silent("").await == Ended::Died {
            return Err(io::Error::other("Java ended while it started"));
        }
        Ok((java, process))
    }

    pub(super) async fn run(&mut self, code: &str, sink: &Sink) -> Ended {
        self.count += u64::from(!code.trim().is_empty());
        sink.put(&Line::Count(self.count));
        self.order('c', code, Some(sink)).await
    }

    /// Sets and removes properties, in their own notation.
    pub(super) async fn run_silent(&mut self, changes: &str) -> Ended {
        self.order('p', changes, None).await
    }

    async fn order(&mut self, kind: char, text: &str, sink: Option<&Sink>) -> Ended {
        let mut stopping = None;
        if self.send(kind, text).await.is_err() {
            return self.end();
        }
        loop {
            tokio::select! {
                biased;
                frame = self.frames.recv() => match frame {
                    None => return self.end(),
                    Some(Frame { kind: b'd', .. }) => return Ended::Done,
                    Some(frame) => put(sink, &frame),
                },
                () = self.process.ended() => return Ended::Died,
                () = abandoned(sink), if stopping.is_none() => {
                    stopping = Some(Stopping::new(PATIENCE));
                    // One that does not hear it is killed soon.
                    let _sent = self.send('s', "").await;
                }
                again = Stopping::next(&mut stopping) => {
                    if !again {
                        return self.end();
                    }
                    let _sent = self.send('s', "").await;
                }
            }
        }
    }

    async fn send(&mut self, kind: char, text: &str) -> io::Result<()> {
        let frame = format!("{kind} {}\n{text}", text.len());
        self.orders.write_all(frame.as_bytes()).await
    }

    fn end(&self) -> Ended {
        self.process.kill();
        Ended::Died
    }
}

fn put(sink: Option<&Sink>, frame: &Frame) {
    let Some(sink) = sink else { return };
    match frame.kind {
        b'o' => sink.put(&Line::Stdout(&frame.text)),
        b'e' => sink.put(&Line::Stderr(&frame.text)),
        b'r' => {
            let text = serde_json::value::to_raw_value(&frame.text);
            let data: Bundle = text.into_iter().map(|text| ("text/plain".to_string(), text)).collect();
            sink.put(&Line::Result { data: &data, main: true });
        }
        b'x' => {
            let mut parts = frame.text.splitn(3, '\0');
            let mut part = || parts.next().unwrap_or_default();
            let (name, value, traceback) = (part(), part(), part());
            sink.put(&Line::Error { name, value, traceback });
        }
        _ => {}
    }
}

/// Ends with the first frame that is none, and with the socket.
async fn read_all(mut socket: BufReader<OwnedReadHalf>, tell: mpsc::Sender<Frame>) {
    while let Ok(Some(frame)) = read(&mut socket).await {
        if tell.send(frame).await.is_err() {
            return;
        }
    }
}

async fn read(socket: &mut BufReader<OwnedReadHalf>) -> io::Result<Option<Frame>> {
    let mut head = Vec::new();
    let mut limited = (&mut *socket).take(HEAD);
    limited.read_until(b'\n', &mut head).await?;
    let Some((kind, count)) = parse(&head) else { return Ok(None) };
    let mut bytes = vec![0; count];
    socket.read_exact(&mut bytes).await?;
    Ok(Some(Frame { kind, text: String::from_utf8_lossy(&bytes).into_owned() }))
}

fn parse(head: &[u8]) -> Option<(u8, usize)> {
    let (kind, rest) = head.split_first()?;
    let count = std::str::from_utf8(rest).ok()?.strip_prefix(' ')?.strip_suffix('\n')?;
    let count: usize = count.parse().ok()?;
    (count <= LARGEST).then_some((*kind, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_a_letter_and_a_length() {
        assert_eq!(parse(b"o 12\n"), Some((b'o', 12)));
        for odd in [&b""[..], b"o", b"o 1", b"o 1\n2", b"o -1\n", b"o 99999999999\n", b"o x\n", b"o12\n"] {
            assert_eq!(parse(odd), None, "{odd:?}");
        }
    }
}
