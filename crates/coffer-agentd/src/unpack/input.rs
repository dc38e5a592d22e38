//! The bytes of an archive: from the request to the thread that unpacks, and decompressed on the way.

use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};

use bytes::{Buf as _, Bytes};
use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use tokio::sync::mpsc;

/// Pieces of a body that may wait for the thread; the HTTP layer bounds each.
pub(super) const AHEAD: usize = 16;

/// Compressed bytes that are read at once.
const BUFFER: usize = 64 << 10;

/// The window of zstd's `--long`; only `--ultra` and explicit settings make larger ones.
const LARGEST_WINDOW: u64 = 128 << 20;

/// A piece of the body. An empty one is its end: without it, the client has gone.
pub(super) type Piece = io::Result<Bytes>;

/// Reads what the request's task sends.
pub(super) struct Feed {
    pieces: mpsc::Receiver<Piece>,
    current: Bytes,
    ended: bool,
}

impl Feed {
    pub(super) fn new(pieces: mpsc::Receiver<Piece>) -> Self {
        Self { pieces, current: Bytes::new(), ended: false }
    }
}

impl Read for Feed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.current.is_empty() && !self.ended {
            let gone = || io::Error::new(io::ErrorKind::ConnectionAborted, "the client has gone");
            self.current = self.pieces.blocking_recv().ok_or_else(gone)??;
            self.ended = self.current.is_empty();
        }
        let length = self.current.len().min(into.len());
        self.current.copy_to_slice(&mut into[..length]);
        Ok(length)
    }
}

/// Decompresses by the first bytes.
pub(super) fn decompress(mut source: impl Read) -> io::Result<impl Read> {
    let mut magic = Vec::with_capacity(4);
    source.by_ref().take(4).read_to_end(&mut magic)?;
    let unsupported =
        |name| Err(io::Error::other(format!("it is compressed with {name}; supported are gzip and zstd")));
    match magic[..] {
        [0x1f, 0x8b, ..] => Ok(Input::Gzip(MultiGzDecoder::new(rejoined(magic, source)))),
        [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => {
            Ok(Input::Zstd(Box::new(Zstd::new(rejoined(magic, source)))))
        }
        [b'B', b'Z', b'h', _] => unsupported("bzip2"),
        [0xfd, b'7', b'z', b'X'] => unsupported("xz"),
        _ => Ok(Input::Plain(rejoined(magic, source))),
    }
}

type Rejoined<R> = BufReader<Chain<Cursor<Vec<u8>>, R>>;

fn rejoined<R: Read>(magic: Vec<u8>, rest: R) -> Rejoined<R> {
    BufReader::with_capacity(BUFFER, Read::chain(Cursor::new(magic), rest))
}

enum Input<R> {
    Plain(Rejoined<R>),
    Gzip(MultiGzDecoder<Rejoined<R>>),
    Zstd(Box<Zstd<Rejoined<R>>>),
}

impl<R: Read> Read for Input<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(source) => source.read(into),
            Self::Gzip(source) => source.read(into),
            Self::Zstd(source) => source.read(into),
        }
    }
}

/// All frames of a zstd stream. Images have several, and some of them are to be skipped.
struct Zstd<R> {
    source: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> Zstd<R> {
    fn new(source: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(LARGEST_WINDOW);
        Self { source, decoder, in_frame: false }
    }

    /// Goes to the next frame with data; `false` at the end.
    fn next_frame(&mut self) -> io::Result<bool> {
        loop {
            if self.source.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.source) {
                Ok(()) => {
                    self.in_frame = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    let skipped = io::copy(&mut self.source.by_ref().take(length), &mut io::sink())?;
                    if skipped < length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(FrameDecoderError::WindowSizeTooBig { requested, .. }) => {
                    return Err(io::Error::other(format!(
                        "its zstd window of {requested} bytes is larger than {LARGEST_WINDOW}"
                    )));
                }
                Err(error) => return Err(bad_zstd(&error)),
            }
        }
    }

    /// The data of a frame has ended: compares it with the frame's checksum, if there is one.
    fn end_frame(&mut self) -> io::Result<()> {
        self.in_frame = false;
        match self.decoder.get_checksum_from_data() {
            Some(expected) if Some(expected) != self.decoder.get_calculated_checksum() => {
                Err(io::Error::other("the checksum of a zstd frame does not match its data"))
            }
            _ => Ok(()),
        }
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.in_frame && !self.next_frame()? {
                return Ok(0);
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                self.decoder
                    .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(|error| bad_zstd(&error))?;
            }
            match self.decoder.read(into)? {
                0 if !into.is_empty() => self.end_frame()?,
                length => return Ok(length),
            }
        }
    }
}

/// Keeps the reason if reading failed: the end of the data, or of the client.
fn bad_zstd(error: &FrameDecoderError) -> io::Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(read) = error.downcast_ref::<io::Error>() {
            return io::Error::new(read.kind(), read.to_string());
        }
        cause = error.source();
    }
    io::Error::other(format!("its zstd data is corrupt: {error}"))
}
