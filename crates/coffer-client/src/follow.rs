//! Server-sent events, continued where they were after a lost connection.

use std::time::Duration;

use http::{HeaderValue, Method};

use crate::client::Client;
use crate::connection::{Flow, empty};
use crate::error::Error;

const LONGEST_MESSAGE: usize = 8 << 20;
/// The server sends a heartbeat every 15 s.
const SILENT: Duration = Duration::from_secs(45);
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
const SHORTEST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// A message of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// Its position: what `after` takes to continue behind it.
    pub id: Option<String>,
    /// Its kind, such as `sandbox.running` or `output`.
    pub event: String,
    pub data: String,
}

/// A stream of messages without an end. It reconnects with the id of the last message, so nothing is missed or seen twice.
#[derive(Debug)]
pub struct Follow {
    client: Client,
    path: String,
    last: Option<String>,
    open: Option<(Flow, Lines)>,
    wait: Duration,
}

impl Follow {
    pub(crate) fn new(client: Client, path: String) -> Self {
        Self { client, path, last: None, open: None, wait: SHORTEST_WAIT }
    }

    /// The next message. Waits for it, and for the server if it is away. Fails if the server refuses the stream.
    pub async fn next(&mut self) -> Result<Message, Error> {
        loop {
            match self.read().await {
                Ok(message) => {
                    self.wait = SHORTEST_WAIT;
                    if message.id.is_some() {
                        self.last.clone_from(&message.id);
                    }
                    return Ok(message);
                }
                Err(error) if error.is_transient() => {
                    self.open = None;
                    tokio::time::sleep(self.wait).await;
                    self.wait = (self.wait * 2).min(LONGEST_WAIT);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Opens the stream, so that a refusal is known before the first message.
    pub async fn connect(&mut self) -> Result<(), Error> {
        if self.open.is_none() {
            let mut headers = self.client.headers("text/event-stream");
            if let Some(last) = self.last.as_deref().and_then(|last| HeaderValue::from_str(last).ok()) {
                headers.insert("last-event-id", last);
            }
            let answer =
                self.client.send(Method::GET, &self.path, headers, empty(), Some(ANSWER_WITHIN)).await?;
            self.open = Some((answer.into_body(), Lines::default()));
        }
        Ok(())
    }

    async fn read(&mut self) -> Result<Message, Error> {
        self.connect().await?;
        let Some((flow, lines)) = &mut self.open else { return Err(Error::BrokenOff(None)) };
        loop {
            if let Some(message) = lines.message()? {
                return Ok(message);
            }
            let piece =
                tokio::time::timeout(SILENT, flow.next()).await.map_err(|_| Error::Late(SILENT))??;
            lines.held.extend_from_slice(&piece.ok_or(Error::BrokenOff(None))?);
        }
    }
}

/// Puts messages together from bytes that come in any pieces.
#[derive(Debug)]
pub(crate) struct Lines {
    pub(crate) held: Vec<u8>,
    longest: usize,
    /// How much of `held` was searched for the end of a line.
    seen: usize,
    message: Message,
    has_data: bool,
}

impl Default for Lines {
    fn default() -> Self {
        Self::of(LONGEST_MESSAGE)
    }
}

impl Lines {
    /// For messages that are no longer than this.
    pub(crate) fn of(longest: usize) -> Self {
        Self { held: Vec::new(), longest, seen: 0, message: Message::default(), has_data: false }
    }

    pub(crate) fn message(&mut self) -> Result<Option<Message>, Error> {
        while let Some(end) = self.held[self.seen..].iter().position(|&byte| byte == b'\n') {
            let end = self.seen + end;
            let line = String::from_utf8_lossy(&self.held[..end]).trim_end_matches('\r').to_string();
            self.held.drain(..=end);
            self.seen = 0;
            if line.is_empty() {
                let message = std::mem::take(&mut self.message);
                if std::mem::take(&mut self.has_data) {
                    return Ok(Some(message));
                }
                continue;
            }
            self.field(&line);
        }
        self.seen = self.held.len();
        if self.held.len() + self.message.data.len() > self.longest {
            return Err(Error::Unreadable("a message of the stream is too long".into()));
        }
        Ok(None)
    }

    fn field(&mut self, line: &str) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "id" => self.message.id = Some(value.to_string()),
            "event" => self.message.event = value.to_string(),
            "data" => {
                if self.has_data {
                    self.message.data.push('\n');
                }
                self.message.data.push_str(value);
                self.has_data = true;
            }
            // A comment (heartbeat), or what a later server may add.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_whole_out_of_any_pieces() {
        let text = b": alive\n\nid: 7\nevent: output\ndata: a\ndata: b\n\nevent: none\n\nid:8\ndata:\xc3\xbc\r\n\r\n";
        for size in 1..text.len() {
            let (mut lines, mut found) = (Lines::default(), Vec::new());
            for piece in text.chunks(size) {
                lines.held.extend_from_slice(piece);
                while let Some(message) = lines.message().unwrap() {
                    found.push((message.id.unwrap(), message.event, message.data));
                }
            }
            let expected =
                [("7".into(), "output".into(), "a\nb".into()), ("8".into(), String::new(), "ü".into())];
            assert_eq!(found, expected, "{size}");
        }
    }

    #[test]
    fn a_message_without_an_end_is_refused() {
        let mut lines = Lines { held: vec![b'x'; LONGEST_MESSAGE + 1], ..Lines::default() };
        assert!(lines.message().is_err());
    }
}
