//! The output of a process, for readers that come early, late or again.
//!
//! Each process has one bounded ring. A reader walks it with a cursor: it starts at the oldest output that is
//! still there, or exactly where its connection broke, and continues with new output. While there are readers,
//! the process waits for the slowest one, as it would at a pipe, but a reader that takes nothing for
//! [`STALL_LIMIT`] is cut off and the process continues, unless its output is a pipe. If a reader that can resume
//! disconnects, its place is held for as long. Without readers, the oldest output is dropped. So memory is bounded whatever readers do.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use coffer_core::sync::Mutex;
use coffer_wire::agentd::OutputStream;
use coffer_wire::envd::process::Offsets;
use coffer_wire::envd::process::process_event::EndEvent;
use tokio::sync::watch;
use tokio::time::Instant;

/// Most output of one process that a late reader gets. The journal keeps as much, and shares it.
pub(crate) const RETAINED_OUTPUT: usize = 4 << 20;

/// The rings of all running processes together; with many processes each gets less.
const RETAINED_TOTAL: usize = 32 << 20;

/// The least that a process may keep.
const RETAINED_LEAST: usize = 64 << 10;

/// How long the process waits for a reader that takes nothing.
pub(crate) const STALL_LIMIT: Duration = Duration::from_secs(30);

/// The overhead of a chunk, so that a million tiny ones are not free.
const CHUNK_COST: usize = 96;

/// Rings of running processes.
static RINGS: AtomicUsize = AtomicUsize::new(0);

/// One write of a process, and its position in the stream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Chunk {
    pub(crate) stream: OutputStream,
    pub(crate) offset: u64,
    pub(crate) data: Bytes,
}

/// What a reader gets.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Item {
    Data(Chunk),
    End(EndEvent),
    /// The reader was too slow; it gets nothing more.
    Lost,
}

/// The requested output no longer exists.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OutOfRange {
    stream: &'static str,
    asked: u64,
    kept: u64,
    written: u64,
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stream, asked, kept, written } = self;
        write!(f, "requested {stream} from byte {asked}, but only bytes {kept} to {written} are available")
    }
}

#[derive(Debug)]
struct Cursor {
    /// The next chunk's number.
    next: u64,
    /// The cost of everything before that chunk.
    consumed: u64,
    moved: Instant,
    lost: bool,
    /// Earlier output is not for this reader.
    from: Offsets,
}

#[derive(Debug, Default)]
struct Ring {
    chunks: VecDeque<Chunk>,
    /// The range of output that is still here.
    kept: Offsets,
    written: Offsets,
    /// Number of the oldest chunk.
    first: u64,
    /// The cost of all chunks ever, and of the dropped ones.
    pushed: u64,
    evicted: u64,
    cursors: HashMap<u64, Cursor>,
    next_cursor: u64,
    /// The place of the last reader that disconnected and may resume; only one, so that there are not many.
    held: Option<u64>,
    end: Option<EndEvent>,
}

#[derive(Debug)]
pub(crate) struct Output {
    /// Whether it waits for its readers without a limit.
    patient: bool,
    ring: Mutex<Ring>,
    /// Counts changes that readers wait for.
    data: watch::Sender<u64>,
    /// Counts changes that the process waits for.
    room: watch::Sender<u64>,
}

impl Output {
    #[cfg(test)]
    pub(crate) fn new() -> Arc<Self> {
        Self::waiting(false)
    }

    /// No output yet; one that is `patient` waits for its readers as long as it takes.
    pub(crate) fn waiting(patient: bool) -> Arc<Self> {
        RINGS.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self {
            patient,
            ring: Mutex::default(),
            data: watch::Sender::default(),
            room: watch::Sender::default(),
        })
    }

    /// Adds output and returns its position; after the end it is dropped.
    pub(crate) fn push(&self, stream: OutputStream, data: Bytes) -> Option<u64> {
        let mut ring = self.lock();
        if ring.end.is_some() {
            return None;
        }
        let written = place(&mut ring.written, stream);
        let offset = *written;
        *written += data.len() as u64;
        ring.pushed += cost(&data);
        ring.chunks.push_back(Chunk { stream, offset, data });
        ring.evict(limit());
        drop(ring);
        self.data.send_modify(|version| *version += 1);
        Some(offset)
    }

    /// Marks the end of the output. Only the first end counts.
    pub(crate) fn end(&self, end: EndEvent) {
        let mut ring = self.lock();
        if ring.end.is_none() {
            ring.end = Some(end);
            RINGS.fetch_sub(1, Ordering::Relaxed);
        }
        drop(ring);
        self.data.send_modify(|version| *version += 1);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.lock().end.is_some()
    }

    /// Bytes and chunks ever written, as a measure of progress.
    pub(crate) fn progress(&self) -> u64 {
        self.lock().pushed
    }

    /// The bytes in the ring now.
    pub(crate) fn held(&self) -> u64 {
        let ring = self.lock();
        ring.pushed - ring.evicted
    }

    /// Whether it is a pipe whose readers have gone and did not come back in time.
    pub(crate) fn is_abandoned(&self) -> bool {
        let ring = self.lock();
        let gone =
            |(id, cursor): (&u64, &Cursor)| ring.held == Some(*id) && cursor.moved.elapsed() > STALL_LIMIT;
        self.patient && ring.next_cursor > 0 && ring.cursors.iter().all(gone)
    }

    pub(crate) fn is_patient(&self) -> bool {
        self.patient
    }

    /// Whether the process has to wait for a reader.
    pub(crate) fn is_full(&self) -> bool {
        self.lock().slowest(limit()).is_some()
    }

    /// Waits until every reader has caught up enough, and cuts off those that do not move.
    pub(crate) async fn room(&self) {
        let mut changes = self.room.subscribe();
        loop {
            let Some(deadline) = self.give_up_on_stalled() else {
                return;
            };
            // The outcome does not matter: the ring is checked again.
            let _moved_or_late = tokio::time::timeout_at(deadline, changes.changed()).await;
        }
    }

    /// Cuts off stalled readers, or returns when the next one will be stalled.
    fn give_up_on_stalled(&self) -> Option<Instant> {
        let mut ring = self.lock();
        let now = Instant::now();
        let mut gave_up = false;
        let deadline = loop {
            let Some((id, moved)) = ring.slowest(limit()) else {
                break None;
            };
            // A reader that has disconnected holds its place for so long only.
            if self.patient && ring.held != Some(id) {
                break Some(now + STALL_LIMIT);
            }
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

    /// Creates a reader from `from` on, or from the oldest output.
    pub(crate) fn reader(self: &Arc<Self>, from: Option<Offsets>) -> Result<Reader, OutOfRange> {
        let mut ring = self.lock();
        let from = match from {
            Some(from) => {
                let from = ring.checked(from)?;
                ring.hold(None);
                from
            }
            None => ring.kept,
        };
        let id = ring.next_cursor;
        ring.next_cursor += 1;
        let mut cursor =
            Cursor { next: ring.first, consumed: ring.evicted, moved: Instant::now(), lost: false, from };
        // The process does not wait while this reader passes output that it already had.
        for had in ring.chunks.iter().take_while(|chunk| chunk.after(from).is_none()) {
            cursor.pass(had);
        }
        ring.cursors.insert(id, cursor);
        drop(ring);
        let changes = self.data.subscribe();
        Ok(Reader { output: Arc::clone(self), changes, id, from, holds_place: false })
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.has_ended() {
            RINGS.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Ring {
    /// Drops the oldest chunks that every reader has had, down to `limit`.
    fn evict(&mut self, limit: u64) {
        let unread = self.cursors.values().filter(|cursor| !cursor.lost).map(|cursor| cursor.next).min();
        while self.pushed - self.evicted > limit && unread.is_none_or(|unread| self.first < unread) {
            let Some(oldest) = self.chunks.pop_front() else {
                break;
            };
            *place(&mut self.kept, oldest.stream) += oldest.data.len() as u64;
            self.evicted += cost(&oldest.data);
            self.first += 1;
        }
    }

    /// Holds the place of a reader that is gone, and releases the previously held one.
    fn hold(&mut self, place: Option<u64>) {
        if let Some(before) = std::mem::replace(&mut self.held, place) {
            self.cursors.remove(&before);
        }
    }

    /// Checks a requested position: everything from there on must exist.
    fn checked(&self, from: Offsets) -> Result<Offsets, OutOfRange> {
        let streams = [
            ("stdout", from.stdout, self.kept.stdout, self.written.stdout),
            ("stderr", from.stderr, self.kept.stderr, self.written.stderr),
            ("pty", from.pty, self.kept.pty, self.written.pty),
        ];
        match streams.into_iter().find(|(_, asked, kept, written)| !(*kept..=*written).contains(asked)) {
            Some((stream, asked, kept, written)) => Err(OutOfRange { stream, asked, kept, written }),
            None => Ok(from),
        }
    }

    /// The reader that blocks the process, and when it last took something.
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
        for chunk in self.chunks.range(index.min(self.chunks.len())..) {
            cursor.pass(chunk);
            if let Some(rest) = chunk.after(cursor.from) {
                cursor.moved = Instant::now();
                return Some(Item::Data(rest));
            }
        }
        self.end.clone().map(Item::End)
    }
}

impl Cursor {
    fn pass(&mut self, chunk: &Chunk) {
        self.next += 1;
        self.consumed += cost(&chunk.data);
    }
}

impl Chunk {
    /// The part at and after `from`, if there is one.
    fn after(&self, mut from: Offsets) -> Option<Self> {
        let from = *place(&mut from, self.stream);
        let skipped = usize::try_from(from.saturating_sub(self.offset)).ok()?;
        (skipped < self.data.len()).then(|| Self {
            stream: self.stream,
            offset: self.offset + skipped as u64,
            data: self.data.slice(skipped..),
        })
    }
}

/// One reader's position. While it exists, the process waits for it.
#[derive(Debug)]
pub(crate) struct Reader {
    output: Arc<Output>,
    changes: watch::Receiver<u64>,
    id: u64,
    from: Offsets,
    /// Until it has read everything.
    holds_place: bool,
}

impl Reader {
    /// For a reader that can resume: if it disconnects, its place is held for a while.
    pub(crate) fn holding_place(mut self) -> Self {
        self.holds_place = true;
        self
    }

    /// The position in each stream at which it began.
    pub(crate) fn from(&self) -> Offsets {
        self.from
    }

    /// The next item; waits for it. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Item {
        loop {
            self.changes.mark_unchanged();
            let item = self.output.lock().next_for(self.id);
            if let Some(item) = item {
                self.holds_place &= matches!(item, Item::Data(_));
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
        let mut ring = self.output.lock();
        match ring.cursors.get_mut(&self.id).filter(|_| self.holds_place) {
            Some(cursor) => {
                cursor.moved = Instant::now();
                ring.hold(Some(self.id));
            }
            None => drop(ring.cursors.remove(&self.id)),
        }
        drop(ring);
        self.output.room.send_modify(|version| *version += 1);
    }
}

fn place(offsets: &mut Offsets, stream: OutputStream) -> &mut u64 {
    match stream {
        OutputStream::Stdout => &mut offsets.stdout,
        OutputStream::Stderr => &mut offsets.stderr,
        OutputStream::Pty => &mut offsets.pty,
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

    const CHUNK: usize = 32 << 10;

    fn chunk(byte: u8) -> Bytes {
        Bytes::from(vec![byte; CHUNK])
    }

    fn ended() -> EndEvent {
        EndEvent { exited: true, ..EndEvent::default() }
    }

    fn from_start(output: &Arc<Output>) -> Reader {
        output.reader(None).unwrap()
    }

    /// Everything left for a reader of an ended process.
    async fn rest(mut reader: Reader) -> Vec<Chunk> {
        let mut seen = Vec::new();
        loop {
            match reader.next().await {
                Item::Data(chunk) => seen.push(chunk),
                Item::End(_) => return seen,
                Item::Lost => panic!("lost"),
            }
        }
    }

    #[tokio::test]
    async fn a_late_reader_gets_what_is_left_and_the_end() {
        let output = Output::new();
        for byte in 0..200 {
            output.push(OutputStream::Stdout, chunk(byte));
        }
        output.end(ended());
        assert_eq!(output.push(OutputStream::Stdout, chunk(200)), None);
        let reader = from_start(&output);
        let from = reader.from();
        let seen = rest(reader).await;
        // The overhead of chunks, and other tests' rings, take their part.
        assert!(!seen.is_empty() && seen.len() <= RETAINED_OUTPUT / CHUNK, "{}", seen.len());
        assert_eq!(seen.last().unwrap().data[0], 199);
        assert_eq!(from, Offsets { stdout: seen[0].offset, ..Offsets::default() });
        assert_eq!(from.stdout, ((200 - seen.len()) * CHUNK) as u64);
    }

    #[tokio::test]
    async fn a_reader_that_comes_back_gets_every_byte_once() {
        let output = Output::new();
        for (stream, data) in [
            (OutputStream::Stdout, "one "),
            (OutputStream::Stderr, "oops"),
            (OutputStream::Stdout, "two "),
            (OutputStream::Pty, "tty"),
            (OutputStream::Stdout, "three"),
        ] {
            output.push(stream, Bytes::from_static(data.as_bytes()));
        }
        output.end(ended());
        for cut in 0..=13 {
            let resumed = output.reader(Some(Offsets { stdout: cut, stderr: 4, pty: 1 })).unwrap();
            let mut joined = String::new();
            for chunk in rest(resumed).await {
                let text = std::str::from_utf8(&chunk.data).unwrap();
                match chunk.stream {
                    OutputStream::Stdout => {
                        assert_eq!(chunk.offset, cut + joined.len() as u64);
                        joined += text;
                    }
                    OutputStream::Pty => assert_eq!((chunk.offset, text), (1, "ty")),
                    OutputStream::Stderr => panic!("it had all of that: {text}"),
                }
            }
            assert_eq!(joined, "one two three"[usize::try_from(cut).unwrap()..]);
        }
    }

    #[tokio::test]
    async fn what_is_gone_or_not_yet_there_is_out_of_range() {
        let output = Output::new();
        for byte in 0..200 {
            output.push(OutputStream::Stdout, chunk(byte));
        }
        let kept = from_start(&output).from().stdout;
        let at = |stdout| output.reader(Some(Offsets { stdout, ..Offsets::default() }));
        let written = 200 * CHUNK as u64;
        assert!(kept > 0 && at(kept).is_ok() && at(written).is_ok());
        let refused = OutOfRange { stream: "stdout", asked: kept - 1, kept, written };
        assert_eq!(at(kept - 1).unwrap_err(), refused);
        assert!(at(written + 1).is_err());
        assert!(output.reader(Some(Offsets { stdout: kept, stderr: 1, pty: 0 })).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_nothing_is_cut_off() {
        let output = Output::new();
        let mut stuck = from_start(&output);
        let started = Instant::now();
        for byte in 0..250 {
            output.room().await;
            output.push(OutputStream::Stdout, chunk(byte));
        }
        assert_eq!(started.elapsed(), STALL_LIMIT);
        assert_eq!(stuck.next().await, Item::Lost);
        assert!(output.held() <= RETAINED_OUTPUT as u64);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pipe_waits_for_its_reader_and_is_abandoned_when_that_stays_away() {
        let output = Output::waiting(true);
        assert!(!output.is_abandoned(), "nobody has come yet");
        let mut reader = from_start(&output).holding_place();
        let writing = async {
            for byte in 0..250 {
                output.room().await;
                output.push(OutputStream::Stdout, chunk(byte));
            }
        };
        tokio::time::timeout(STALL_LIMIT * 10, writing).await.unwrap_err();
        assert!(matches!(reader.next().await, Item::Data(_)));
        drop(reader);
        assert!(!output.is_abandoned(), "it may come back");
        tokio::time::sleep(STALL_LIMIT + Duration::from_secs(1)).await;
        assert!(output.is_abandoned());
        let _again = from_start(&output);
        assert!(!output.is_abandoned());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_misses_nothing() {
        let output = Output::new();
        let mut reader = from_start(&output);
        let reading = tokio::spawn(async move {
            let mut total = 0;
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                match reader.next().await {
                    Item::Data(chunk) => {
                        assert_eq!(chunk.offset, total as u64);
                        total += chunk.data.len();
                    }
                    Item::End(_) => return total,
                    Item::Lost => panic!("lost"),
                }
            }
        });
        for byte in 0..250 {
            output.room().await;
            output.push(OutputStream::Stdout, chunk(byte));
            assert!(output.held() <= RETAINED_OUTPUT as u64);
        }
        output.end(ended());
        assert_eq!(reading.await.unwrap(), 250 * CHUNK);
    }

    #[tokio::test(start_paused = true)]
    async fn the_place_of_one_that_may_come_back_is_held_for_a_while() {
        let output = Output::new();
        let mut had = 0;
        let mut from = Offsets::default();
        // Twice it resumes in time, and the process has waited for it.
        for _ in 0..2 {
            let mut reader = output.reader(Some(from)).unwrap().holding_place();
            while let Ok(item) = tokio::time::timeout(Duration::ZERO, reader.next()).await {
                let Item::Data(chunk) = item else { panic!("{item:?}") };
                assert_eq!(chunk.offset, had);
                had += chunk.data.len() as u64;
            }
            from.stdout = had;
            drop(reader);
            let writing = async {
                for byte in 0..250 {
                    output.room().await;
                    output.push(OutputStream::Stdout, chunk(byte));
                }
            };
            tokio::time::timeout(STALL_LIMIT / 2, writing).await.unwrap_err();
        }
        // Other readers that leave do not take its held place; the next one that can resume does.
        drop(from_start(&output));
        assert_eq!((output.is_full(), output.lock().cursors.len()), (true, 1));
        drop(from_start(&output).holding_place());
        assert_eq!(output.lock().cursors.len(), 1);
        // In the end the process continues.
        tokio::time::timeout(STALL_LIMIT, output.room()).await.unwrap();
        for byte in 0..250 {
            output.room().await;
            output.push(OutputStream::Stdout, chunk(byte));
        }
        output.reader(Some(from)).unwrap_err();
    }

    #[tokio::test]
    async fn a_dropped_reader_holds_nobody_up() {
        let output = Output::new();
        drop(from_start(&output));
        for byte in 0..250 {
            output.room().await;
            output.push(OutputStream::Stderr, chunk(byte));
        }
        assert!(output.held() <= RETAINED_OUTPUT as u64);
    }
}
