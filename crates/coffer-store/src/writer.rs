//! The task that writes to SQLite.
//!
//! A commit costs a disk flush, whether it carries one write or a hundred. So the task takes all queued
//! writes, runs each caller's work in a savepoint, commits once and answers afterwards:
//!
//! ```text
//! BEGIN IMMEDIATE ─ SAVEPOINT ─ work ─ RELEASE ─ SAVEPOINT ─ work fails ─ ROLLBACK TO ─ … ─ COMMIT ─ answers
//! ```
//!
//! The group's events go into the log together, before the commit (see `deferred`).
//!
//! Under load the groups grow by themselves, because writes queue while a commit is in progress. If no write
//! of a group must survive a crash of the host ([`Durability::Cached`]), the group is committed without the
//! flush; the next flush includes it, because there is one log.

use std::future::Future;
use std::pin::Pin;

use sqlx::any::AnyConnectOptions;
use sqlx::{AnyConnection, Connection};
use tokio::sync::{mpsc, oneshot};

use crate::database::{Durability, Work, connect_sqlite_writer};
use crate::deferred;
use crate::error::{Cause, StoreError};

/// Writes that may wait; further callers wait for room.
const QUEUE: usize = 1024;
/// Bounds how long the first of a group waits for its answer.
const LARGEST_GROUP: usize = 256;

/// What to roll back if work fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    Rows,
    /// It only reads, and records events, which are not written yet.
    Events,
}

#[derive(Debug)]
pub(crate) struct Writer {
    asks: mpsc::Sender<Ask>,
}

enum Ask {
    Write(Box<dyn Job>, Durability),
    Close(oneshot::Sender<()>),
}

impl Writer {
    pub(crate) fn start(connection: AnyConnection, options: AnyConnectOptions) -> Self {
        let (asks, inbox) = mpsc::channel(QUEUE);
        #[expect(clippy::disallowed_methods, reason = "`close` waits until it has ended")]
        tokio::spawn(own(connection, options, inbox));
        Self { asks }
    }

    pub(crate) async fn write<T, E, W>(
        &self,
        doing: &'static str,
        durability: Durability,
        effect: Effect,
        work: W,
    ) -> Result<T, E>
    where
        W: for<'c> FnOnce(&'c mut AnyConnection) -> Work<'c, T, E> + Send + 'static,
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let job = Caller { doing, effect, work: Some(work), result: None, answer };
        self.asks.send(Ask::Write(Box::new(job), durability)).await.map_err(|_| StoreError::Closed)?;
        answered.await.unwrap_or_else(|_| Err(StoreError::Closed.into()))
    }

    pub(crate) async fn close(&self) {
        let (closed, done) = oneshot::channel();
        if self.asks.send(Ask::Close(closed)).await.is_ok() {
            let _ = done.await;
        }
    }
}

/// One caller's write.
trait Job: Send {
    fn effect(&self) -> Effect;

    /// Does the work and returns whether to keep it.
    fn run<'c>(
        &'c mut self,
        connection: &'c mut AnyConnection,
    ) -> Pin<Box<dyn Future<Output = bool> + Send + 'c>>;

    /// Answers the caller, once the outcome of the whole group is known.
    fn answer(self: Box<Self>, committed: Result<(), Cause>);
}

struct Caller<W, T, E> {
    doing: &'static str,
    effect: Effect,
    work: Option<W>,
    result: Option<Result<T, E>>,
    answer: oneshot::Sender<Result<T, E>>,
}

impl<W, T, E> Job for Caller<W, T, E>
where
    W: for<'c> FnOnce(&'c mut AnyConnection) -> Work<'c, T, E> + Send,
    T: Send,
    E: From<StoreError> + Send,
{
    fn effect(&self) -> Effect {
        self.effect
    }

    fn run<'c>(
        &'c mut self,
        connection: &'c mut AnyConnection,
    ) -> Pin<Box<dyn Future<Output = bool> + Send + 'c>> {
        Box::pin(async move {
            let work = self.work.take().expect("a job runs once");
            let result = work(connection).await;
            self.result.insert(result).is_ok()
        })
    }

    fn answer(self: Box<Self>, committed: Result<(), Cause>) {
        let result = match (self.result, committed) {
            (Some(Err(own)), _) => Err(own),
            (Some(done), Ok(())) => done,
            (_, Err(cause)) => Err(StoreError::from_cause(cause, self.doing).into()),
            (None, Ok(())) => unreachable!("a group is committed after all of it ran"),
        };
        // The caller may have stopped waiting.
        let _ = self.answer.send(result);
    }
}

async fn own(connection: AnyConnection, options: AnyConnectOptions, mut inbox: mpsc::Receiver<Ask>) {
    let mut connection = Some(connection);
    let mut closed = None;
    while closed.is_none()
        && let Some(first) = inbox.recv().await
    {
        let mut group = Vec::new();
        let mut durability = Durability::Cached;
        let mut next = Some(first);
        while let Some(ask) = next {
            match ask {
                Ask::Write(job, its) => {
                    group.push(job);
                    durability = durability.max(its);
                }
                Ask::Close(done) => closed = Some(done),
            }
            let full = group.len() >= LARGEST_GROUP || closed.is_some();
            next = if full { None } else { inbox.try_recv().ok() };
        }
        if !group.is_empty() {
            // In its own task, so that a panic costs this group and not the writer. Without a connection, the
            // next group opens another.
            #[expect(clippy::disallowed_methods, reason = "awaited on the next line")]
            let written = tokio::spawn(write_group(connection.take(), options.clone(), group, durability));
            connection = written.await.ok().flatten();
        }
    }
    if let Some(open) = connection
        && let Err(error) = open.close().await
    {
        tracing::warn!("could not close the database cleanly: {error}");
    }
    if let Some(done) = closed {
        let _ = done.send(());
    }
}

/// Writes the group, answers its callers, and returns the connection if it is usable; otherwise it is
/// dropped, which rolls back.
async fn write_group(
    connection: Option<AnyConnection>,
    options: AnyConnectOptions,
    mut group: Vec<Box<dyn Job>>,
    durability: Durability,
) -> Option<AnyConnection> {
    let opened = match connection {
        Some(open) => Ok(open),
        None => connect_sqlite_writer(&options).await,
    };
    let written = match opened {
        Ok(mut open) => {
            let committed = deferred::collecting(commit_group(&mut open, &mut group, durability));
            committed.await.map(|()| open)
        }
        Err(error) => Err(error),
    };
    let (connection, committed) = match written {
        Ok(open) => (Some(open), Ok(())),
        Err(error) => (None, Err(Cause::new(error))),
    };
    for job in group {
        job.answer(committed.clone());
    }
    connection
}

async fn commit_group(
    connection: &mut AnyConnection,
    group: &mut [Box<dyn Job>],
    durability: Durability,
) -> Result<(), sqlx::Error> {
    // In one message: the connection has its own thread, and each message to it costs two switches.
    let begin = match durability {
        Durability::Cached => "PRAGMA synchronous = NORMAL; BEGIN IMMEDIATE",
        Durability::Synced => "PRAGMA synchronous = FULL; BEGIN IMMEDIATE",
    };
    run(connection, begin).await?;
    let mut anything_kept = false;
    // A single write needs no savepoint.
    let alone = group.len() == 1;
    for job in group {
        let (events, saved) = (deferred::count(), !alone && job.effect() == Effect::Rows);
        if saved {
            run(connection, "SAVEPOINT caller").await?;
        }
        if job.run(connection).await {
            anything_kept = true;
            if saved {
                run(connection, "RELEASE caller").await?;
            }
            continue;
        }
        deferred::forget_from(events);
        if saved {
            // Fails if the error has ended the whole transaction (for example, a full disk); then the whole
            // group fails.
            run(connection, "ROLLBACK TO caller; RELEASE caller").await?;
        }
    }
    deferred::write(connection).await?;
    run(connection, if anything_kept { "COMMIT" } else { "ROLLBACK" }).await
}

async fn run(connection: &mut AnyConnection, sql: &'static str) -> Result<(), sqlx::Error> {
    sqlx::query(sql).execute(connection).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::sqlite_options;
    use crate::error::Doing;

    async fn writer(directory: &tempfile::TempDir) -> Writer {
        sqlx::any::install_default_drivers();
        let path = directory.path().join("test.db");
        std::fs::File::create(&path).unwrap();
        let options = sqlite_options(&path).unwrap();
        let connection = connect_sqlite_writer(&options).await.unwrap();
        let writer = Writer::start(connection, options);
        execute(&writer, "CREATE TABLE notes (note TEXT NOT NULL UNIQUE)").await.unwrap();
        writer
    }

    async fn execute(writer: &Writer, sql: &'static str) -> Result<(), StoreError> {
        let work = writer.write("test", Durability::Synced, Effect::Rows, move |connection| {
            Box::pin(async move { run(connection, sql).await.doing("test") })
        });
        work.await
    }

    #[tokio::test]
    async fn a_panic_costs_its_own_group_only() {
        let directory = tempfile::tempdir().unwrap();
        let writer = writer(&directory).await;
        let panics = writer.write("test", Durability::Synced, Effect::Rows, |_| {
            Box::pin(async { panic!("a panic on purpose") })
        });
        let answer: Result<(), StoreError> = panics.await;
        assert!(matches!(answer, Err(StoreError::Closed)), "{answer:?}");
        execute(&writer, "INSERT INTO notes VALUES ('after')").await.unwrap();
    }

    #[tokio::test]
    async fn when_the_transaction_is_lost_the_whole_group_hears_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let writer = writer(&directory).await;
        // Polled together, the three become one group; the second ends the transaction under it, as
        // SQLite itself does when the disk is full.
        let (first, second, third) = tokio::join!(
            execute(&writer, "INSERT INTO notes VALUES ('first')"),
            execute(&writer, "ROLLBACK"),
            execute(&writer, "INSERT INTO notes VALUES ('third')"),
        );
        assert!(first.is_err() && second.is_err() && third.is_err(), "{first:?} {second:?} {third:?}");
        // None of it stayed, and the writer continues.
        execute(&writer, "INSERT INTO notes VALUES ('first')").await.unwrap();
        execute(&writer, "INSERT INTO notes VALUES ('third')").await.unwrap();
    }
}
