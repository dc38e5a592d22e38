//! Collects the events of a group of writes, to write them together.
//!
//! On SQLite each statement is a message to the connection's thread and back, which costs more than most
//! statements. A group of writes that share a transaction (see `writer`) therefore collects its events and
//! writes them with two statements for each project instead of two for each event.

use std::cell::RefCell;
use std::future::Future;

use coffer_core::event::Event;
use coffer_core::{Millis, ProjectId};
use sqlx::{AnyConnection, Row};

tokio::task_local! {
    static EVENTS: RefCell<Vec<NewEvent>>;
}

/// An event that has no sequence yet.
#[derive(Debug)]
pub(crate) struct NewEvent {
    pub(crate) project: ProjectId,
    pub(crate) subject: String,
    pub(crate) kind: &'static str,
    pub(crate) payload: String,
    pub(crate) at_ms: Millis,
}

impl NewEvent {
    pub(crate) fn new(project: ProjectId, subject: impl ToString, event: &Event, at_ms: Millis) -> Self {
        let (kind, payload) = (event.kind().as_str(), event.payload().to_string());
        Self { project, subject: subject.to_string(), kind, payload, at_ms }
    }
}

/// Runs `work`, in which events can be deferred. The caller must [`write()`] them before it ends.
pub(crate) async fn collecting<F: Future>(work: F) -> F::Output {
    EVENTS.scope(RefCell::default(), work).await
}

/// Defers an event, or returns it if no collection is active.
pub(crate) fn defer(event: NewEvent) -> Result<(), NewEvent> {
    let mut event = Some(event);
    let kept = EVENTS.try_with(|events| events.borrow_mut().extend(event.take()));
    match (kept, event) {
        (Err(_), Some(event)) => Err(event),
        _ => Ok(()),
    }
}

/// The number of deferred events: those that a failed caller added are [dropped](forget_from).
pub(crate) fn count() -> usize {
    EVENTS.with(|events| events.borrow().len())
}

pub(crate) fn forget_from(count: usize) {
    EVENTS.with(|events| events.borrow_mut().truncate(count));
}

/// Writes all of them, at the end of a transaction on SQLite.
pub(crate) async fn write(connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
    let mut events = EVENTS.with(RefCell::take);
    // Keep each project's events in order.
    events.sort_by_key(|event| event.project);
    for of_one in events.chunk_by(|one, next| one.project == next.project) {
        write_of_project(connection, of_one).await?;
    }
    Ok(())
}

async fn write_of_project(connection: &mut AnyConnection, events: &[NewEvent]) -> Result<(), sqlx::Error> {
    let [first, ..] = events else { return Ok(()) };
    let project = first.project.to_string();
    let count = i64::try_from(events.len()).expect("a group is small");
    let counter = sqlx::query(
        "UPDATE projects SET last_event = last_event + $1 WHERE id = $2
         RETURNING last_event - $1 AS before",
    )
    .bind(count)
    .bind(&project)
    .fetch_optional(&mut *connection)
    .await?;
    // Another caller of the group deleted the project, with its log.
    let Some(counter) = counter else { return Ok(()) };
    let before: i64 = counter.try_get("before")?;
    let rows: Vec<_> =
        events.iter().map(|event| (&event.subject, event.kind, &event.payload, event.at_ms)).collect();
    let rows = serde_json::to_string(&rows).expect("texts and numbers are JSON");
    sqlx::query(
        "INSERT INTO events (project_id, sequence, subject, kind, payload, at_ms)
         SELECT $1, $2 + 1 + row.key, row.value ->> 0, row.value ->> 1, row.value ->> 2, row.value ->> 3
         FROM json_each($3) AS row",
    )
    .bind(&project)
    .bind(before)
    .bind(rows)
    .execute(connection)
    .await?;
    Ok(())
}
