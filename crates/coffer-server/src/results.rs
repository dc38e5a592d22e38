//! What attempts at tasks came to is kept: the diff of the pull request, and where that is.
//!
//! Follows the log for runs that ended well, with a position of its own in the database: an attempt's artifacts are
//! kept first and its event is passed then, so a server that dies in between keeps them again, which finds them.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::{RunId, TaskId};
use coffer_forge::Forges;
use coffer_store::{Event, LogReader, ProjectBehind, ProjectScope, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::artifacts::Artifacts;

const PAGE: u32 = 200;
const PROJECTS: u32 = 200;
/// Nobody waits for it.
const LOOK: Duration = Duration::from_secs(1);
/// For the forge to tell what changed.
const PATIENCE: Duration = Duration::from_secs(45);

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
            if behind.is_empty() {
                return Ok(());
            }
            for project in behind {
                self.step(project).await?;
            }
        }
    }

    async fn step(&self, behind: ProjectBehind) -> Result<(), StoreError> {
        let operator = self.store.operator();
        let scope = operator.acting_for(behind.project, None);
        let events = self.store.events(&scope, behind.position, PAGE).await?;
        let to = events.last().map_or(behind.newest, |last| last.sequence);
        for event in
            events.iter().filter(|event| event.kind == "run.ended" && event.payload["state"] == "done")
        {
            self.keep(&scope, event).await?;
        }
        self.store.pass_events(&operator, LogReader::Results, behind, to).await.map(drop)
    }

    /// Keeps what the attempt came to that ended, if it was one.
    async fn keep(&self, scope: &ProjectScope, event: &Event) -> Result<(), StoreError> {
        let run = event.payload["run"].as_str().and_then(|run| run.parse::<RunId>().ok());
        let (Some(run), Ok(task)) = (run, event.subject.parse::<TaskId>()) else { return Ok(()) };
        let attempts = self.store.attempts(scope, task).await?;
        let Some(attempt) = attempts.into_iter().find(|attempt| attempt.run == run) else { return Ok(()) };
        let Some(url) = attempt.note.pull_url else { return Ok(()) };
        let diff = self.diff(scope, task, &url).await?;
        self.artifacts.keep_of_run(scope, run, diff.as_deref(), Some(&url)).await;
        Ok(())
    }

    /// What the pull request changes, where the forge tells.
    async fn diff(
        &self,
        scope: &ProjectScope,
        task: TaskId,
        url: &str,
    ) -> Result<Option<String>, StoreError> {
        let repository = self.store.task(scope, task).await?.and_then(|task| task.repository);
        let number = url.rsplit('/').next().and_then(|number| number.parse().ok());
        let (Some(repository), Some(number)) = (repository, number) else { return Ok(None) };
        let Some(row) = self.store.repository(scope, &repository).await? else { return Ok(None) };
        if self.store.repository_elsewhere(&row).is_some() {
            return Ok(None);
        }
        let ask = async { self.forges.open(scope, &row, "results").await?.diff(number).await };
        match tokio::time::timeout(PATIENCE, ask).await {
            Ok(Ok(diff)) => Ok(Some(diff.patch)),
            Ok(Err(error)) => {
                tracing::warn!("the diff of {url} is not kept: {error}");
                Ok(None)
            }
            Err(_) => {
                tracing::warn!("the diff of {url} is not kept: the forge took too long");
                Ok(None)
            }
        }
    }
}
