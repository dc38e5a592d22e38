//! One channel: bytes both ways, each within the window that the other side grants (RFC 4254, section 5).

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use coffer_core::sync::Mutex;
use tokio::sync::Notify;

use crate::error::Error;
use crate::message::{
    CHANNEL_CLOSE, CHANNEL_DATA, CHANNEL_EOF, CHANNEL_EXTENDED_DATA, CHANNEL_REQUEST, CHANNEL_WINDOW_ADJUST,
    STDERR,
};
use crate::packet::Writer;
use crate::text::Append as _;

/// What the client may send before we have passed it on.
pub(crate) const WINDOW: u32 = 2 << 20;
/// The largest piece that it may send at once.
pub(crate) const PIECE: u32 = 64 << 10;
/// Signals that wait to be sent on; more are dropped.
const MOST_SIGNALS: usize = 16;

/// The one writer of a connection. Whoever exchanges keys holds it until that is done.
pub(crate) type Line = Arc<tokio::sync::Mutex<Writer>>;

/// Where output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// What the client does besides sending bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Resized {
        columns: u32,
        rows: u32,
    },
    /// By its name, without `SIG`.
    Signal(String),
    /// It closed the channel, or is gone. The last one.
    Closed,
}

/// How what was asked for ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Exited(u32),
    /// By a signal, named without `SIG`, with a message for people.
    Signalled(String, String),
    /// A connection: there is nothing to say.
    Silent,
}

/// The client closed the channel, or is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the SSH client closed the channel")]
pub struct Gone;

/// One channel, as a [`Host`](crate::Host) sees it. One task at a time waits for input, and one for events.
#[derive(Debug, Clone)]
pub struct Channel(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    /// The client's number of it.
    theirs: u32,
    /// The largest piece that the client takes.
    piece: usize,
    line: Line,
    state: Mutex<State>,
    input: Notify,
    event: Notify,
    window: Notify,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("theirs", &self.theirs).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    pieces: VecDeque<Bytes>,
    /// What the client may still send, and what we owe it: it was passed on.
    granted: u32,
    owed: u32,
    /// What we may still send.
    window: u32,
    input_ended: bool,
    closed: bool,
    size: Option<(u32, u32)>,
    signals: VecDeque<String>,
}

impl Shared {
    pub(crate) fn new(theirs: u32, window: u32, piece: u32, line: Line) -> Arc<Self> {
        let piece = usize::try_from(piece.clamp(1, PIECE)).unwrap_or(1);
        Arc::new(Self {
            theirs,
            piece,
            line,
            state: Mutex::new(State { granted: WINDOW, window, ..State::default() }),
            input: Notify::new(),
            event: Notify::new(),
            window: Notify::new(),
        })
    }

    /// A message about this channel.
    pub(crate) fn message(&self, number: u8) -> Vec<u8> {
        let mut message = vec![number];
        message.number(self.theirs);
        message
    }

    pub(crate) async fn send(&self, message: &[u8]) -> Result<(), Error> {
        self.line.lock().await.send(message).await
    }

    pub(crate) fn received(&self, piece: Bytes) -> Result<(), Error> {
        let mut state = self.state.lock();
        let length = u32::try_from(piece.len()).unwrap_or(u32::MAX);
        state.granted =
            state.granted.checked_sub(length).ok_or(Error::Protocol("more than the window allows"))?;
        if !piece.is_empty() && !state.input_ended {
            state.pieces.push_back(piece);
        }
        drop(state);
        self.input.notify_one();
        Ok(())
    }

    pub(crate) fn input_ended(&self) {
        self.state.lock().input_ended = true;
        self.input.notify_one();
    }

    pub(crate) fn closed(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.input_ended = true;
        drop(state);
        self.input.notify_one();
        self.event.notify_one();
        self.window.notify_one();
    }

    pub(crate) fn opened_wider(&self, by: u32) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.window = state.window.checked_add(by).ok_or(Error::Protocol("a window that is too wide"))?;
        drop(state);
        self.window.notify_one();
        Ok(())
    }

    pub(crate) fn resized(&self, columns: u32, rows: u32) {
        self.state.lock().size = Some((columns, rows));
        self.event.notify_one();
    }

    pub(crate) fn signalled(&self, name: &str) {
        let mut state = self.state.lock();
        if state.signals.len() < MOST_SIGNALS {
            state.signals.push_back(name.to_string());
        }
        drop(state);
        self.event.notify_one();
    }

    /// Says that nothing more comes.
    pub(crate) async fn close(&self) {
        let _gone = self.send(&self.message(CHANNEL_CLOSE)).await;
    }

    /// How much of `wanted` may be sent now; waits for some.
    async fn room(&self, wanted: usize) -> Result<usize, Gone> {
        loop {
            let waiting = self.window.notified();
            {
                let mut state = self.state.lock();
                if state.closed {
                    return Err(Gone);
                }
                let free = usize::try_from(state.window).unwrap_or(usize::MAX);
                let taken = wanted.min(free).min(self.piece);
                if taken > 0 {
                    state.window -= u32::try_from(taken).unwrap_or(0);
                    return Ok(taken);
                }
            }
            waiting.await;
        }
    }
}

impl Channel {
    /// The next bytes from the client; `None` when it has ended its side. A cancelled call may keep the client's window shut:
    /// cancel it only where the channel ends.
    pub async fn input(&self) -> Option<Bytes> {
        let shared = &self.0;
        let owed = {
            let mut state = shared.state.lock();
            let due = state.owed >= WINDOW / 2;
            let owed = if due { std::mem::take(&mut state.owed) } else { 0 };
            state.granted += owed;
            owed
        };
        if owed > 0 {
            let mut adjust = shared.message(CHANNEL_WINDOW_ADJUST);
            adjust.number(owed);
            // A client that is gone is noticed by the reader.
            let _gone = shared.send(&adjust).await;
        }
        loop {
            let waiting = shared.input.notified();
            {
                let mut state = shared.state.lock();
                if let Some(piece) = state.pieces.pop_front() {
                    state.owed += u32::try_from(piece.len()).unwrap_or(0);
                    return Some(piece);
                }
                if state.input_ended {
                    return None;
                }
            }
            waiting.await;
        }
    }

    /// What else the client does; after [`Event::Closed`] only that. Cancel-safe.
    pub async fn event(&self) -> Event {
        loop {
            let waiting = self.0.event.notified();
            {
                let mut state = self.0.state.lock();
                if let Some(signal) = state.signals.pop_front() {
                    return Event::Signal(signal);
                }
                if state.closed {
                    return Event::Closed;
                }
                if let Some((columns, rows)) = state.size.take() {
                    return Event::Resized { columns, rows };
                }
            }
            waiting.await;
        }
    }

    /// Sends bytes to the client; waits while it does not take them.
    pub async fn output(&self, stream: Stream, mut bytes: Bytes) -> Result<(), Gone> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(self.0.room(bytes.len()).await?);
            let mut head = match stream {
                Stream::Stdout => self.0.message(CHANNEL_DATA),
                Stream::Stderr => {
                    let mut head = self.0.message(CHANNEL_EXTENDED_DATA);
                    head.number(STDERR);
                    head
                }
            };
            head.number(u32::try_from(piece.len()).unwrap_or(u32::MAX));
            self.0.line.lock().await.send_parts(&head, &piece).await.map_err(|_| Gone)?;
        }
        Ok(())
    }

    /// Says that no more output comes; the client may still send.
    pub async fn end_output(&self) {
        let _gone = self.0.send(&self.0.message(CHANNEL_EOF)).await;
    }

    /// Says how it ended. The channel closes when its future returns.
    pub async fn finish(&self, end: &End) {
        self.end_output().await;
        let mut message = self.0.message(CHANNEL_REQUEST);
        match end {
            End::Silent => return,
            End::Exited(status) => {
                message.string(b"exit-status");
                message.push(0);
                message.number(*status);
            }
            End::Signalled(name, words) => {
                message.string(b"exit-signal");
                message.push(0);
                message.string(name.as_bytes());
                message.push(0);
                message.string(words.as_bytes());
                message.string(b"");
            }
        }
        let _gone = self.0.send(&message).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Reader;

    fn pair(window: u32) -> (Channel, Reader) {
        let (near, far) = tokio::io::duplex(8 << 20);
        let line = Arc::new(tokio::sync::Mutex::new(Writer::new(Box::new(near))));
        (Channel(Shared::new(5, window, 1000, line)), Reader::new(Box::new(far)))
    }

    #[tokio::test]
    async fn output_keeps_within_the_clients_window_and_pieces() {
        let (channel, mut reader) = pair(1500);
        let sender = channel.clone();
        let sent = tokio::spawn(async move { sender.output(Stream::Stdout, vec![1; 2500].into()).await });
        let mut lengths = Vec::new();
        for _ in 0..2 {
            lengths.push(reader.next().await.unwrap().len() - 9);
        }
        assert_eq!(lengths, [1000, 500]);
        assert!(!sent.is_finished());
        channel.0.opened_wider(5000).unwrap();
        assert_eq!(reader.next().await.unwrap().len() - 9, 1000);
        assert_eq!(sent.await.unwrap(), Ok(()));
        channel.0.closed();
        assert_eq!(channel.output(Stream::Stderr, vec![1].into()).await, Err(Gone));
    }

    #[tokio::test]
    async fn the_client_gets_its_window_back_when_bytes_were_taken_and_no_sooner() {
        let (channel, mut reader) = pair(0);
        let half = vec![0_u8; WINDOW as usize / 2];
        channel.0.received(half.clone().into()).unwrap();
        channel.0.received(half.into()).unwrap();
        assert!(channel.0.received(vec![0].into()).is_err());
        assert!(channel.input().await.is_some());
        assert!(channel.input().await.is_some());
        let adjust = reader.next().await.unwrap();
        assert_eq!((adjust[0], &adjust[5..]), (CHANNEL_WINDOW_ADJUST, &(WINDOW / 2).to_be_bytes()[..]));
        channel.0.received(vec![7].into()).unwrap();
        channel.0.input_ended();
        assert_eq!(channel.input().await.unwrap(), vec![7]);
        assert_eq!(channel.input().await, None);
    }

    #[tokio::test]
    async fn events_come_in_order_of_weight_and_end() {
        let (channel, _reader) = pair(0);
        channel.0.resized(80, 24);
        channel.0.resized(100, 30);
        channel.0.signalled("TERM");
        assert_eq!(channel.event().await, Event::Signal("TERM".into()));
        assert_eq!(channel.event().await, Event::Resized { columns: 100, rows: 30 });
        channel.0.closed();
        assert_eq!(channel.event().await, Event::Closed);
        assert_eq!(channel.event().await, Event::Closed);
        assert_eq!(channel.input().await, None);
    }
}
