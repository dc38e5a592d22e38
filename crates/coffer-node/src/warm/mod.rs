//! The warm pool: slots, which are sandboxes that already run and are not assigned yet.
//!
//! A slot is created like any sandbox and then waits, before its agentd gets its identity. One that continues the processes
//! of a template is frozen meanwhile. A create request
//! claims one of the same [`Shape`]; if there is none, it creates a sandbox from scratch. A claimed slot is a
//! sandbox from then on and never returns to the pool. The number of slots follows recent demand;
//! `sandbox::keep` creates and ends them in the background.

mod row;
mod shapes;
mod share;
mod slot;

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use coffer_core::SnapshotId;
use coffer_core::sync::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::cgroup::SandboxCgroup;
use crate::config::WarmChoice;

use row::Row;
pub(crate) use shapes::Shape;
use shapes::{Demand, targets};
pub(crate) use slot::{Origin, Slot};

/// Shapes that slots are kept for at the same time: of templates of the host, and of templates of projects.
const SHAPES: usize = 4;
const SNAPSHOT_SHAPES: usize = 4;
/// How much memory the slots of projects' templates that only boot may use together.
const SNAPSHOT_MEMORY: u64 = 256 * 1024 * 1024;
/// The file in the data directory from which the next node learns what to keep ready.
const FILE: &str = "warm.json";

/// The waiting slots, and the demand for them.
#[derive(Debug)]
pub(crate) struct Warm {
    choice: WarmChoice,
    file: PathBuf,
    shelf: Mutex<Shelf>,
    /// Sandboxes that are being created from scratch right now.
    cold: AtomicUsize,
    /// Held while a slot is created and put on the shelf, and while a snapshot is deleted.
    making: tokio::sync::Mutex<()>,
    /// Wakes the keeper when there is something to do.
    wanted: Notify,
    closing: CancellationToken,
}

#[derive(Debug, Default)]
struct Shelf {
    /// The most recently requested shape comes first.
    rows: Vec<Row>,
    /// Unusable slots; the keeper ends them.
    rejects: Vec<Slot>,
    last_ask: Option<Instant>,
    closed: bool,
}

impl Shelf {
    /// The cgroups of the slots of projects' templates that only boot.
    fn of_projects(&self) -> Vec<SandboxCgroup> {
        let booted = |shape: &Shape| shape.snapshot().is_some() && !shape.has_processes();
        let rows = self.rows.iter().filter(|row| booted(&row.demand.shape));
        rows.flat_map(|row| &row.ready).map(|slot| slot.alive.cgroup.clone()).collect()
    }
}

/// A slot to create.
#[derive(Debug)]
pub(crate) struct Lack {
    pub(crate) shape: Shape,
    /// The memory that it takes; `None` if nobody has looked.
    pub(crate) bytes: Option<u64>,
}

impl Warm {
    /// Loads the shapes that the last node of this directory kept.
    pub(crate) fn open(data_dir: &std::path::Path, choice: WarmChoice) -> Self {
        let file = data_dir.join(FILE);
        // Only a hint: without it, or with one from another version, the first create is not warm.
        let shapes: Vec<Shape> =
            fs::read(&file).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        let row = |shape| Row::new(Demand::new(shape));
        let rows = if choice.max == 0 { Vec::new() } else { shapes.into_iter().take(1).map(row).collect() };
        Self {
            choice,
            file,
            shelf: Mutex::new(Shelf { rows, ..Shelf::default() }),
            cold: AtomicUsize::new(0),
            making: tokio::sync::Mutex::default(),
            wanted: Notify::new(),
            closing: CancellationToken::new(),
        }
    }

    pub(crate) const fn is_off(&self) -> bool {
        self.choice.max == 0
    }

    /// Whether slots of this shape may be kept.
    pub(crate) fn keeps(&self, shape: &Shape) -> bool {
        !self.is_off() && (!shape.has_processes() || self.choice.memory > 0)
    }

    /// How many wait to be taken.
    pub(crate) fn ready(&self) -> u64 {
        self.shelf().rows.iter().map(|row| row.ready.len() as u64).sum()
    }

    fn shelf(&self) -> std::sync::MutexGuard<'_, Shelf> {
        self.shelf.lock()
    }

    /// Whether a slot of this shape waits. Counts as a request for one.
    pub(crate) fn ask(&self, shape: &Shape) -> bool {
        let mut shelf = self.shelf();
        shelf.last_ask = Some(Instant::now());
        let Some(at) = shelf.rows.iter().position(|row| row.demand.shape == *shape) else { return false };
        let mut row = shelf.rows.remove(at);
        row.demand.count(Instant::now());
        let ready = !row.ready.is_empty();
        shelf.rows.insert(0, row);
        ready
    }

    /// Takes a slot of this shape, which never returns to the pool. The one that waited longest: its agentd
    /// is surely up.
    pub(crate) fn take(&self, shape: &Shape) -> Option<Slot> {
        let slot = self.shelf().rows.iter_mut().find(|row| row.demand.shape == *shape)?.ready.pop_front();
        self.wanted.notify_one();
        slot
    }

    /// Takes an unusable slot.
    pub(crate) fn reject(&self, slot: Slot) {
        self.shelf().rejects.push(slot);
        self.wanted.notify_one();
    }

    /// Remembers a shape that could be created, so that the next ones are ready.
    pub(crate) fn learn(&self, shape: Shape) {
        let mut shelf = self.shelf();
        if shelf.closed || !self.keeps(&shape) || shelf.rows.iter().any(|row| row.demand.shape == shape) {
            return;
        }
        let mut demand = Demand::new(shape);
        demand.count(Instant::now());
        let is_hosts = demand.shape.snapshot().is_none();
        shelf.rows.insert(0, Row::new(demand));
        let is_built = |row: &Row| row.demand.shape.snapshot().is_some();
        let mut over = share::drop_rows(&mut shelf.rows, SHAPES, |row| !is_built(row));
        over.extend(share::drop_rows(&mut shelf.rows, SNAPSHOT_SHAPES, is_built));
        shelf.rejects.extend(over.into_iter().flat_map(|row| row.ready));
        // The next node keeps no project's template ready before it is used.
        let shapes: Vec<_> = shelf.rows.iter().map(|row| &row.demand.shape).collect();
        let shapes: Vec<_> = shapes.into_iter().filter(|shape| shape.snapshot().is_none()).cloned().collect();
        drop(shelf);
        if is_hosts {
            self.save(&shapes);
        }
        self.wanted.notify_one();
    }

    fn save(&self, shapes: &[Shape]) {
        let draft = self.file.with_extension("new");
        let written = serde_json::to_vec(shapes)
            .map_err(std::io::Error::from)
            .and_then(|text| fs::write(&draft, text))
            .and_then(|()| fs::rename(&draft, &self.file));
        if let Err(error) = written {
            tracing::warn!(
                "could not save the list of templates to keep warm in `{}`: {error}",
                self.file.display()
            );
        }
    }

    /// Keeps slots from being created, until the guard is dropped.
    pub(crate) async fn hold(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.making.lock().await
    }

    /// Takes the slots of a snapshot that is about to be deleted, or is gone.
    pub(crate) fn forget(&self, snapshot: SnapshotId) -> Vec<Slot> {
        let mut shelf = self.shelf();
        let is_of = |row: &Row| row.demand.shape.snapshot() == Some(snapshot);
        let (gone, kept) = std::mem::take(&mut shelf.rows).into_iter().partition(is_of);
        shelf.rows = kept;
        let (mut slots, rejects) = std::mem::take(&mut shelf.rejects)
            .into_iter()
            .partition::<Vec<_>, _>(|slot| slot.entry.spec.snapshot == Some(snapshot));
        shelf.rejects = rejects;
        slots.extend::<Vec<Slot>>(gone.into_iter().flat_map(|row: Row| row.ready).collect());
        slots
    }

    /// Marks a sandbox as being created from scratch for as long as the guard is held: slots then wait.
    pub(crate) fn making_cold(&self) -> Cold<'_> {
        self.cold.fetch_add(1, Ordering::Relaxed);
        Cold(self)
    }

    /// Time since the last request for a sandbox; `None` while one is being created from scratch.
    pub(crate) fn quiet_for(&self) -> Option<Duration> {
        if self.cold.load(Ordering::Relaxed) > 0 {
            return None;
        }
        Some(self.shelf().last_ask.map_or(Duration::MAX, |last| last.elapsed()))
    }

    /// The shape that most lacks a slot.
    pub(crate) fn lacking(&self) -> Option<Lack> {
        let now = Instant::now();
        // Read without the lock, for which requests wait.
        let of_projects = self.shelf().of_projects();
        let used: u64 = of_projects.iter().map(|cgroup| cgroup.usage().memory_bytes).sum();
        let has_memory = used < SNAPSHOT_MEMORY;
        let shelf = self.shelf();
        let targets = targets(shelf.rows.iter().map(|row| &row.demand), self.choice, now);
        let restored = share::used(&shelf.rows);
        let lacking = shelf.rows.iter().zip(targets).filter(|(row, target)| {
            row.ready.len() < *target
                && row.not_before.is_none_or(|not_before| now >= not_before)
                && (has_memory || row.demand.shape.snapshot().is_none() || row.demand.shape.has_processes())
                && share::fits(row, restored, self.choice.memory)
        });
        let most = lacking.min_by_key(|(row, _)| row.ready.len());
        most.map(|(row, _)| Lack { shape: row.demand.shape.clone(), bytes: row.bytes })
    }

    /// Records what a slot of this shape will take.
    pub(crate) fn weigh(&self, shape: &Shape, bytes: u64) {
        if let Some(row) = self.shelf().rows.iter_mut().find(|row| row.demand.shape == *shape) {
            row.bytes = Some(bytes);
        }
    }

    /// Adds a new slot.
    pub(crate) fn put(&self, shape: &Shape, slot: Slot) {
        let mut shelf = self.shelf();
        match shelf.rows.iter_mut().find(|row| row.demand.shape == *shape) {
            Some(row) => {
                if slot.has_processes() {
                    row.bytes = Some(slot.bytes);
                }
                row.ready.push_back(slot);
            }
            // Forgotten in the meantime.
            None => shelf.rejects.push(slot),
        }
    }

    /// Records that a slot of this shape could not be created.
    pub(crate) fn put_off(&self, shape: &Shape, pause: Duration) {
        if let Some(row) = self.shelf().rows.iter_mut().find(|row| row.demand.shape == *shape) {
            row.not_before = Some(Instant::now() + pause);
        }
    }

    /// The origins of all slots that wait.
    pub(crate) fn origins(&self) -> BTreeSet<Origin> {
        let shelf = self.shelf();
        shelf.rows.iter().flat_map(|row| &row.ready).map(Slot::origin).collect()
    }

    /// Slots to end: more than are wanted or fit into the memory for them, dead ones, and those that `stale` selects.
    pub(crate) fn outdated(&self, stale: impl Fn(&Slot) -> bool) -> Vec<Slot> {
        let now = Instant::now();
        let mut shelf = self.shelf();
        let targets = targets(shelf.rows.iter().map(|row| &row.demand), self.choice, now);
        let mut outdated = std::mem::take(&mut shelf.rejects);
        for (row, &target) in shelf.rows.iter_mut().zip(&targets) {
            let (bad, good) = row.ready.drain(..).partition(|slot| slot.has_ended() || stale(slot));
            row.ready = good;
            outdated.extend::<VecDeque<_>>(bad);
            while row.ready.len() > target {
                outdated.extend(row.ready.pop_back());
            }
        }
        outdated.extend(share::make_room(&mut shelf.rows, &targets, self.choice.memory));
        let mut first = true;
        shelf.rows.retain(|row| {
            let stays = row.demand.shape.snapshot().is_none() && std::mem::take(&mut first);
            stays || !row.demand.is_forgotten(now)
        });
        outdated
    }

    /// Whether the number of slots is about to change by itself, or with the memory that the host has left.
    pub(crate) fn is_restless(&self) -> bool {
        let now = Instant::now();
        let holds = |row: &Row| row.demand.shape.has_processes() && !row.ready.is_empty();
        self.shelf().rows.iter().any(|row| row.demand.is_recent(now) || holds(row))
    }

    /// Takes all waiting slots. From here on there is nothing to claim.
    pub(crate) fn close(&self) -> Vec<Slot> {
        let mut shelf = self.shelf();
        shelf.closed = true;
        let rows = std::mem::take(&mut shelf.rows);
        let mut all = std::mem::take(&mut shelf.rejects);
        all.extend(rows.into_iter().flat_map(|row| row.ready));
        all
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.is_cancelled()
    }

    /// Waits until [`stop`](Self::stop).
    pub(crate) async fn closed(&self) {
        self.closing.cancelled().await;
    }

    /// Waits until there may be something for the keeper to do.
    pub(crate) async fn is_wanted(&self) {
        self.wanted.notified().await;
    }

    /// Makes the keeper end all slots and itself.
    pub(crate) fn stop(&self) {
        self.closing.cancel();
    }
}

/// See [`Warm::making_cold`].
#[derive(Debug)]
pub(crate) struct Cold<'a>(&'a Warm);

impl Drop for Cold<'_> {
    fn drop(&mut self) {
        self.0.cold.fetch_sub(1, Ordering::Relaxed);
    }
}
