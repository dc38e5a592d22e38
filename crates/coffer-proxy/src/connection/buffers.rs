//! Bounds what unauthenticated clients can make the server hold.
//!
//! A connection that has sent half a head holds what it sent until the timeout, and one that once sent much
//! keeps a large buffer. Both are bounded over all connections together.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Bytes of unfinished heads, over all connections.
const MOST_UNFINISHED: usize = if cfg!(test) { 256 << 10 } else { 16 << 20 };

/// An unfinished head may always hold this much, however many others there are. Ordinary heads are smaller
/// and arrive in one piece.
const FAIR: usize = 8 << 10;

/// A connection that reads this much at once has an equally large buffer, and keeps it.
const LARGE: usize = 16 << 10;

/// Connections that may wait for a next request with a large buffer; further ones are closed.
const MOST_LARGE: usize = if cfg!(test) { 4 } else { 512 };

/// Totals over all connections.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    unfinished: AtomicUsize,
    large: AtomicUsize,
}

/// The part of one connection.
#[derive(Debug)]
pub(crate) struct Share {
    all: Arc<Buffers>,
    unfinished: AtomicUsize,
    large: AtomicBool,
}

impl Share {
    pub(crate) fn of(all: &Arc<Buffers>) -> Self {
        Self { all: all.clone(), unfinished: AtomicUsize::new(0), large: AtomicBool::new(false) }
    }

    /// Counts the bytes of one read.
    pub(crate) fn read(&self, bytes: usize) {
        if bytes >= LARGE && !self.large.swap(true, Relaxed) {
            self.all.large.fetch_add(1, Relaxed);
        }
    }

    /// Counts more bytes of an unfinished head. Fails if it is large and the total is too high.
    pub(crate) fn add_to_head(&self, bytes: usize) -> io::Result<()> {
        let own = self.unfinished.fetch_add(bytes, Relaxed) + bytes;
        let all = self.all.unfinished.fetch_add(bytes, Relaxed) + bytes;
        if own > FAIR && all > MOST_UNFINISHED {
            tracing::debug!("closing a connection: unfinished requests hold {all} bytes");
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        Ok(())
    }

    /// The head is complete.
    pub(crate) fn finish_head(&self) {
        self.all.unfinished.fetch_sub(self.unfinished.swap(0, Relaxed), Relaxed);
    }

    /// Whether this connection should end with the request that it is at.
    pub(crate) fn is_one_too_many(&self) -> bool {
        self.large.load(Relaxed) && self.all.large.load(Relaxed) > MOST_LARGE
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.finish_head();
        if *self.large.get_mut() {
            self.all.large.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_unfinished_heads_end_where_small_ones_go_on() {
        let all = Arc::new(Buffers::default());
        let full: Vec<_> = (0..MOST_UNFINISHED / (32 << 10)).map(|_| Share::of(&all)).collect();
        assert!(full.iter().all(|share| share.add_to_head(32 << 10).is_ok()));
        let (large, small) = (Share::of(&all), Share::of(&all));
        assert!(small.add_to_head(FAIR).is_ok());
        assert!(large.add_to_head(FAIR).is_ok());
        assert!(large.add_to_head(1).is_err());
        drop((full, small));
        large.finish_head();
        assert_eq!(all.unfinished.load(Relaxed), 0, "all of it was given back");
        assert!(large.add_to_head(32 << 10).is_ok());
        drop(large);
        assert_eq!(all.unfinished.load(Relaxed), 0);
    }

    #[test]
    fn only_so_many_large_buffers_are_kept() {
        let all = Arc::new(Buffers::default());
        let mut shares: Vec<_> = (0..=MOST_LARGE).map(|_| Share::of(&all)).collect();
        let plain = Share::of(&all);
        plain.read(LARGE - 1);
        for share in &shares {
            assert!(!share.is_one_too_many());
            share.read(LARGE);
            share.read(LARGE);
        }
        assert!(shares.iter().all(Share::is_one_too_many) && !plain.is_one_too_many());
        shares.pop();
        assert!(!shares[0].is_one_too_many());
        drop(shares);
        assert_eq!(all.large.load(Relaxed), 0);
    }
}
