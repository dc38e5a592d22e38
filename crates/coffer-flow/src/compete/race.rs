//! The step in which all agents work concurrently.
//!
//! The results of an entry are written to its row as they arrive, and a finished entry is not started again:
//! so the step can be dropped anywhere and run again by another server.

use std::future::Future;
use std::time::Duration;

use coffer_core::agent::AgentReport;
use coffer_core::compete::{CompetitionState, EntryState};
use coffer_core::{Code, SandboxId, StepCode};
use coffer_store::{CheckNote, EntryNote, EntryPatch, EntryRow, RunFailure};
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::arena::{Arena, Base, EntryBrief, Fork, Lane, News, RaceBrief};
use super::kind::{CompeteKind, LONG};
use crate::step::attempt;
use crate::{Start, StepError};

/// Time in addition to an agent's own limit, for the work before and after.
const MARGIN: Duration = Duration::from_secs(180);
const STOP_WITHIN: Duration = Duration::from_secs(30);

fn bound(entry: &EntryBrief) -> Duration {
    Duration::from_secs(u64::try_from(entry.agent_timeout_s).unwrap_or(3600)) + LONG + MARGIN
}

/// How long all of them may take.
pub(super) fn longest(brief: &RaceBrief) -> Duration {
    brief.entries.iter().map(bound).max().unwrap_or_default() + MARGIN
}

/// The usage and summary of an agent, also while it works.
fn so_far(report: &AgentReport) -> EntryNote {
    let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    EntryNote {
        agent_cost_nanos: report.cost_nanos,
        input_tokens: report.tokens.map(|tokens| count(tokens.input)),
        output_tokens: report.tokens.map(|tokens| count(tokens.output)),
        summary: report.summary.clone(),
        ..EntryNote::default()
    }
}

/// Why an entry did not continue.
enum Out {
    /// Only this entry fails: the others continue.
    Entry(RunFailure),
    /// Nothing can be written: another server has the run, or the database is unreachable.
    All(StepError),
}

impl<A: Arena + ?Sized> CompeteKind<A> {
    /// Runs every unfinished entry.
    pub(super) async fn race(
        &self,
        brief: &RaceBrief,
        base: &Base,
        forks: &[Fork],
        start: Start,
    ) -> Result<(), StepError> {
        self.enter(start, CompetitionState::Working).await?;
        let rows = self.store.competition_entries(&self.scope(brief.project), brief.competition).await?;
        let spent = CancellationToken::new();
        let lanes = brief.entries.iter().zip(forks).filter_map(|(entry, fork)| {
            let sandbox = *fork.as_ref().ok()?;
            let row = rows.iter().find(|row| row.number == entry.number)?;
            (!row.state.is_over()).then_some((Lane { brief, entry, sandbox, base }, row))
        });
        let all = join_all(lanes.map(|(lane, row)| self.lane(lane, row, start, &spent)));
        let all = tokio::select! {
            all = all => all,
            () = self.watch_budget(brief, forks, &spent) => Vec::new(),
            () = self.keep_forks(brief, forks) => Vec::new(),
        };
        all.into_iter().collect()
    }

    /// Runs one entry; its failure is recorded with it.
    async fn lane(
        &self,
        lane: Lane<'_>,
        row: &EntryRow,
        start: Start,
        spent: &CancellationToken,
    ) -> Result<(), StepError> {
        let number = lane.entry.number;
        // A panic or a hang of one entry must not affect the others.
        let work = attempt(bound(lane.entry), self.work(lane, row, start).map(Ok));
        let done = tokio::select! {
            biased;
            done = work => match done {
                Ok(done) => done,
                Err(error) => Err(Out::Entry(error.failure())),
            },
            () = spent.cancelled() => {
                let message = "the budget of the competition is spent";
                Err(Out::Entry(RunFailure::new(Code::BudgetExceeded, message)))
            }
        };
        let failure = match done {
            Ok(()) => return Ok(()),
            Err(Out::All(error)) => return Err(error),
            Err(Out::Entry(failure)) => failure,
        };
        // Stop its agent, so that its files no longer change.
        if let Err(error) = attempt(STOP_WITHIN, self.arena.stop(lane)).await {
            tracing::debug!("could not stop the agent of entry {number}: {error}");
        }
        // Store its changes for people, although it has failed.
        let changes = attempt(MARGIN, self.arena.changes(lane)).await.ok();
        let cost = self.arena.spent(lane.brief, lane.sandbox).await.ok();
        if let Err(error) = attempt(MARGIN, self.arena.give_back(lane.brief, lane.sandbox)).await {
            // It ends with the competition.
            tracing::warn!("could not destroy the sandbox of entry {number} yet: {error}");
        }
        let note = EntryNote {
            state: Some(EntryState::Failed),
            error: Some(failure),
            diff: changes.as_ref().map(|changes| changes.diff),
            patch: changes.map(|changes| EntryPatch { text: changes.patch, is_cut: changes.is_cut }),
            cost_nanos: cost,
            ..EntryNote::default()
        };
        self.note_entry(start, number, note).await
    }

    /// Agent, commit, check, in that order: files that checks leave are not part of the work.
    async fn work(&self, lane: Lane<'_>, row: &EntryRow, start: Start) -> Result<(), Out> {
        let number = lane.entry.number;
        if row.commit.is_none() {
            self.tell(start, number, EntryNote { state: Some(EntryState::Working), ..EntryNote::default() })
                .await?;
            let tell = move |news: News| {
                async move {
                    let note = match news {
                        News::Begun(execution) => {
                            EntryNote { execution: Some(execution), ..EntryNote::default() }
                        }
                        News::Progress(doing, report) => EntryNote { doing: Some(doing), ..so_far(&report) },
                    };
                    // The end of its work records the same again.
                    let _ = self.note_entry(start, number, note).await;
                }
                .boxed()
            };
            let raced = self.again(|| self.arena.run_agent(lane, &tell)).await?;
            let (turn, report) = (&raced.turn, &raced.turn.report);
            let note = EntryNote {
                execution: turn.execution,
                exit_code: turn.exit_code,
                duration_ms: raced.duration_ms,
                ..so_far(report)
            };
            self.tell(start, number, note).await?;
            if let Some(why) = turn.failed() {
                return Err(Out::Entry(why));
            }
            let spent = self.again(|| self.arena.spent(lane.brief, lane.sandbox)).await?;
            let whole = spent.saturating_add(report.cost_nanos.unwrap_or(0));
            if lane.entry.budget_nanos.is_some_and(|budget| whole > budget) {
                return Err(Out::Entry(RunFailure::new(
                    Code::BudgetExceeded,
                    "the budget of the entry is spent",
                )));
            }
            let commit = self.again(|| self.arena.commit(lane)).await?;
            let commit = commit.ok_or_else(|| {
                Out::Entry(RunFailure::new(StepCode::NoChanges, "the agent ended without changing anything"))
            })?;
            let changes = self.again(|| self.arena.changes(lane)).await?;
            let note = EntryNote {
                state: Some(EntryState::Checking),
                commit: Some(commit),
                diff: Some(changes.diff),
                patch: Some(EntryPatch { text: changes.patch, is_cut: changes.is_cut }),
                ..EntryNote::default()
            };
            self.tell(start, number, note).await?;
        }
        let check = match &lane.brief.check_command {
            None => None,
            Some(command) => {
                let checked = self.again(|| self.arena.check(lane, command)).await?;
                Some(CheckNote {
                    passed: checked.passed,
                    exit_code: checked.exit_code,
                    execution: checked.execution,
                })
            }
        };
        let cost_nanos = self.arena.spent(lane.brief, lane.sandbox).await.ok();
        let state = Some(EntryState::Done);
        self.tell(start, number, EntryNote { state, check, cost_nanos, ..EntryNote::default() }).await
    }

    async fn tell(&self, start: Start, number: i64, note: EntryNote) -> Result<(), Out> {
        self.note_entry(start, number, note).await.map_err(Out::All)
    }

    /// Runs an operation, with retries.
    async fn again<T, F>(&self, mut work: impl FnMut() -> F) -> Result<T, Out>
    where
        F: Future<Output = Result<T, StepError>>,
    {
        let mut failures = 0;
        loop {
            let error = match work().await {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            failures += 1;
            if !error.transient || failures >= self.tries.most {
                return Err(Out::Entry(error.failure()));
            }
            tokio::time::sleep(self.tries.pause(failures)).await;
        }
    }

    /// Pauses a sandbox with its files while a person decides. If that fails, only its entry is eliminated;
    /// returns whether it succeeded.
    pub(super) async fn rest(
        &self,
        brief: &RaceBrief,
        number: i64,
        sandbox: SandboxId,
        start: Start,
    ) -> Result<bool, StepError> {
        let failure = match self.again(|| self.arena.rest(brief, sandbox)).await {
            Ok(()) => return Ok(true),
            Err(Out::All(error)) => return Err(error),
            Err(Out::Entry(failure)) => failure,
        };
        let state = Some(EntryState::Failed);
        self.note_entry(start, number, EntryNote { state, error: Some(failure), ..EntryNote::default() })
            .await?;
        Ok(false)
    }

    /// Extends the deadlines of all forks that may still win, also of those that wait for slower ones; never
    /// returns.
    async fn keep_forks(&self, brief: &RaceBrief, forks: &[Fork]) {
        let scope = self.scope(brief.project);
        loop {
            tokio::time::sleep(self.keep_every).await;
            let rows = self.store.competition_entries(&scope, brief.competition).await.unwrap_or_default();
            for (entry, fork) in brief.entries.iter().zip(forks) {
                let is_out =
                    rows.iter().any(|row| row.number == entry.number && row.state == EntryState::Failed);
                if let Some(sandbox) = fork.as_ref().ok().filter(|_| !is_out) {
                    // The next step that needs the sandbox notices if it is gone.
                    let _ = self.arena.keep(brief, *sandbox).await;
                }
            }
        }
    }

    /// Signals when the competition's budget is spent; never returns.
    async fn watch_budget(&self, brief: &RaceBrief, forks: &[Fork], spent: &CancellationToken) {
        let Some(budget) = brief.budget_nanos else { return std::future::pending().await };
        let scope = self.scope(brief.project);
        while !spent.is_cancelled() {
            tokio::time::sleep(self.watch_every).await;
            let mut sum = 0i64;
            for sandbox in forks.iter().filter_map(|fork| fork.as_ref().ok()) {
                // A cost that cannot be read now is counted next time.
                sum = sum.saturating_add(self.arena.spent(brief, *sandbox).await.unwrap_or(0));
            }
            let rows = self.store.competition_entries(&scope, brief.competition).await.unwrap_or_default();
            let agents = rows.iter().filter_map(|row| row.agent_cost_nanos);
            if agents.fold(sum, i64::saturating_add) > budget {
                spent.cancel();
            }
        }
        std::future::pending().await
    }
}
