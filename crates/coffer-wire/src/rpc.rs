//! The client side of our RPCs: one connection with many numbered requests in progress.
//!
//! Server to node ([`crate::node`]) and node to egress ([`crate::egress`]) have the same frames and the same
//! rules: a request carries a number, its reply repeats it, replies come in any order. A [`Connection`]
//! counts requests, remembers what each reply is for, and reads without losing half a frame. The caller
//! handles a broken connection: the server asks the next node again, the node sends the next egress its
//! state.

use std::collections::HashMap;
use std::io;

use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::node::read_frame;

/// Most frames that were read but not taken; then the other side waits at its socket.
const READ_AHEAD: usize = 64;

/// A connection whose other side sends frames of `In`. `Pending` says what the reply to a request is for.
#[derive(Debug)]
pub struct Connection<In, Pending> {
    out: OwnedWriteHalf,
    incoming: mpsc::Receiver<io::Result<In>>,
    pending: HashMap<u64, Pending>,
    last: u64,
    reader: JoinHandle<()>,
}

impl<In: DeserializeOwned + Send + 'static, Pending> Connection<In, Pending> {
    /// Takes over a connection and starts reading.
    pub fn new(stream: UnixStream) -> Self {
        let (mut from_peer, out) = stream.into_split();
        let (frames, incoming) = mpsc::channel(READ_AHEAD);
        // A task of its own, because a frame that is read half-way cannot be put back.
        #[expect(clippy::disallowed_methods, reason = "aborted when the connection is dropped")]
        let reader = tokio::spawn(async move {
            loop {
                let frame = match read_frame(&mut from_peer).await {
                    Ok(Some(frame)) => Ok(frame),
                    Ok(None) => return,
                    Err(error) => Err(error),
                };
                let is_last = frame.is_err();
                if frames.send(frame).await.is_err() || is_last {
                    return;
                }
            }
        });
        Self { out, incoming, pending: HashMap::new(), last: 0, reader }
    }

    /// The next frame of the other side. Cancel-safe.
    pub async fn receive(&mut self) -> io::Result<In> {
        match self.incoming.recv().await {
            Some(frame) => frame,
            None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection")),
        }
    }
}

impl<In, Pending> Connection<In, Pending> {
    /// The number of a new request. Call this before writing the request, so that a failed write finds what
    /// its reply was for.
    pub fn begin(&mut self, pending: Pending) -> u64 {
        let id = self.number();
        self.pending.insert(id, pending);
        id
    }

    /// The number of a new request whose reply the caller waits for itself.
    pub const fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// What the reply with this number is for; `None` for an unknown or already answered number.
    pub fn finish(&mut self, id: u64) -> Option<Pending> {
        self.pending.remove(&id)
    }

    /// Requests without a reply.
    pub fn under_way(&self) -> usize {
        self.pending.len()
    }

    /// Takes the unanswered requests, once the connection has broken.
    pub fn abandon(&mut self) -> impl Iterator<Item = Pending> + use<In, Pending> {
        std::mem::take(&mut self.pending).into_values()
    }

    /// The write half for requests.
    pub const fn writer(&mut self) -> &mut OwnedWriteHalf {
        &mut self.out
    }
}

impl<In, Pending> Drop for Connection<In, Pending> {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::write_frame;

    #[tokio::test]
    async fn replies_in_any_order_find_what_they_are_for() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut connection = Connection::<(u64, String), &str>::new(ours);
        let (first, second) = (connection.begin("first"), connection.begin("second"));
        for id in [second, first, second, 99] {
            write_frame(&mut theirs, &(id, "reply")).await.unwrap();
        }
        let mut found = Vec::new();
        for _ in 0..4 {
            let (id, _) = connection.receive().await.unwrap();
            found.push(connection.finish(id));
        }
        // Neither a repeated reply nor an unexpected one is taken for another's.
        assert_eq!(found, [Some("second"), Some("first"), None, None]);
        assert_eq!(connection.under_way(), 0);
    }

    #[tokio::test]
    async fn a_wait_that_is_dropped_loses_no_frame() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut connection = Connection::<String, ()>::new(ours);
        // Half a frame, then the rest.
        let mut bytes = Vec::new();
        write_frame(&mut bytes, &"whole").await.unwrap();
        let (head, tail) = bytes.split_at(6);
        tokio::io::AsyncWriteExt::write_all(&mut theirs, head).await.unwrap();
        let waited = tokio::time::timeout(std::time::Duration::from_millis(50), connection.receive()).await;
        assert!(waited.is_err());
        tokio::io::AsyncWriteExt::write_all(&mut theirs, tail).await.unwrap();
        assert_eq!(connection.receive().await.unwrap(), "whole");
    }

    #[tokio::test]
    async fn a_broken_connection_tells_what_was_under_way() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut connection = Connection::<String, u32>::new(ours);
        connection.begin(7);
        drop(theirs);
        assert_eq!(connection.receive().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(connection.abandon().collect::<Vec<_>>(), [7]);
    }

    #[tokio::test]
    async fn rubbish_ends_the_conversation() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut connection = Connection::<String, ()>::new(ours);
        tokio::io::AsyncWriteExt::write_all(&mut theirs, &[0, 0, 0, 1, b'?']).await.unwrap();
        assert_eq!(connection.receive().await.unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(connection.receive().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
