//! How busy the writer is.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Upper bounds of the buckets, in seconds; one more has the rest.
const BOUNDS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0];

/// Durations of writes so far, and how many wait.
#[derive(Debug, Clone, PartialEq)]
pub struct WriteLoad {
    pub waiting: u64,
    pub count: u64,
    /// The sum of all.
    pub seconds: f64,
    /// Upper bound, and how many writes were above the previous bound and within this one.
    pub buckets: Vec<(f64, u64)>,
}

#[derive(Debug, Default)]
pub(crate) struct Load {
    waiting: AtomicU64,
    micros: AtomicU64,
    buckets: [AtomicU64; BOUNDS.len() + 1],
}

/// A write in progress; counted when it is dropped.
pub(crate) struct Under<'a> {
    load: &'a Load,
    since: Instant,
}

impl Load {
    pub(crate) fn begin(&self) -> Under<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Under { load: self, since: Instant::now() }
    }

    pub(crate) fn read(&self) -> WriteLoad {
        let bounds = BOUNDS.into_iter().chain([f64::INFINITY]);
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        let buckets: Vec<_> = bounds.zip(counts).collect();
        WriteLoad {
            waiting: self.waiting.load(Ordering::Relaxed),
            count: buckets.iter().map(|(_, count)| count).sum(),
            seconds: self.micros.load(Ordering::Relaxed) as f64 / 1e6,
            buckets,
        }
    }
}

impl Drop for Under<'_> {
    fn drop(&mut self) {
        let took = self.since.elapsed();
        let load = self.load;
        load.waiting.fetch_sub(1, Ordering::Relaxed);
        load.micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        let bucket = BOUNDS.iter().position(|bound| took.as_secs_f64() <= *bound).unwrap_or(BOUNDS.len());
        load.buckets[bucket].fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_counted_once_it_is_over() {
        let load = Load::default();
        let write = load.begin();
        assert_eq!((load.read().waiting, load.read().count), (1, 0));
        drop(write);
        let read = load.read();
        assert_eq!((read.waiting, read.count, read.buckets.len()), (0, 1, BOUNDS.len() + 1));
    }
}
