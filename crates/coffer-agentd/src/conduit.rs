//! Sends a file to the server without copying its bytes.
//!
//! hyper sends bytes in memory. So a download gives it a stand-in of the right length, and puts the real
//! bytes, as pages in a pipe, into the connection's [`Conduit`]. The connection's stream ([`Spliced`])
//! recognises the stand-in by its address and lets the kernel move the pages instead. The stand-in cannot be
//! read: code that copied it would fault, so wrong bytes are never sent.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, MutexGuard, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use coffer_core::sync::Mutex;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::pipe::{PipeFlags, SpliceFlags};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;

/// Most bytes moved at a time, which an unprivileged pipe can hold.
const MOST: usize = 1 << 20;

/// The outgoing pieces of one connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Conduit(Arc<Mutex<VecDeque<Piece>>>);

impl Conduit {
    fn pieces(&self) -> MutexGuard<'_, VecDeque<Piece>> {
        self.0.lock()
    }
}

/// Pages in a pipe, and how many bytes of them were not sent yet.
#[derive(Debug)]
struct Piece {
    pipe: Pipe,
    left: usize,
    home: Pipes,
}

#[derive(Debug)]
struct Pipe {
    entrance: OwnedFd,
    exit: OwnedFd,
}

/// Empty pipes of one download, for reuse.
type Pipes = Arc<Mutex<Vec<Pipe>>>;

/// Feeds a file to a conduit, from its current position.
#[derive(Debug)]
pub(crate) struct Feed {
    conduit: Conduit,
    empty: Pipes,
}

impl Feed {
    pub(crate) fn new(conduit: Conduit) -> Self {
        Self { conduit, empty: Pipes::default() }
    }

    /// Puts the next bytes of `file`, at most `wanted`, into the conduit; give hyper the returned stand-in.
    /// An empty result means the end of the file. May wait for a disk.
    pub(crate) fn next(&mut self, file: &File, wanted: u64) -> io::Result<Bytes> {
        let spare = self.empty.lock().pop();
        let pipe = match spare {
            Some(pipe) => pipe,
            None => Pipe::open()?,
        };
        let wanted = usize::try_from(wanted).map_or(MOST, |wanted| wanted.min(MOST));
        let left = rustix::io::retry_on_intr(|| {
            rustix::pipe::splice(file, None, &pipe.entrance, None, wanted, SpliceFlags::MOVE)
        })?;
        let stand_in = Bytes::from_owner(StandIn::of(left)?);
        if left > 0 {
            self.conduit.pieces().push_back(Piece { pipe, left, home: Arc::clone(&self.empty) });
        }
        Ok(stand_in)
    }
}

impl Pipe {
    fn open() -> io::Result<Self> {
        let (exit, entrance) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        // Users with many pipes get smaller ones, which take more turns.
        let _ = rustix::pipe::fcntl_setpipe_size(&entrance, MOST);
        Ok(Self { entrance, exit })
    }
}

/// Memory that cannot be read, as long as the bytes that it stands for.
struct StandIn {
    start: *const u8,
    length: usize,
}

// SAFETY: a constant address, and memory that no other code can change.
unsafe impl Send for StandIn {}

impl StandIn {
    fn of(length: usize) -> io::Result<Self> {
        static PLACE: OnceLock<usize> = OnceLock::new();
        let place = match PLACE.get() {
            Some(place) => *place,
            None => {
                // SAFETY: a new mapping, whose address no other code has. Never unmapped.
                let place = unsafe {
                    rustix::mm::mmap_anonymous(
                        std::ptr::null_mut(),
                        MOST,
                        ProtFlags::empty(),
                        MapFlags::PRIVATE | MapFlags::NORESERVE,
                    )
                }?;
                *PLACE.get_or_init(|| place.expose_provenance())
            }
        };
        Ok(Self { start: std::ptr::with_exposed_provenance(place), length })
    }

    fn holds(address: *const u8) -> bool {
        Self::of(0)
            .is_ok_and(|place| (place.start.addr()..place.start.addr() + MOST).contains(&address.addr()))
    }
}

impl AsRef<[u8]> for StandIn {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: a mapping that stays, of which `length` is a part. A load from it would fault, and
        // nothing loads: vectored writes pass the address on to the kernel, or to `Spliced`.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

/// A connection to the server that recognises stand-ins.
#[derive(Debug)]
pub(crate) struct Spliced {
    stream: UnixStream,
    conduit: Conduit,
}

impl Spliced {
    pub(crate) fn new(stream: UnixStream, conduit: Conduit) -> Self {
        Self { stream, conduit }
    }

    /// Moves some of the first piece into the socket.
    fn poll_move(&self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut pieces = self.conduit.pieces();
        let Some(piece) = pieces.front_mut() else {
            return Poll::Ready(Err(io::Error::other("the pipe holds less data than announced")));
        };
        loop {
            ready!(self.stream.poll_write_ready(cx))?;
            let moved = self.stream.try_io(Interest::WRITABLE, || {
                let (from, to) = (&piece.pipe.exit, self.stream.as_fd());
                let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
                Ok(rustix::pipe::splice(from, None, to, None, piece.left, flags)?)
            });
            match moved {
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Ok(moved) => {
                    piece.left -= moved;
                    if piece.left == 0
                        && let Some(Piece { pipe, home, .. }) = pieces.pop_front()
                    {
                        home.lock().push(pipe);
                    }
                    return Poll::Ready(Ok(moved));
                }
            }
        }
    }
}

impl AsyncRead for Spliced {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Spliced {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        if StandIn::holds(data.as_ptr()) {
            return self.poll_move(cx);
        }
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let ordinary = data.iter().take_while(|slice| !StandIn::holds(slice.as_ptr())).count();
        if ordinary == 0 && !data.is_empty() {
            return self.poll_move(cx);
        }
        Pin::new(&mut self.stream).poll_write_vectored(cx, &data[..ordinary])
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek as _, Write as _};

    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// Mixed ordinary bytes and stand-ins reach a slow reader completely and in order.
    #[tokio::test]
    async fn what_a_stand_in_stands_for_arrives_in_its_place() {
        let mut file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        file.write_all(&content).unwrap();
        file.rewind().unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let reader = tokio::spawn(async move {
            let mut all = Vec::new();
            theirs.read_to_end(&mut all).await.unwrap();
            all
        });
        let conduit = Conduit::default();
        let mut stream = Spliced::new(ours, conduit.clone());
        let mut feed = Feed::new(conduit.clone());
        let mut left = content.len() as u64;
        stream.write_all(b"head").await.unwrap();
        while left > 0 {
            let piece = feed.next(&file, left).unwrap();
            left -= piece.len() as u64;
            let mut vectored = [io::IoSlice::new(b"-"), io::IoSlice::new(&piece)];
            let mut slices = &mut vectored[..];
            while !slices.is_empty() {
                let written = stream.write_vectored(slices).await.unwrap();
                io::IoSlice::advance_slices(&mut slices, written);
            }
        }
        stream.write_all(b"tail").await.unwrap();
        drop(stream);
        assert!(conduit.pieces().is_empty());
        assert_eq!(feed.next(&file, 1).unwrap().len(), 0, "the end of the file");

        let mut expected = b"head".to_vec();
        for piece in content.chunks(MOST) {
            expected.push(b'-');
            expected.extend_from_slice(piece);
        }
        expected.extend_from_slice(b"tail");
        assert!(reader.await.unwrap() == expected);
    }

    #[test]
    fn what_cannot_be_moved_is_refused() {
        let directory = File::open("/").unwrap();
        let refused = Feed::new(Conduit::default()).next(&directory, 1).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    }
}
