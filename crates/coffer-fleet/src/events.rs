//! Readers of the event log.
//!
//! For each project that is being read, one task follows the log and keeps its newest part in memory. Readers
//! take events from it by sequence, and read older ones from the store. So a thousand readers cost one query,
//! and a slow one holds only its position.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use coffer_core::ProjectId;
use coffer_core::event::{Event, Gap, RecordedEvent, fits};
use coffer_core::sync::{Mutex, RwLock};
use coffer_store::{EventRow, ProjectScope, Store, StoreError};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::follow::Follower;
use coffer_core::clock::{now_ms, rfc3339};

/// Events kept in memory for each project with readers.
const KEPT: usize = 1024;
const PAGE: u32 = 500;
const LOOK: Duration = Duration::from_millis(500);

/// An event as the API and webhooks render it.
pub fn render(event: &EventRow) -> RecordedEvent {
    RecordedEvent {
        sequence: event.sequence,
        subject: event.subject.clone(),
        kind: event.kind.clone(),
        payload: event.payload.clone(),
        at: rfc3339(event.at_ms),
    }
}

/// Which events a reader wants.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    pub subject: Option<String>,
    /// All if empty; `sandbox.*` means all that begin with `sandbox.`.
    pub kinds: Vec<String>,
}

impl Wanted {
    pub fn includes(&self, event: &EventRow) -> bool {
        self.subject.as_ref().is_none_or(|subject| event.subject == *subject)
            && (self.kinds.is_empty() || self.kinds.iter().any(|wanted| fits(&event.kind, wanted)))
    }
}

/// Creates readers of the event log.
#[derive(Debug)]
pub struct Events {
    store: Store,
    tails: Mutex<HashMap<ProjectId, Weak<Tail>>>,
    /// Counts readers by its references, plus this one.
    readers: Arc<()>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// The newest events of a project.
#[derive(Debug)]
struct Tail {
    kept: RwLock<VecDeque<Arc<EventRow>>>,
    newest: watch::Sender<i64>,
    /// Ends the follower with the last reader.
    _following: DropGuard,
}

impl Events {
    /// Readers end with `stop`.
    pub fn new(store: Store, tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self { store, tasks, tails: Mutex::default(), readers: Arc::default(), stop }
    }

    /// Cancelled when readers must end.
    pub fn stopping(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// The number of current readers.
    pub fn readers(&self) -> usize {
        Arc::strong_count(&self.readers) - 1
    }

    /// Creates a reader of what `scope` sees after `after`, or after the newest event.
    pub async fn reader(
        &self,
        scope: ProjectScope,
        after: Option<i64>,
        wanted: Wanted,
    ) -> Result<Reader, StoreError> {
        let newest = self.store.newest_event(&scope).await?;
        let tail = self.tail(scope, newest);
        let position = after.unwrap_or(newest);
        let changes = tail.newest.subscribe();
        let mut reader = Reader {
            store: self.store.clone(),
            scope,
            wanted,
            position,
            page: VecDeque::new(),
            tail,
            changes,
            stop: self.stop.clone(),
            _counted: self.readers.clone(),
        };
        reader.pass_gap().await?;
        Ok(reader)
    }

    fn tail(&self, scope: ProjectScope, newest: i64) -> Arc<Tail> {
        let mut tails = self.tails.lock();
        if let Some(tail) = tails.get(&scope.project()).and_then(Weak::upgrade) {
            return tail;
        }
        tails.retain(|_, tail| tail.strong_count() > 0);
        let following = self.stop.child_token();
        let tail = Arc::new(Tail {
            kept: RwLock::default(),
            newest: watch::Sender::new(newest),
            _following: following.clone().drop_guard(),
        });
        tails.insert(scope.project(), Arc::downgrade(&tail));
        let whole = scope.without_agent();
        self.tasks.spawn(follow(self.store.clone(), whole, newest, Arc::downgrade(&tail), following));
        tail
    }
}

/// Updates the tail whenever an event was written.
async fn follow(
    store: Store,
    scope: ProjectScope,
    mut newest: i64,
    tail: Weak<Tail>,
    stop: CancellationToken,
) {
    let late = "could not read the event log, trying again";
    let mut follower = Follower::new(late, LOOK, stop).on_writes(&store, Duration::ZERO);
    loop {
        let looked = match store.events(&scope, newest, PAGE).await {
            Ok(events) if !events.is_empty() => {
                let Some(tail) = tail.upgrade() else { return };
                newest = events.last().map_or(newest, |event| event.sequence);
                {
                    let mut kept = tail.kept.write();
                    kept.extend(events.into_iter().map(Arc::new));
                    let surplus = kept.len().saturating_sub(KEPT);
                    kept.drain(..surplus);
                }
                tail.newest.send_replace(newest);
                continue;
            }
            looked => looked.map(drop),
        };
        if !follower.again(looked).await {
            return;
        }
    }
}

/// A reader that follows the log.
#[derive(Debug)]
pub struct Reader {
    store: Store,
    scope: ProjectScope,
    wanted: Wanted,
    /// The last event that was examined.
    position: i64,
    page: VecDeque<Arc<EventRow>>,
    tail: Arc<Tail>,
    changes: watch::Receiver<i64>,
    stop: CancellationToken,
    _counted: Arc<()>,
}

impl Reader {
    /// The last event that was examined.
    pub const fn position(&self) -> i64 {
        self.position
    }

    /// The next wanted event; `None` when the server stops.
    pub async fn next(&mut self) -> Option<Arc<EventRow>> {
        loop {
            if let Some(event) = self.on_record().await {
                return Some(event);
            }
            tokio::select! {
                () = self.stop.cancelled() => return None,
                changed = self.changes.changed() => changed.ok()?,
            }
        }
    }

    /// The next wanted event among those already recorded; `None` if all were read.
    pub async fn on_record(&mut self) -> Option<Arc<EventRow>> {
        loop {
            if let Some(event) = self.page.pop_front() {
                return Some(event);
            }
            let newest = *self.changes.borrow_and_update();
            if newest <= self.position {
                return None;
            }
            if !self.read_kept(newest) {
                self.read_stored().await?;
            }
        }
    }

    /// Reads from memory, unless the next event is no longer there. For an agent only the store knows which
    /// events it sees.
    fn read_kept(&mut self, newest: i64) -> bool {
        if self.scope.agent().is_some() {
            return false;
        }
        let kept = self.tail.kept.read();
        let Some(first) = kept.front().filter(|first| first.sequence <= self.position + 1) else {
            return false;
        };
        let from = usize::try_from(self.position + 1 - first.sequence).unwrap_or(usize::MAX);
        let fresh = kept.iter().skip(from).take_while(|event| event.sequence <= newest);
        self.page.extend(fresh.filter(|event| self.wanted.includes(event)).cloned());
        self.position = newest;
        true
    }

    /// If unseen events were deleted because of their age, returns a `gap` event and continues after them.
    async fn pass_gap(&mut self) -> Result<(), StoreError> {
        let pruned = self.store.pruned_event(&self.scope).await?;
        if self.position < pruned {
            let gap = Event::Gap(Gap { after: self.position, until: pruned });
            self.page.push_back(Arc::new(EventRow::new(pruned, self.scope.project(), &gap, now_ms())));
            self.position = pruned;
        }
        Ok(())
    }

    async fn read_stored(&mut self) -> Option<()> {
        // A slow reader may have fallen behind retention.
        let read = async {
            let events = self.store.events(&self.scope, self.position, PAGE).await?;
            if events.first().is_none_or(|first| first.sequence > self.position + 1) {
                self.pass_gap().await?;
            }
            Ok(events)
        };
        match read.await {
            Ok(events) => {
                match events.last() {
                    Some(last) => self.position = last.sequence,
                    // All new events belong to others.
                    None => self.position = *self.changes.borrow(),
                }
                let fresh = events.into_iter().filter(|event| self.wanted.includes(event)).map(Arc::new);
                self.page.extend(fresh);
                Some(())
            }
            Err(StoreError::Closed) => None,
            Err(error) => {
                tracing::warn!("could not read events, trying again: {error}");
                tokio::select! {
                    () = self.stop.cancelled() => None,
                    () = tokio::time::sleep(LOOK) => Some(()),
                }
            }
        }
    }
}
