//! The run of a competition: one sandbox is prepared and forked, an agent works in each fork, one wins.
//!
//! ```text
//! prepare ─ sandbox ─ clone ─ [setup] ─ fork ─ race ─ judge ─ [ask ─ pick ─ settle] ─ push ─ pull ─ finish
//! ```
//!
//! An [`Arena`] implements the steps. All agents work within the one step `race`: the progress of each is in
//! its own row, so that a server that takes over the run continues with the unfinished ones. See
//! `docs/design/0011-competing-forks.md`.

mod arena;
mod kind;
mod race;

use std::time::Duration;

use coffer_core::compete::{CompetitionState, Contender, EntryState, Rule, best, rank};
use coffer_core::{CompetitionId, ProjectId, RunId, SandboxId, StepCode, TaskId};
use coffer_store::{
    AttemptNote, COMPETITION_PICKED, CompetitionNote, EntryNote, EntryRow, ProjectScope, Unwinding,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::task::{Pull, SANDBOX_WITHIN, told};
use crate::{Kind, Run, Start, StepError, Stop};

pub use arena::{Arena, Base, Changes, EntryBrief, Fork, Lane, News, RaceBrief, Raced, Tell};
pub use kind::CompeteKind;
use kind::LONG;

/// The kind of runs that are competitions.
pub const KIND: &str = "compete";
/// How often, and at what intervals, to retry starting the winner's sandbox while there is no room: for a
/// day.
const PUSHES: u32 = 48;
const ROOM_PAUSE: Duration = Duration::from_secs(1800);

/// The input of the run, as the store writes it.
#[derive(Debug, Deserialize)]
struct Asked {
    competition: CompetitionId,
    #[serde(default)]
    task: Option<TaskId>,
    /// The number of the task's attempt.
    #[serde(default)]
    attempt: Option<i64>,
}

/// The winner, if the rule decides.
#[derive(Debug, Serialize, Deserialize)]
struct Judged {
    winner: Option<i64>,
    /// Why there is no winner, if all failed.
    failed: Option<String>,
}

/// The entry to publish.
#[derive(Debug, Serialize, Deserialize)]
struct Winner {
    number: i64,
    sandbox: SandboxId,
    commit: String,
    reasons: Vec<String>,
}

impl<A: Arena + ?Sized> CompeteKind<A> {
    fn scope(&self, project: ProjectId) -> ProjectScope {
        self.store.operator().acting_for(project, None)
    }

    /// Reads the competition at the start of the run.
    async fn prepare(&self, run: RunId, project: ProjectId, asked: &Asked) -> Result<RaceBrief, StepError> {
        let scope = self.scope(project);
        let row = self.store.competition(&scope, asked.competition).await?;
        let row =
            row.ok_or_else(|| StepError::fatal(StepCode::CompetitionGone, "the competition was deleted"))?;
        let terms = row.terms;
        let repository = terms
            .repository
            .ok_or_else(|| StepError::fatal(StepCode::NoRepository, "the competition has no repository"))?;
        let messages = match asked.task {
            None => Vec::new(),
            Some(task) => self.store.hear_task(run, task, 0).await?.iter().map(told).collect(),
        };
        let mut entries = Vec::new();
        for entry in self.store.competition_entries(&scope, asked.competition).await? {
            entries.push(self.entry(&scope, asked, entry).await?);
        }
        // One for all of them.
        if terms.template.is_some() || terms.source.is_some() {
            entries.iter_mut().for_each(|entry| entry.template = None);
        }
        Ok(RaceBrief {
            run,
            project,
            competition: row.id,
            task: row.task,
            title: terms.title,
            prompt: terms.prompt,
            messages,
            repository,
            base_branch: terms.base_branch,
            source: terms.source,
            template: terms.template,
            prepare_command: terms.prepare_command,
            check_command: terms.check_command,
            rule: terms.rule,
            budget_nanos: terms.budget_nanos,
            decide_within_s: terms.decide_within_s,
            entries,
        })
    }

    async fn entry(
        &self,
        scope: &ProjectScope,
        asked: &Asked,
        row: EntryRow,
    ) -> Result<EntryBrief, StepError> {
        let agent = self.store.agent(scope, row.agent).await?;
        // An agent without a definition fails on its own, when it should work.
        let definition = agent.and_then(|agent| agent.definition);
        let timeout = definition.as_ref().and_then(|definition| definition.limits.timeout_s);
        let branch = match (asked.task, asked.attempt) {
            // Do not continue on the branch of an earlier attempt.
            (Some(task), Some(attempt)) if attempt > 1 => format!("task-{task}-{attempt}-{}", row.number),
            (Some(task), _) => format!("task-{task}-{}", row.number),
            (None, _) => format!("fork-{}-{}", asked.competition, row.number),
        };
        Ok(EntryBrief {
            number: row.number,
            label: row.label,
            agent: row.agent,
            agent_timeout_s: timeout.unwrap_or(3600),
            model: row.model,
            prompt: row.prompt,
            budget_nanos: row.budget_nanos,
            template: definition.and_then(|definition| definition.template),
            branch,
        })
    }

    async fn note(&self, start: Start, note: CompetitionNote) -> Result<(), StepError> {
        self.store.note_competition(start.run, start.fence, note).await.map_err(StepError::from)
    }

    async fn note_entry(&self, start: Start, number: i64, note: EntryNote) -> Result<(), StepError> {
        self.store.note_entry(start.run, start.fence, number, note).await.map_err(StepError::from)
    }

    /// Records the total cost of each fork: it grew after its entry was done.
    async fn note_costs(&self, brief: &RaceBrief, forks: &[Fork], start: Start) -> Result<(), StepError> {
        for (entry, fork) in brief.entries.iter().zip(forks) {
            let Ok(sandbox) = fork else { continue };
            match self.arena.spent(brief, *sandbox).await {
                Ok(spent) => {
                    let note = EntryNote { cost_nanos: Some(spent), ..EntryNote::default() };
                    self.note_entry(start, entry.number, note).await?;
                }
                // Keep the earlier figure.
                Err(error) => {
                    tracing::warn!("the cost of entry {} may be too low: {error}", entry.number);
                }
            }
        }
        Ok(())
    }

    async fn enter(&self, start: Start, state: CompetitionState) -> Result<(), StepError> {
        self.note(start, CompetitionNote { state: Some(state), ..CompetitionNote::default() }).await
    }

    /// Creates the forks, and records them with their entries.
    async fn fork(&self, brief: &RaceBrief, source: SandboxId, start: Start) -> Result<Vec<Fork>, StepError> {
        let forks = self.arena.fork(brief, source).await?;
        for (entry, fork) in brief.entries.iter().zip(&forks) {
            let note = match fork {
                Ok(sandbox) => EntryNote {
                    state: Some(EntryState::Forked),
                    sandbox: Some(*sandbox),
                    branch: Some(entry.branch.clone()),
                    ..EntryNote::default()
                },
                Err(why) => EntryNote {
                    state: Some(EntryState::Failed),
                    error: Some(why.clone()),
                    ..EntryNote::default()
                },
            };
            self.note_entry(start, entry.number, note).await?;
        }
        self.arena.leave_source(brief, source).await?;
        Ok(forks)
    }

    /// Ranks all entries, and returns the winner if the rule decides.
    async fn judge(&self, brief: &RaceBrief, start: Start) -> Result<Judged, StepError> {
        self.enter(start, CompetitionState::Judging).await?;
        let entries = self.store.competition_entries(&self.scope(brief.project), brief.competition).await?;
        let contenders: Vec<Contender> = entries.iter().map(contender).collect();
        let placings = rank(&contenders);
        self.store.rank_entries(start.run, start.fence, placings).await.map_err(StepError::from)?;
        let winner = best(&contenders).filter(|_| brief.rule == Rule::Best);
        let failed = entries.iter().all(|entry| !entry.can_win()).then(|| {
            let why = |one: &Contender| {
                let why = one.failure.as_deref().unwrap_or("it changed nothing");
                format!("entry {}: {why}", one.number)
            };
            let whys: Vec<String> = contenders.iter().map(why).collect();
            format!("no entry can win: {}", whys.join("; "))
        });
        Ok(Judged { winner, failed })
    }

    /// Pauses the entries that could win while a person decides; returns the deadline.
    async fn ask(&self, brief: &RaceBrief, start: Start) -> Result<i64, StepError> {
        let entries = self.store.competition_entries(&self.scope(brief.project), brief.competition).await?;
        let mut all_rest = true;
        for entry in entries.iter().filter(|entry| entry.can_win()) {
            if let Some(sandbox) = entry.sandbox {
                all_rest &= self.rest(brief, entry.number, sandbox, start).await?;
            }
        }
        if !all_rest && let Some(why) = self.judge(brief, start).await?.failed {
            return Err(StepError::fatal(StepCode::AllFailed, why));
        }
        let until_ms = self.clock.now().saturating_add(brief.decide_within_s.saturating_mul(1000));
        let state = Some(CompetitionState::Waiting);
        self.note(start, CompetitionNote { state, decide_by_ms: Some(until_ms), ..Default::default() })
            .await?;
        Ok(until_ms)
    }

    /// What to publish of the winner.
    async fn crown(
        &self,
        brief: &RaceBrief,
        winner: i64,
        by_rule: bool,
        start: Start,
    ) -> Result<Winner, StepError> {
        let entries = self.store.competition_entries(&self.scope(brief.project), brief.competition).await?;
        let entry = entries.into_iter().find(|entry| entry.number == winner && entry.can_win());
        let gone = || StepError::fatal(StepCode::NoWinner, format!("entry {winner} has nothing to publish"));
        let entry = entry.ok_or_else(gone)?;
        let (Some(sandbox), Some(commit)) = (entry.sandbox, entry.commit) else { return Err(gone()) };
        let note = CompetitionNote {
            state: Some(CompetitionState::Publishing),
            winner: by_rule.then(|| (winner, "rule".into())),
            ..CompetitionNote::default()
        };
        self.note(start, note).await?;
        // If this is an attempt at a task, the winner's results become the task's.
        let attempt = AttemptNote {
            sandbox: Some(sandbox),
            execution: entry.execution,
            branch: entry.branch,
            commit: Some(commit.clone()),
            summary: entry.summary,
            input_tokens: entry.input_tokens,
            output_tokens: entry.output_tokens,
            cost_nanos: entry.agent_cost_nanos,
            ..AttemptNote::default()
        };
        self.store.note_attempt(start.run, start.fence, attempt).await.map_err(StepError::from)?;
        Ok(Winner { number: winner, sandbox, commit, reasons: entry.reasons })
    }

    /// Pushes the winner's work. If the project is full, the pick stays valid: the run waits until there is
    /// room.
    async fn push(&self, run: &mut Run, lane: Lane<'_>, commit: &str) -> Result<(), Stop> {
        let arena = &*self.arena;
        let mut number = 1;
        loop {
            let name = if number == 1 { "push".to_string() } else { format!("push-{number}") };
            let work = |_: Start| async move {
                match arena.push(lane, commit).await {
                    Ok(()) => Ok(None),
                    Err(error) if error.code == StepCode::NoRoom => Ok(Some(error.message)),
                    Err(error) => Err(error),
                }
            };
            let full: Option<String> = run.step(name).stays().within(LONG).run(work).await?;
            let Some(why) = full else { return Ok(()) };
            if number == PUSHES {
                return Err(Stop::failed(StepCode::NoRoom, why));
            }
            run.sleep(&format!("room-{number}"), ROOM_PAUSE).await?;
            number += 1;
        }
    }
}

/// An entry, as the ranking sees it.
fn contender(entry: &EntryRow) -> Contender {
    let failure = (!entry.can_win()).then(|| match &entry.error {
        Some(error) => error.message.clone(),
        None => "it changed nothing".into(),
    });
    Contender {
        number: entry.number,
        failure,
        passed: entry.check.map(|check| check.passed),
        diff: entry.diff,
        duration_ms: entry.duration_ms,
        cost_nanos: entry.whole_cost_nanos(),
    }
}

#[async_trait::async_trait]
impl<A: Arena + ?Sized> Kind for CompeteKind<A> {
    fn name(&self) -> &'static str {
        KIND
    }

    async fn execute(&self, run: &mut Run) -> Result<Value, Stop> {
        let asked: Asked = run.input()?;
        let (id, project) = (run.id(), run.project());
        let brief: RaceBrief =
            run.step("prepare").nothing_to_undo().run(|_| self.prepare(id, project, &asked)).await?;
        let arena = &*self.arena;

        let source: SandboxId = {
            let (kept, all) = (self.arena.clone(), brief.clone());
            let work = |start: Start| {
                let brief = &brief;
                async move {
                    let source = arena.ensure_source(brief, start).await?;
                    let note = CompetitionNote { sandbox: Some(source), ..CompetitionNote::default() };
                    self.note(start, note).await?;
                    Ok(source)
                }
            };
            // Covers the forks too, whichever exist by then; their results are recorded.
            let undo = move |_: Option<SandboxId>, _: Unwinding| {
                let (arena, brief) = (kept.clone(), all.clone());
                async move { arena.finish(&brief).await }
            };
            run.step("sandbox").within(SANDBOX_WITHIN).undo(undo).run(work).await?
        };
        let base: Base = run
            .step("clone")
            .nothing_to_undo()
            .within(LONG)
            .run(|start: Start| {
                let brief = &brief;
                async move {
                    let base = arena.clone(brief, source).await?;
                    let base_commit = Some(base.commit.clone());
                    self.note(start, CompetitionNote { base_commit, ..CompetitionNote::default() }).await?;
                    Ok(base)
                }
            })
            .await?;
        if let Some(command) = &brief.prepare_command {
            let step = run.step("setup").nothing_to_undo().within(LONG);
            let prepared = step.run(|_| arena.prepare(&brief, source, command)).await?;
            if !prepared.passed {
                let code =
                    prepared.exit_code.map_or("no exit code".into(), |code| format!("exit code {code}"));
                return Err(Stop::failed(
                    StepCode::PrepareFailed,
                    format!("the prepare command ended with {code}"),
                ));
            }
        }
        let forks: Vec<Fork> = run
            .step("fork")
            .nothing_to_undo()
            .within(LONG)
            .run(|start: Start| self.fork(&brief, source, start))
            .await?;

        let () = run
            .step("race")
            .nothing_to_undo()
            .within(race::longest(&brief))
            .run(|start: Start| self.race(&brief, &base, &forks, start))
            .await?;
        let judged: Judged = run.step("judge").stays().run(|start: Start| self.judge(&brief, start)).await?;
        if let Some(why) = judged.failed {
            return Err(Stop::failed(StepCode::AllFailed, why));
        }
        let by_rule = judged.winner.is_some();
        let winner = match judged.winner {
            Some(winner) => winner,
            None => {
                let until: i64 =
                    run.step("ask").stays().within(LONG).run(|start: Start| self.ask(&brief, start)).await?;
                run.wait_for("pick", COMPETITION_PICKED, until).await?;
                let settled: Option<i64> = run
                    .step("settle")
                    .stays()
                    .run(|start: Start| async move {
                        self.store.settle_competition(start.run, start.fence).await.map_err(StepError::from)
                    })
                    .await?;
                settled.ok_or_else(|| Stop::failed(StepCode::Undecided, "no winner was picked in time"))?
            }
        };

        let winner: Winner =
            run.step("crown").stays().run(|start: Start| self.crown(&brief, winner, by_rule, start)).await?;
        let entry = brief.entries.iter().find(|entry| entry.number == winner.number);
        let entry =
            entry.ok_or_else(|| Stop::failed(StepCode::NoWinner, "the winner is not one of the entries"))?;
        let lane = Lane { brief: &brief, entry, sandbox: winner.sandbox, base: &base };
        self.push(run, lane, &winner.commit).await?;
        let pull: Pull = run
            .step("pull")
            .stays()
            .within(LONG)
            .run(|start: Start| {
                let reasons = &winner.reasons;
                async move {
                    let pull = arena.ensure_pull(lane, reasons).await?;
                    let pull_url = Some(pull.url.clone());
                    let attempt = AttemptNote { pull_url: pull_url.clone(), ..AttemptNote::default() };
                    self.store
                        .note_attempt(start.run, start.fence, attempt)
                        .await
                        .map_err(StepError::from)?;
                    self.note(start, CompetitionNote { pull_url, ..CompetitionNote::default() }).await?;
                    Ok(pull)
                }
            })
            .await?;
        let finish = |start: Start| {
            let (brief, forks) = (&brief, &forks);
            async move {
                arena.finish(brief).await?;
                self.note_costs(brief, forks, start).await
            }
        };
        let () = run.step("finish").stays().within(LONG).run(finish).await?;
        Ok(json!({ "winner": winner.number, "branch": entry.branch, "commit": winner.commit, "pull": pull }))
    }
}
