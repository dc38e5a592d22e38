//! Inflates compressed bodies, in small pieces.

use std::collections::VecDeque;
use std::io::Write as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use flate2::write::GzDecoder;
use futures_util::Stream;
use futures_util::stream::BoxStream;

/// Compressed bytes taken at a time: they grow at most about a thousandfold.
const BITE: usize = 1024;

/// The inflated body, up to a bound.
pub(crate) struct Inflate {
    body: BoxStream<'static, Result<Bytes, String>>,
    decoder: Option<GzDecoder<Vec<u8>>>,
    raw: Bytes,
    ready: VecDeque<Bytes>,
    left: u64,
    is_over: bool,
    is_too_long: bool,
}

impl Inflate {
    pub(crate) fn new(body: BoxStream<'static, Result<Bytes, String>>, gzip: bool, most: u64) -> Self {
        Self {
            body,
            decoder: gzip.then(|| GzDecoder::new(Vec::new())),
            raw: Bytes::new(),
            ready: VecDeque::new(),
            left: most,
            is_over: false,
            is_too_long: false,
        }
    }

    /// Puts back a piece, to be read first.
    pub(crate) fn unread(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.left = self.left.saturating_add(piece.len() as u64);
            self.ready.push_front(piece);
        }
    }

    /// Whether the body exceeded its bound.
    pub(crate) const fn is_too_long(&self) -> bool {
        self.is_too_long
    }

    /// The rest of the client's data, not inflated.
    pub(crate) fn into_rest(self) -> BoxStream<'static, Result<Bytes, String>> {
        self.body
    }

    fn counted(&mut self, piece: Bytes) -> Poll<Option<Result<Bytes, String>>> {
        let length = piece.len() as u64;
        if length > self.left {
            (self.is_over, self.is_too_long) = (true, true);
            return Poll::Ready(Some(Err("it is larger than the limit".into())));
        }
        self.left -= length;
        Poll::Ready(Some(Ok(piece)))
    }

    /// Inflates a small part of the received bytes.
    fn bite(&mut self) -> Result<Option<Bytes>, String> {
        let Some(decoder) = &mut self.decoder else {
            let raw = std::mem::take(&mut self.raw);
            return Ok((!raw.is_empty()).then_some(raw));
        };
        while !self.raw.is_empty() {
            let bite = self.raw.len().min(BITE);
            let taken = decoder.write(&self.raw[..bite]).map_err(|_| "it is not gzip".to_string())?;
            if taken == 0 {
                // Ignore data after the end of the stream.
                self.raw.clear();
                break;
            }
            self.raw.advance(taken);
            let out = std::mem::take(decoder.get_mut());
            if !out.is_empty() {
                return Ok(Some(out.into()));
            }
        }
        Ok(None)
    }

    fn last(&mut self) -> Result<Option<Bytes>, String> {
        let Some(mut decoder) = self.decoder.take() else { return Ok(None) };
        decoder.try_finish().map_err(|_| "it ended too early".to_string())?;
        let out = std::mem::take(decoder.get_mut());
        Ok((!out.is_empty()).then(|| out.into()))
    }
}

impl Stream for Inflate {
    type Item = Result<Bytes, String>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return self.counted(piece);
            }
            if self.is_over {
                return Poll::Ready(None);
            }
            match self.bite() {
                Ok(Some(piece)) => return self.counted(piece),
                Ok(None) => {}
                Err(why) => {
                    self.is_over = true;
                    return Poll::Ready(Some(Err(why)));
                }
            }
            match ready!(self.body.as_mut().poll_next(cx)) {
                Some(Ok(raw)) => self.raw = raw,
                Some(Err(why)) => {
                    self.is_over = true;
                    return Poll::Ready(Some(Err(why)));
                }
                None => {
                    self.is_over = true;
                    match self.last() {
                        Ok(Some(piece)) => return self.counted(piece),
                        Ok(None) => return Poll::Ready(None),
                        Err(why) => return Poll::Ready(Some(Err(why))),
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use futures_util::StreamExt;

    fn body(bytes: &[u8], piece: usize) -> BoxStream<'static, Result<Bytes, String>> {
        let pieces: Vec<_> = bytes.chunks(piece).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        futures_util::stream::iter(pieces).boxed()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    async fn all(mut inflate: Inflate) -> Result<(Vec<u8>, usize), String> {
        let (mut out, mut largest) = (Vec::new(), 0);
        while let Some(piece) = inflate.next().await {
            let piece = piece?;
            largest = largest.max(piece.len());
            out.extend_from_slice(&piece);
        }
        Ok((out, largest))
    }

    #[tokio::test]
    async fn what_was_compressed_comes_out_whole() {
        let text: Vec<u8> = (0..200_000u32).flat_map(|n| n.to_le_bytes()).collect();
        for piece in [1, 7, 4096, 1 << 20] {
            let (out, _) = all(Inflate::new(body(&gzip(&text), piece), true, 1 << 30)).await.unwrap();
            assert!(out == text, "pieces of {piece}");
        }
        let (out, _) = all(Inflate::new(body(&text, 4096), false, 1 << 30)).await.unwrap();
        assert!(out == text);
    }

    #[tokio::test]
    async fn a_bomb_is_cut_in_small_pieces() {
        let bomb = gzip(&vec![0; 64 << 20]);
        let mut inflate = Inflate::new(body(&bomb, 1 << 20), true, 8 << 20);
        let (mut read, mut refused) = (0, false);
        while let Some(piece) = inflate.next().await {
            match piece {
                Ok(piece) => {
                    assert!(piece.len() <= 4 << 20, "a piece of {}", piece.len());
                    read += piece.len();
                }
                Err(_) => refused = true,
            }
        }
        assert!(refused && read <= 8 << 20, "{read}");
    }

    #[tokio::test]
    async fn what_is_cut_off_or_no_gzip_is_an_error() {
        let whole = gzip(&[7; 5000]);
        assert!(all(Inflate::new(body(&whole[..whole.len() - 9], 10), true, 1 << 20)).await.is_err());
        assert!(all(Inflate::new(body(b"not gzip at all", 10), true, 1 << 20)).await.is_err());
    }
}
