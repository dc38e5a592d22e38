//! What attempts at tasks came to is kept: the diff of the pull request, and where that is.
//!
//! Follows the log for runs that ended well, with a position of its own in the database: an attempt's artifacts are
//! kept first and its event is passed then, so a server that dies in between keeps them again, which finds them.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::{RunId, TaskId};
use coffer_forge::Forges;
use coffer_store::{Event, LogReader, ProjectBehind, ProjectScope, RepositoryRow, Store, StoreError};
use futures_util::{StreamExt as _, stream};
use tokio_util::sync::CancellationToken;

use crate::artifacts::Artifacts;
use crate::clock::now_ms;

const PAGE: u32 = 200;
const PROJECTS: u32 = 200;
/// Nobody waits for it.
const LOOK: Duration = Duration::from_secs(1);
/// For the forge to tell what changed.
const PATIENCE: Duration = Duration::from_secs(45);
/// Projects that are looked at together.
const AT_ONCE: usize = 8;
/// For the server that keeps the repository to keep the diff too; then the place of the pull request alone is kept.
const LEFT_TO_OTHERS_MS: i64 = 15 * 60 * 1000;

/// Where results come from and go to.
#[derive(Debug)]
pub(crate) struct Results {
    pub(crate) store: Store,
    pub(crate) forges: Arc<Forges>,
    pub(crate) artifacts: Arc<Artifacts>,
}

impl Results {
    /// Follows until `stop`.
    pub(crate) async fn follow(self, stop: CancellationToken) {
        loop {
            let looked = tokio::select! {
                () = stop.cancelled() => return,
                looked = self.look() => looked,
            };
            match looked {
                Ok(()) => {}
                Err(StoreError::Closed) => return,
                Err(error) => tracing::warn!("results are kept later: {}", crate::fleet::chain(&error)),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    async fn look(&self) -> Result<(), StoreError> {
        let operator = self.store.operator();
        loop {
            let behind = self.store.projects_behind(&operator, LogReader::Results, PROJECTS).await?;
            let mut steps = stream::iter(behind).map(|project| self.step(project)).buffer_unordered(AT_ONCE);
            let mut has_moved = false;
            while let Some(moved) = steps.next().await {
                has_moved |= moved?;
            }
            if !has_moved {
                return Ok(());
            }
        }
    }

    /// Goes on to the next attempt of a project that ended, and keeps that: with a slow forge the others come between.
    /// Says whether it went on.
    async fn step(&self, behind: ProjectBehind) -> Result<bool, StoreError> {
        let operator = self.store.operator();
        let scope = operator.acting_for(behind.project, None);
        let events = self.store.events(&scope, behind.position, PAGE).await?;
        let ended = events.iter().find(|event| event.kind == "run.ended" && event.payload["state"] == "done");
        let to = match ended {
            None => events.last().map_or(behind.newest, |last| last.sequence),
            Some(event) => match self.keep(&scope, event).await? {
                true => event.sequence,
                // The server that has the repository is the one to pass it.
                false => event.sequence - 1,
            },
        };
        if to <= behind.position {
            return Ok(false);
        }
        self.store.pass_events(&operator, LogReader::Results, behind, to).await?;
        Ok(true)
    }

    /// Keeps what the attempt came to that ended, if it was one. Says no where that is left to another server.
    async fn keep(&self, scope: &ProjectScope, event: &Event) -> Result<bool, StoreError> {
        let run = event.payload["run"].as_str().and_then(|run| run.parse::<RunId>().ok());
        let (Some(run), Ok(task)) = (run, event.subject.parse::<TaskId>()) else { return Ok(true) };
        let attempts = self.store.attempts(scope, task).await?;
        let Some(attempt) = attempts.into_iter().find(|attempt| attempt.run == run) else { return Ok(true) };
        let Some(url) = attempt.note.pull_url else { return Ok(true) };
        let repository = self.store.task(scope, task).await?.and_then(|task| task.repository);
        let row = match repository {
            Some(repository) => self.store.repository(scope, &repository).await?,
            None => None,
        };
        let is_elsewhere = row.as_ref().is_some_and(|row| self.store.repository_elsewhere(row).is_some());
        if is_elsewhere && now_ms().saturating_sub(event.at_ms) < LEFT_TO_OTHERS_MS {
            return Ok(false);
        }
        let diff = match row.filter(|_| !is_elsewhere) {
            Some(row) => self.diff(scope, &row, &url).await,
            None => None,
        };
        self.artifacts.keep_of_run(scope, run, diff.as_deref(), Some(&url)).await;
        Ok(true)
    }

    /// What the pull request changes, where the forge tells.
    async fn diff(&self, scope: &ProjectScope, repository: &RepositoryRow, url: &str) -> Option<String> {
        let number: i64 = url.rsplit('/').next().and_then(|number| number.parse().ok())?;
        let ask = async { self.forges.open(scope, repository, "results").await?.diff(number).await };
        match tokio::time::timeout(PATIENCE, ask).await {
            Ok(Ok(diff)) => Some(diff.patch),
            Ok(Err(error)) => {
                tracing::warn!("the diff of {url} is not kept: {error}");
                None
            }
            Err(_) => {
                tracing::warn!("the diff of {url} is not kept: the forge took too long");
                None
            }
        }
    }
}
