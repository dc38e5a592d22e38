//! What a process has written, for every reader that comes early or late.
//!
//! Each process has one bounded ring. A reader walks it with a cursor: a late one first gets what is
//! still there, then what comes. While someone reads, the process waits for the slowest reader, as
//! it would at a pipe, but a reader that takes nothing for [`STALL_LIMIT`] is cut off and the process
//! goes on. While nobody reads, the oldest output makes room.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use coffer_wire::agentd::OutputStream;
use coffer_wire::envd::process::process_event::EndEvent;
use tokio::sync::watch;
use tokio::time::Instant;

/// Output of one process that a late reader gets.
pub(crate) const RETAINED_OUTPUT: usize = 1 << 20;

/// The rings of all processes together; each gets less when there are many.
const RETAINED_TOTAL: usize = 32 << 20;

/// What a process may always keep.
const RETAINED_LEAST: usize = 64 << 10;

/// How long the process waits for a reader that takes nothing.
pub(crate) const STALL_LIMIT: Duration = Duration::from_secs(30);

/// What a chunk costs beside its bytes, so that a million tiny ones are not free.
const CHUNK_COST: usize = 96;

static RINGS: AtomicUsize = AtomicUsize::new(0);

/// What a reader gets.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Item {
    Data(OutputStream, Bytes),
    End(EndEvent),
    /// The reader was too slow; there is nothing more for it.
    Lost,
}

#[derive(Debug)]
struct Cursor {
    /// Number of the chunk it takes next.
    next: u64,
    /// Cost of everything before that chunk.
    consumed: u64,
    moved: Instant,
    lost: bool,
}

#[derive(Debug, Default)]
struct Ring {
    chunks: VecDeque<(OutputStream, Bytes)>,
    /// Number of the oldest chunk.
    first: u64,
    /// Cost of all chunks ever, and of those already gone.
    pushed: u64,
    evicted: u64,
    cursors: HashMap<u64, Cursor>,
    next_cursor: u64,
    end: Option<EndEvent>,
}

#[derive(Debug)]
pub(crate) struct Output {
    ring: Mutex<Ring>,
    /// Counts changes that readers wait for.
    data: watch::Sender<u64>,
    /// Counts changes that the process waits for.
    room: watch::Sender<u64>,
}

impl Output {
    pub(crate) fn new() -> Arc<Self> {
        RINGS.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self {
            ring: Mutex::default(),
            data: watch::Sender::default(),
            room: watch::Sender::default(),
        })
    }

    /// Adds what the process wrote; after the end it is nobody's any more.
    pub(crate) fn push(&self, stream: OutputStream, data: Bytes) {
        let mut ring = self.lock();
        if ring.end.is_some() {
            return;
        }
        ring.pushed += cost(&data);
        ring.chunks.push_back((stream, data));
        ring.evict(limit());
        drop(ring);
        self.data.send_modify(|version| *version += 1);
    }

    /// No output follows. Only the first end counts.
    pub(crate) fn end(&self, end: EndEvent) {
        self.lock().end.get_or_insert(end);
        self.data.send_modify(|version| *version += 1);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.lock().end.is_some()
    }

    /// Bytes and chunks ever written, as a measure of progress.
    pub(crate) fn progress(&self) -> u64 {
        self.lock().pushed
    }

    /// What the ring holds now.
    pub(crate) fn held(&self) -> u64 {
        let ring = self.lock();
        ring.pushed - ring.evicted
    }

    /// Whether the process has to wait for a reader.
    pub(crate) fn is_full(&self) -> bool {
        self.lock().slowest(limit()).is_some()
    }

    /// Waits until every reader has caught up enough, cutting off those that do not move.
    pub(crate) async fn room(&self) {
        let mut changes = self.room.subscribe();
        loop {
            let Some(deadline) = self.give_up_on_stalled() else {
                return;
            };
            // Neither outcome matters by itself: the ring is looked at again.
            let _moved_or_late = tokio::time::timeout_at(deadline, changes.changed()).await;
        }
    }

    /// Cuts off readers that are late; otherwise says when the next one will be.
    fn give_up_on_stalled(&self) -> Option<Instant> {
        let mut ring = self.lock();
        let now = Instant::now();
        let mut gave_up = false;
        let deadline = loop {
            let Some((id, moved)) = ring.slowest(limit()) else {
                break None;
            };
            let deadline = moved + STALL_LIMIT;
            if deadline > now {
                break Some(deadline);
            }
            if let Some(cursor) = ring.cursors.get_mut(&id) {
                cursor.lost = true;
                gave_up = true;
            }
        };
        drop(ring);
        if gave_up {
            self.data.send_modify(|version| *version += 1);
        }
        deadline
    }

    /// Reads from the oldest chunk that is still there.
    pub(crate) fn reader(self: &Arc<Self>) -> Reader {
        let mut ring = self.lock();
        let id = ring.next_cursor;
        ring.next_cursor += 1;
        let cursor = Cursor { next: ring.first, consumed: ring.evicted, moved: Instant::now(), lost: false };
        ring.cursors.insert(id, cursor);
        drop(ring);
        Reader { output: Arc::clone(self), changes: self.data.subscribe(), id }
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        RINGS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Ring {
    /// Drops the oldest chunks that everyone has had, down to `limit`.
    fn evict(&mut self, limit: u64) {
        let unread = self.cursors.values().filter(|cursor| !cursor.lost).map(|cursor| cursor.next).min();
        while self.pushed - self.evicted > limit && unread.is_none_or(|unread| self.first < unread) {
            let Some((_, data)) = self.chunks.pop_front() else {
                break;
            };
            self.evicted += cost(&data);
            self.first += 1;
        }
    }

    /// The reader that holds the process up, and when it last took something.
    fn slowest(&self, limit: u64) -> Option<(u64, Instant)> {
        self.cursors
            .iter()
            .filter(|(_, cursor)| !cursor.lost && self.pushed - cursor.consumed > limit / 2)
            .min_by_key(|(_, cursor)| cursor.moved)
            .map(|(id, cursor)| (*id, cursor.moved))
    }

    fn next_for(&mut self, id: u64) -> Option<Item> {
        let cursor = self.cursors.get_mut(&id)?;
        if cursor.lost {
            return Some(Item::Lost);
        }
        let index = usize::try_from(cursor.next.checked_sub(self.first)?).ok()?;
        if let Some((stream, data)) = self.chunks.get(index) {
            cursor.next += 1;
            cursor.consumed += cost(data);
            cursor.moved = Instant::now();
            return Some(Item::Data(*stream, data.clone()));
        }
        self.end.clone().map(Item::End)
    }
}

/// One reader's place. While it lives, the process waits for it.
#[derive(Debug)]
pub(crate) struct Reader {
    output: Arc<Output>,
    changes: watch::Receiver<u64>,
    id: u64,
}

impl Reader {
    /// The next piece, waiting for it if need be. Safe to drop and call again.
    pub(crate) async fn next(&mut self) -> Item {
        loop {
            self.changes.mark_unchanged();
            let item = self.output.lock().next_for(self.id);
            if let Some(item) = item {
                self.output.room.send_modify(|version| *version += 1);
                return item;
            }
            if self.changes.changed().await.is_err() {
                return Item::Lost;
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.output.lock().cursors.remove(&self.id);
        self.output.room.send_modify(|version| *version += 1);
    }
}

fn cost(data: &Bytes) -> u64 {
    (data.len() + CHUNK_COST) as u64
}

fn limit() -> u64 {
    let share = RETAINED_TOTAL / RINGS.load(Ordering::Relaxed).max(1);
    share.clamp(RETAINED_LEAST, RETAINED_OUTPUT) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(byte: u8) -> Bytes {
        Bytes::from(vec![byte; 32 << 10])
    }

    fn ended() -> EndEvent {
        EndEvent { exited: true, ..EndEvent::default() }
    }

    #[tokio::test]
    async fn a_late_reader_gets_what_is_left_and_the_end() {
        let output = Output::new();
        for byte in 0..100 {
            output.push(OutputStream::Stdout, chunk(byte));
        }
        output.end(ended());
        output.push(OutputStream::Stdout, chunk(200));
        let mut reader = output.reader();
        let mut seen = Vec::new();
        loop {
            match reader.next().await {
                Item::Data(_, data) => seen.push(data[0]),
                Item::End(_) => break,
                Item::Lost => panic!("lost"),
            }
        }
        assert!(seen.len() > 20 && seen.len() < 33, "{}", seen.len());
        assert_eq!(seen.last(), Some(&99));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_nothing_is_cut_off() {
        let output = Output::new();
        let mut stuck = output.reader();
        let started = Instant::now();
        for byte in 0..200 {
            output.room().await;
            output.push(OutputStream::Stdout, chunk(byte));
        }
        assert_eq!(started.elapsed(), STALL_LIMIT);
        assert_eq!(stuck.next().await, Item::Lost);
        assert!(output.held() <= RETAINED_OUTPUT as u64);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_misses_nothing() {
        let output = Output::new();
        let mut reader = output.reader();
        let reading = tokio::spawn(async move {
            let mut total = 0;
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                match reader.next().await {
                    Item::Data(_, data) => total += data.len(),
                    Item::End(_) => return total,
                    Item::Lost => panic!("lost"),
                }
            }
        });
        for byte in 0..200 {
            output.room().await;
            output.push(OutputStream::Stdout, chunk(byte));
        }
        output.end(ended());
        assert_eq!(reading.await.unwrap(), 200 * (32 << 10));
    }

    #[tokio::test]
    async fn a_dropped_reader_holds_nobody_up() {
        let output = Output::new();
        drop(output.reader());
        for byte in 0..200 {
            output.room().await;
            output.push(OutputStream::Stderr, chunk(byte));
        }
        assert!(output.held() <= RETAINED_OUTPUT as u64);
    }
}
