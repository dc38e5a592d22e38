//! Stores the results of attempts and competitions: the diff and the address of the pull request.
//!
//! Follows the log for runs that ended well, with its own position in the database. A run's artifacts are
//! stored before the position moves, so a server that dies in between stores them again, which is idempotent.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::event::{Event, RunEnded};
use coffer_core::{AgentId, CompetitionId, RunId, RunState, TaskId};
use coffer_forge::Forges;
use coffer_store::{EventRow, LogReader, ProjectBehind, ProjectScope, RepositoryRow, Store, StoreError};
use futures_util::{StreamExt as _, stream};
use tokio_util::sync::CancellationToken;

use crate::artifacts::Artifacts;
use coffer_core::clock::now_ms;
use coffer_fleet::Follower;
use coffer_fleet::output::Patterns;

const PAGE: u32 = 200;
const PROJECTS: u32 = 200;
/// No client waits for it.
const LOOK: Duration = Duration::from_secs(1);
/// How long to wait for the forge's diff.
const PATIENCE: Duration = Duration::from_secs(45);
/// Projects handled concurrently.
const AT_ONCE: usize = 8;
/// How long to leave the diff to the server that stores the repository; then only the address of the pull
/// request is stored.
const LEFT_TO_OTHERS_MS: i64 = 15 * 60 * 1000;

/// Follows runs and stores their results.
#[derive(Debug)]
pub struct Results {
    pub store: Store,
    pub forges: Arc<Forges>,
    pub artifacts: Arc<Artifacts>,
}

/// The result of a run.
struct RunResult {
    pull_url: String,
    repository: Option<String>,
    /// The agent that did the work.
    agent: Option<AgentId>,
}

impl Results {
    /// Follows until `stop`.
    pub async fn follow(self, stop: CancellationToken) {
        let mut follower = Follower::new("could not store results of runs, trying again", LOOK, stop.clone());
        loop {
            let looked = tokio::select! {
                () = stop.cancelled() => return,
                looked = self.look() => looked,
            };
            if !follower.again(looked).await {
                return;
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

    /// Handles the next ended run of a project; projects take turns, so a slow forge does not block others.
    /// Returns whether it advanced.
    async fn step(&self, behind: ProjectBehind) -> Result<bool, StoreError> {
        let operator = self.store.operator();
        let scope = operator.acting_for(behind.project, None);
        let events = self.store.events(&scope, behind.position, PAGE).await?;
        let done = |row: &EventRow| match row.event()? {
            Event::RunEnded(RunEnded { run, state: RunState::Done, .. }) => Some(run),
            _ => None,
        };
        let ended = events.iter().find_map(|row| Some((row, done(row)?)));
        let to = match ended {
            None => events.last().map_or(behind.newest, |last| last.sequence),
            Some((event, run)) => match self.keep(&scope, event, run).await? {
                true => event.sequence,
                // The server that has the repository must handle it.
                false => event.sequence - 1,
            },
        };
        if to <= behind.position {
            return Ok(false);
        }
        self.store.pass_events(&operator, LogReader::Results, behind, to).await?;
        Ok(true)
    }

    /// Stores the result of an ended run. Returns false if another server must do it.
    async fn keep(&self, scope: &ProjectScope, event: &EventRow, run: RunId) -> Result<bool, StoreError> {
        let Some(result) = self.result(scope, run, &event.subject).await? else { return Ok(true) };
        let row = match &result.repository {
            Some(repository) => self.store.repository(scope, repository).await?,
            None => None,
        };
        let is_elsewhere = row.as_ref().is_some_and(|row| self.store.repository_elsewhere(row).is_some());
        if is_elsewhere && now_ms().saturating_sub(event.at_ms) < LEFT_TO_OTHERS_MS {
            return Ok(false);
        }
        let diff = match row.filter(|_| !is_elsewhere) {
            Some(row) => self.diff(scope, &row, &result.pull_url).await,
            None => None,
        };
        // The agent's own values are redacted too, in addition to the project's secrets.
        let agent = match result.agent {
            Some(agent) => self.store.agent(scope, agent).await?,
            None => None,
        };
        let definition = agent.and_then(|agent| agent.definition);
        let values = definition.iter().flat_map(|definition| definition.hidden_values());
        let hidden = Patterns::new(&values.collect::<Vec<_>>());
        let diff = diff.map(|diff| hidden.redact(&diff));
        self.artifacts.keep_of_run(scope, run, diff.as_deref(), Some(&result.pull_url)).await;
        Ok(true)
    }

    /// The result of a run about `subject`, if it was an attempt at a task or a competition.
    async fn result(
        &self,
        scope: &ProjectScope,
        run: RunId,
        subject: &str,
    ) -> Result<Option<RunResult>, StoreError> {
        if let Ok(task) = subject.parse::<TaskId>() {
            let attempts = self.store.attempts(scope, task).await?;
            if let Some(attempt) = attempts.into_iter().find(|attempt| attempt.run == run) {
                let Some(pull_url) = attempt.note.pull_url else { return Ok(None) };
                let agent = match attempt.competition {
                    Some(competition) => self.winner(scope, competition).await?,
                    None => attempt.agent,
                };
                let repository = self.store.task(scope, task).await?.and_then(|task| task.repository);
                return Ok(Some(RunResult { pull_url, repository, agent }));
            }
        }
        let Ok(competition) = subject.parse::<CompetitionId>() else { return Ok(None) };
        let found = self.store.competition(scope, competition).await?.filter(|found| found.run == run);
        let Some(found) = found else { return Ok(None) };
        let Some(pull_url) = found.pull_url else { return Ok(None) };
        let agent = self.winner(scope, competition).await?;
        Ok(Some(RunResult { pull_url, repository: found.terms.repository, agent }))
    }

    /// The agent that won a competition.
    async fn winner(
        &self,
        scope: &ProjectScope,
        competition: CompetitionId,
    ) -> Result<Option<AgentId>, StoreError> {
        let winner = self.store.competition(scope, competition).await?.and_then(|found| found.winner);
        let entries = self.store.competition_entries(scope, competition).await?;
        Ok(entries.into_iter().find(|entry| Some(entry.number) == winner).map(|entry| entry.agent))
    }

    /// The diff of the pull request, if the forge returns it.
    async fn diff(&self, scope: &ProjectScope, repository: &RepositoryRow, url: &str) -> Option<String> {
        let number: i64 = url.rsplit('/').next().and_then(|number| number.parse().ok())?;
        let ask = async { self.forges.open(scope, repository, "results").await?.diff(number).await };
        match tokio::time::timeout(PATIENCE, ask).await {
            Ok(Ok(diff)) => Some(diff.patch),
            Ok(Err(error)) => {
                tracing::warn!("could not store the diff of {url}: {error}");
                None
            }
            Err(_) => {
                tracing::warn!("could not store the diff of {url}: the forge took too long");
                None
            }
        }
    }
}
