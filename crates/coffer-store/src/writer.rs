//! The one task that writes to SQLite.
//!
//! A commit costs a disk flush, whether it carries one write or a hundred. So the task takes all that
//! has queued, runs each caller's work in a savepoint, commits once and answers afterwards:
//!
//! ```text
//! BEGIN IMMEDIATE ─ SAVEPOINT ─ work ─ RELEASE ─ SAVEPOINT ─ work fails ─ ROLLBACK TO ─ … ─ COMMIT ─ answers
//! ```
//!
//! Under load the groups grow by themselves, since writes queue while a commit is under way.

use std::future::Future;
use std::pin::Pin;

use sqlx::any::AnyConnectOptions;
use sqlx::{AnyConnection, Connection};
use tokio::sync::{mpsc, oneshot};

use crate::database::{Work, connect_sqlite_writer};
use crate::error::{Cause, StoreError};

/// Writes that may wait; a caller beyond waits for room.
const QUEUE: usize = 1024;
/// Bounds how long the first of a group waits for its answer.
const LARGEST_GROUP: usize = 256;

#[derive(Debug)]
pub(crate) struct Writer {
    asks: mpsc::Sender<Ask>,
}

enum Ask {
    Write(Box<dyn Job>),
    Close(oneshot::Sender<()>),
}

impl Writer {
    pub(crate) fn start(connection: AnyConnection, options: AnyConnectOptions) -> Self {
        let (asks, inbox) = mpsc::channel(QUEUE);
        tokio::spawn(own(connection, options, inbox));
        Self { asks }
    }

    pub(crate) async fn write<T, E, W>(&self, doing: &'static str, work: W) -> Result<T, E>
    where
        W: for<'c> FnOnce(&'c mut AnyConnection) -> Work<'c, T, E> + Send + 'static,
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let job = Caller { doing, work: Some(work), result: None, answer };
        self.asks.send(Ask::Write(Box::new(job))).await.map_err(|_| StoreError::Closed)?;
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
    /// Does the work and says whether it is to be kept.
    fn run<'c>(
        &'c mut self,
        connection: &'c mut AnyConnection,
    ) -> Pin<Box<dyn Future<Output = bool> + Send + 'c>>;

    /// Tells the caller, once the fate of the whole group is known.
    fn answer(self: Box<Self>, committed: Result<(), Cause>);
}

struct Caller<W, T, E> {
    doing: &'static str,
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
        let mut next = Some(first);
        while let Some(ask) = next {
            match ask {
                Ask::Write(job) => group.push(job),
                Ask::Close(done) => closed = Some(done),
            }
            let full = group.len() >= LARGEST_GROUP || closed.is_some();
            next = if full { None } else { inbox.try_recv().ok() };
        }
        if group.is_empty() {
            continue;
        }
        let written = async {
            let mut open = match connection.take() {
                Some(open) => open,
                None => connect_sqlite_writer(&options).await?,
            };
            write_group(&mut open, &mut group).await?;
            // Reached only in good order: a connection that failed is dropped, which rolls back, and
            // the next group opens another.
            connection = Some(open);
            Ok(())
        };
        let committed = written.await.map_err(Cause::new);
        for job in group {
            job.answer(committed.clone());
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

async fn write_group(connection: &mut AnyConnection, group: &mut [Box<dyn Job>]) -> Result<(), sqlx::Error> {
    run(connection, "BEGIN IMMEDIATE").await?;
    let mut anything_kept = false;
    if let [only] = group {
        // Alone, its savepoint would be the transaction.
        anything_kept = only.run(connection).await;
    } else {
        for job in group {
            run(connection, "SAVEPOINT caller").await?;
            if job.run(connection).await {
                anything_kept = true;
            } else {
                // Fails when the work's error has ended the whole transaction (disk full, say), and
                // then the whole group must hear of it.
                run(connection, "ROLLBACK TO caller").await?;
            }
            run(connection, "RELEASE caller").await?;
        }
    }
    run(connection, if anything_kept { "COMMIT" } else { "ROLLBACK" }).await
}

async fn run(connection: &mut AnyConnection, sql: &'static str) -> Result<(), sqlx::Error> {
    sqlx::query(sql).execute(connection).await.map(drop)
}
