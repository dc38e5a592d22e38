//! The run of a task: from the task to a pull request.
//!
//! ```text
//! prepare ─ sandbox ─ clone ─ setup ─ branch ─ agent ⟲ hear ─ [check] ─ commit ─ push ─ pull ─ finish
//!                                               └───── correct ⟲ ─────┘
//! ```
//!
//! A turn that is ended at a budget or by a person is followed by a [`standstill`].
//!
//! A [`Workshop`] implements the steps; this file has their order, their results and their undo. A run is one
//! attempt: messages that arrive after its end start the next.

mod standstill;
mod workshop;

use std::sync::Arc;
use std::time::Duration;

use coffer_core::agent::{AgentReport, Reported, Said};
use coffer_core::{AgentId, Answer, RunId, SandboxId, StepCode, TaskId};
use coffer_store::{AttemptNote, ProjectScope, Store, TaskMessage, Unwinding};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::workshop::Settled;
use crate::{Kind, Run, Start, StepError, Stop};

pub use workshop::{AgentTurn, Brief, Checked, Ending, Halt, Pull, Turn, Workshop};

/// Most turns of an attempt, before a person must start the next.
const MOST_TURNS: usize = 20;
/// Time in addition to an agent's own limit, for the work before and after.
const MARGIN: Duration = Duration::from_secs(120);
const LONG: Duration = Duration::from_secs(1800);
/// For a sandbox, with the template that may have to be built first.
pub(crate) const SANDBOX_WITHIN: Duration = Duration::from_secs(2 * 3600);
/// For the set-up of a repository, with a sandbox for it and the snapshot of what it leaves.
const SET_UP_WITHIN: Duration = Duration::from_secs(2400);
/// How often an agent may correct its work after the check failed, if the task does not say it.
pub const USUAL_CHECK_TRIES: i64 = 3;
/// Most of what was said to earlier attempts, in bytes, and of their last words.
const MOST_EARLIER: usize = 16 * 1024;
const LONGEST_WORDS: usize = 2 * 1024;
const PAGE: u32 = 200;
/// How long an attempt waits for a person, unless the settings say it.
pub const USUAL_ANSWER_WITHIN: Duration = Duration::from_secs(24 * 3600);

/// Executes runs of tasks with a workshop.
pub struct TaskKind<W: ?Sized> {
    store: Store,
    workshop: Arc<W>,
    answer_within: Duration,
}

impl<W: ?Sized> std::fmt::Debug for TaskKind<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TaskKind")
    }
}

/// The input of a task's run, as the store writes it.
#[derive(Debug, Deserialize)]
struct Asked {
    task: TaskId,
    attempt: i64,
    agent: Option<AgentId>,
    model: Option<String>,
}

/// Messages, as stored in the journal.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Heard {
    last: i64,
    /// Before messages had authors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    texts: Vec<String>,
    #[serde(default)]
    said: Vec<Said>,
    /// Who interrupted the turn in the moment of its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    interrupted: Option<String>,
}

impl Heard {
    fn of(last: i64, texts: Vec<String>, said: Vec<Said>) -> Self {
        let old = texts.into_iter().map(|body| Said { body, ..Said::default() });
        Self { last, texts: Vec::new(), said: old.chain(said).collect(), interrupted: None }
    }
}

impl<W: Workshop + ?Sized> TaskKind<W> {
    pub fn new(store: Store, workshop: Arc<W>) -> Self {
        Self { store, workshop, answer_within: USUAL_ANSWER_WITHIN }
    }

    /// Attempts wait this long for a person.
    #[must_use]
    pub const fn answer_within(mut self, time: Duration) -> Self {
        self.answer_within = time;
        self
    }

    /// Reads the task at the start of the run.
    async fn prepare(
        &self,
        run: RunId,
        project: coffer_core::ProjectId,
        asked: &Asked,
    ) -> Result<Brief, StepError> {
        let scope = self.store.operator().acting_for(project, None);
        let task = self.store.task(&scope, asked.task).await?;
        let task = task.ok_or_else(|| StepError::fatal(StepCode::TaskGone, "the task was deleted"))?;
        let agent =
            asked.agent.ok_or_else(|| StepError::fatal(StepCode::NoAgent, "the task has no agent"))?;
        let definition = self.store.agent(&scope, agent).await?;
        let definition =
            definition.ok_or_else(|| StepError::fatal(StepCode::NoAgent, "the task's agent was removed"))?;
        let definition = definition.definition.ok_or_else(|| {
            StepError::fatal(
                StepCode::AgentUndefined,
                "the task's agent has no definition, or one that is sealed",
            )
        })?;
        let repository = task
            .repository
            .ok_or_else(|| StepError::fatal(StepCode::NoRepository, "the task has no repository"))?;
        let heard = self.hear(run, asked.task, 0).await?;
        let before = self.before(&scope, run, asked.task).await?;
        Ok(Brief {
            run,
            project,
            task: asked.task,
            attempt: asked.attempt,
            title: task.title,
            description: task.description,
            heard_to: heard.last,
            messages: Vec::new(),
            said: heard.said,
            earlier: before.said,
            ended: before.ended,
            last_words: before.last_words,
            repository,
            base_branch: task.base_branch,
            branch: task.branch.unwrap_or_else(|| format!("task-{}", asked.task)),
            agent,
            agent_timeout_s: definition.limits.timeout_s.unwrap_or(3600),
            model: asked.model.clone(),
            check_command: task.check_command,
            budget_nanos: task.budget_nanos,
            pull_url: task.pull_url,
            issue: task.issue,
            check_tries: task.check_tries.unwrap_or(USUAL_CHECK_TRIES),
        })
    }

    /// What earlier attempts were told, and how the last of them ended.
    async fn before(&self, scope: &ProjectScope, run: RunId, task: TaskId) -> Result<Before, StepError> {
        let attempts = self.store.attempts(scope, task).await?;
        let Some(last) = attempts.iter().rev().find(|attempt| attempt.run != run) else {
            return Ok(Before::default());
        };
        let ended = last.error.as_ref().map(|error| format!("{}: {}", error.code, error.message));
        let mut said = Vec::new();
        let mut after = 0;
        loop {
            let page = self.store.task_messages(scope, task, after, PAGE).await?;
            let Some(newest) = page.last() else { break };
            after = newest.number;
            said.extend(page.iter().filter(|message| message.run.is_some_and(|got| got != run)).map(said_of));
            // The newest are repeated.
            let mut size: usize = said.iter().map(|message| message.body.len() + 200).sum();
            let surplus = said.iter().take_while(|message| {
                let is_over = size > MOST_EARLIER;
                size = size.saturating_sub(message.body.len() + 200);
                is_over
            });
            let surplus = surplus.count();
            said.drain(..surplus);
        }
        let last_words = last.note.summary.as_ref().map(|words| cut(words, LONGEST_WORDS));
        Ok(Before { said, ended: ended.map(|ended| cut(&ended, LONGEST_WORDS)), last_words })
    }

    /// What was said, and whether a person interrupted the turn in the moment of its end.
    async fn hear_after(&self, run: RunId, task: TaskId, after: i64, turn: i64) -> Result<Heard, StepError> {
        let interrupted = self.store.interrupted_by(run, turn).await?;
        if interrupted.is_some() {
            return Ok(Heard { interrupted, ..Heard::of(after, Vec::new(), Vec::new()) });
        }
        self.hear(run, task, after).await
    }

    async fn hear(&self, run: RunId, task: TaskId, after: i64) -> Result<Heard, StepError> {
        let said = self.store.hear_task(run, task, after).await?;
        let last = said.last().map_or(after, |message| message.number);
        Ok(Heard::of(last, Vec::new(), said.iter().map(said_of).collect()))
    }

    async fn note(&self, start: Start, note: AttemptNote) -> Result<(), StepError> {
        Ok(self.store.note_attempt(start.run, start.fence, note).await?)
    }
}

/// How the work ends before its agent was done.
#[derive(Debug)]
enum Closing {
    /// With a draft of a pull request, for this reason.
    Draft(String),
    /// On its branch, by this person.
    Stopped(String),
}

impl Closing {
    /// `None` if the agent goes on.
    fn of(settled: &Settled) -> Option<Self> {
        let by = settled.by.as_deref().unwrap_or("a person");
        match settled.answer {
            Answer::Raise | Answer::GoOn => None,
            Answer::Finish => Some(Self::Draft(format!("{by} finished it before its agent was done"))),
            Answer::Unanswered => Some(Self::Draft("nobody answered in time what it waited for".into())),
            Answer::Stop => Some(Self::Stopped(format!("{by} stopped the attempt"))),
        }
    }

    fn why(&self) -> &str {
        let (Self::Draft(why) | Self::Stopped(why)) = self;
        why
    }
}

/// What happened before this attempt.
#[derive(Debug, Default)]
struct Before {
    said: Vec<Said>,
    ended: Option<String>,
    last_words: Option<String>,
}

fn cut(text: &str, most: usize) -> String {
    text[..text.floor_char_boundary(most)].to_string()
}

fn said_of(message: &TaskMessage) -> Said {
    let about = message.about.as_ref();
    Said {
        number: message.number,
        author: message.author.clone(),
        body: message.body.clone(),
        file: about.and_then(|about| about["file"].as_str()).map(String::from),
        line: about.and_then(|about| about["line"].as_u64()),
        at_ms: message.at_ms,
    }
}

/// A message, as an agent of a competition reads it.
pub(crate) fn told(message: &TaskMessage) -> String {
    said_of(message).plain()
}

/// Why pushed work has no pull request, and where it is.
fn unchecked(checked: &Checked, command: &str, branch: &str, pull_url: Option<&str>) -> String {
    let command: String = command.chars().take(200).collect();
    let how = match checked.exit_code {
        Some(code) => format!("failed with exit code {code}"),
        None => "did not end in time".to_string(),
    };
    match pull_url {
        None => format!("`{command}` {how}: the work is on branch `{branch}`, without a pull request"),
        Some(url) => {
            format!("`{command}` {how}: the work is on branch `{branch}`, and {url} was not updated")
        }
    }
}

fn tokens(count: u64) -> Option<i64> {
    Some(i64::try_from(count).unwrap_or(i64::MAX))
}

/// Usage and summary of this turn and those before it; also while it is in progress.
pub fn so_far(before: &AgentReport, turn: &AgentReport) -> AttemptNote {
    let all = sum(before, turn);
    AttemptNote {
        summary: turn.summary.clone(),
        input_tokens: all.tokens.and_then(|spent| tokens(spent.input)),
        output_tokens: all.tokens.and_then(|spent| tokens(spent.output)),
        cost_nanos: all.cost_nanos,
        ..AttemptNote::default()
    }
}

fn both(before: Option<Reported>, turn: Option<Reported>) -> Option<Reported> {
    match (before, turn) {
        (Some(before), Some(turn)) => Some(before.and(turn)),
        (before, turn) => before.or(turn),
    }
}

fn sum(before: &AgentReport, turn: &AgentReport) -> AgentReport {
    let tokens = match (before.tokens, turn.tokens) {
        (Some(mut one), Some(other)) => {
            one.input = one.input.saturating_add(other.input);
            one.cached = one.cached.saturating_add(other.cached);
            one.output = one.output.saturating_add(other.output);
            Some(one)
        }
        (one, other) => one.or(other),
    };
    let cost_nanos = match (before.cost_nanos, turn.cost_nanos) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (one, other) => one.or(other),
    };
    AgentReport { tokens, cost_nanos, ..turn.clone() }
}

#[async_trait::async_trait]
impl<W: Workshop + ?Sized> Kind for TaskKind<W> {
    fn name(&self) -> &'static str {
        "task"
    }

    async fn execute(&self, run: &mut Run) -> Result<Value, Stop> {
        let asked: Asked = run.input()?;
        let (id, project) = (run.id(), run.project());
        let mut brief: Brief =
            run.step("prepare").nothing_to_undo().run(|_| self.prepare(id, project, &asked)).await?;
        let shop = &*self.workshop;

        let sandbox: SandboxId = {
            let (workshop, kept) = (self.workshop.clone(), brief.clone());
            let work = |start: Start| {
                let brief = &brief;
                async move {
                    let sandbox = shop.ensure_sandbox(brief, start).await?;
                    let note = AttemptNote { sandbox: Some(sandbox), ..AttemptNote::default() };
                    self.note(start, note).await?;
                    Ok(sandbox)
                }
            };
            // Also if it is unknown whether there is a sandbox: the workshop looks for it by the attempt.
            let undo = move |made: Option<SandboxId>, why: Unwinding| {
                let (workshop, brief) = (workshop.clone(), kept.clone());
                let how = match why {
                    Unwinding::Cancelled => Ending::Cancelled,
                    Unwinding::Failed => Ending::Failed,
                };
                async move { workshop.finish(&brief, made, how).await }
            };
            run.step("sandbox").within(SANDBOX_WITHIN).undo(undo).run(work).await?
        };
        let base: String =
            run.step("clone").nothing_to_undo().within(LONG).run(|_| shop.clone(&brief, sandbox)).await?;
        // The undo of the sandbox removes what it made.
        let prepared: Option<SandboxId> = run
            .step("setup")
            .nothing_to_undo()
            .within(SET_UP_WITHIN)
            .run(|start: Start| {
                let brief = &brief;
                async move {
                    let prepared = shop.set_up(brief, sandbox, start).await?;
                    if prepared.is_some() {
                        self.note(start, AttemptNote { sandbox: prepared, ..AttemptNote::default() }).await?;
                    }
                    Ok(prepared)
                }
            })
            .await?;
        let sandbox = prepared.unwrap_or(sandbox);
        let branch: String = run
            .step("branch")
            .nothing_to_undo()
            .run(|start: Start| {
                let (brief, base) = (&brief, &base);
                async move {
                    let branch = shop.branch(brief, sandbox, base).await?;
                    let note = AttemptNote { branch: Some(branch.clone()), ..AttemptNote::default() };
                    self.note(start, note).await?;
                    Ok(branch)
                }
            })
            .await?;

        let within = Duration::from_secs(u64::try_from(brief.agent_timeout_s).unwrap_or(3600)) + MARGIN;
        let mut report = AgentReport::default();
        let mut reported: Option<Reported> = None;
        let mut heard = Heard::of(brief.heard_to, brief.messages.clone(), brief.said.clone());
        let mut number = 0;
        let mut checked: Option<Checked> = None;
        // Corrections so far. Each check and each turn is a step: a server that takes over knows which of them were.
        let mut corrections = 0;
        let mut gave_up = None;
        // Why the turn before was ended before its time, and why the work goes no further.
        let mut halted: Option<Halt> = None;
        let mut closing: Option<Closing> = None;
        'work: loop {
            loop {
                number += 1;
                let turns = i64::try_from(number).unwrap_or(i64::MAX);
                let turn: AgentTurn = run
                    .step(format!("agent-{number}"))
                    .nothing_to_undo()
                    .within(within)
                    .run(|start: Start| {
                        let failed = checked.as_ref().map(|checked| (checked, corrections));
                        let (said, before, halted) = (&heard.said, &report, halted.as_ref());
                        let turn = Turn { number, said, before, failed, halted };
                        let brief = &brief;
                        async move {
                            let done = shop.run_agent(brief, sandbox, turn, start).await?;
                            let reported = both(reported, done.reported);
                            let (execution, model) = (done.execution, done.report.model.clone());
                            let note = so_far(turn.before, &done.report);
                            self.note(start, AttemptNote { execution, model, reported, ..note }).await?;
                            Ok(done)
                        }
                    })
                    .await?;
                report = sum(&report, &turn.report);
                reported = both(reported, turn.reported);
                halted = turn.halted.clone();
                let mut last = heard.last;
                if halted.is_none()
                    && let Some(why) = turn.failed()
                {
                    if corrections == 0 {
                        return Err(Stop::failed(why.code, why.message));
                    }
                    // The work before it is pushed, as after a check that failed for the last time.
                    gave_up = Some(why.message);
                    break 'work;
                }
                // Messages that it would not get are left to the next attempt.
                if number >= MOST_TURNS {
                    if halted.is_some() {
                        closing = Some(Closing::Draft("it had its last turn".into()));
                        break 'work;
                    }
                    break;
                }
                if halted.is_none() {
                    let found: Heard = run
                        .step(format!("hear-{number}"))
                        .nothing_to_undo()
                        .run(|_| self.hear_after(id, asked.task, last, turns))
                        .await?;
                    halted = found.interrupted.clone().map(|by| Halt::Interrupted { by });
                    heard = Heard::of(found.last, found.texts, found.said);
                    if halted.is_none() {
                        if heard.said.is_empty() {
                            break;
                        }
                        continue;
                    }
                    last = heard.last;
                }
                let Some(halt) = &halted else { continue };
                let settled = self.stand_still(run, &brief, sandbox, turns, halt).await?;
                closing = Closing::of(&settled);
                if closing.is_some() {
                    break 'work;
                }
                if settled.budget_nanos.is_some() {
                    brief.budget_nanos = settled.budget_nanos;
                }
                let found: Heard = run
                    .step(format!("heed-{number}"))
                    .nothing_to_undo()
                    .run(|_| self.hear(id, asked.task, last))
                    .await?;
                heard = Heard::of(found.last, found.texts, found.said);
            }
            let Some(command) = &brief.check_command else { break };
            let step =
                if corrections == 0 { "check".to_string() } else { format!("check-{}", corrections + 1) };
            let result: Checked = run
                .step(step.clone())
                .nothing_to_undo()
                .within(LONG)
                .run(|_| shop.check(&brief, sandbox, command, &step, number))
                .await?;
            let is_over = result.passed || corrections >= brief.check_tries || number >= MOST_TURNS;
            checked = Some(result);
            if is_over {
                break;
            }
            corrections += 1;
        }
        if closing.is_some() {
            // It was for the work as it was before.
            checked = None;
        }
        let failed = checked.as_ref().filter(|checked| !checked.passed);
        // A push to the branch of a pull request changes the pull request.
        let is_unwanted = failed.is_some() || matches!(closing, Some(Closing::Stopped(_)));
        let aside = brief
            .pull_url
            .as_ref()
            .filter(|_| is_unwanted)
            .map(|_| format!("{branch}-attempt-{}", brief.attempt));
        let commit: Option<String> = run
            .step("commit")
            .nothing_to_undo()
            .run(|start: Start| {
                let (brief, branch, base) = (&brief, &branch, &base);
                let is_aside = aside.is_some();
                async move {
                    let commit = shop.commit(brief, sandbox, branch, base).await?;
                    // The task's commit is that of its pull request.
                    let noted = commit.clone().filter(|_| !is_aside);
                    self.note(start, AttemptNote { commit: noted, ..AttemptNote::default() }).await?;
                    Ok(commit)
                }
            })
            .await?;
        let Some(commit) = commit else {
            if let Some(Closing::Stopped(by)) = &closing {
                return Err(Stop::failed(StepCode::Stopped, format!("{by}: nothing was changed")));
            }
            return Err(Stop::failed(StepCode::NoChanges, "the agent ended without changing anything"));
        };
        // Under another name: code that looks for `push` wants the commit of the task's branch.
        let (step, onto) = match &aside {
            Some(aside) => ("push-aside", aside),
            None => ("push", &branch),
        };
        run.step(step).stays().within(LONG).run(|_| shop.push(&brief, sandbox, onto, &commit)).await?;
        if let (Some(failed), Some(command)) = (failed, &brief.check_command) {
            let mut why = unchecked(failed, command, onto, brief.pull_url.as_deref());
            if let Some(gave_up) = gave_up {
                why = format!("{why}; {gave_up} when it should correct that");
            } else if corrections > 0 {
                let times = if corrections == 1 {
                    "1 correction".into()
                } else {
                    format!("{corrections} corrections")
                };
                why = format!("{why}, after {times}");
            }
            return Err(Stop::failed(StepCode::CheckFailed, why));
        }
        if let Some(Closing::Stopped(by)) = &closing {
            run.step("finish")
                .stays()
                .within(LONG)
                .run(|_| shop.finish(&brief, Some(sandbox), Ending::Done))
                .await?;
            let why = format!("{by}: the work is on branch `{onto}`, without a pull request");
            return Err(Stop::failed(StepCode::Stopped, why));
        }
        let draft = closing.as_ref().map(Closing::why);
        let pull: Pull = run
            .step("pull")
            .stays()
            .run(|start: Start| {
                let (brief, branch, commit) = (&brief, &branch, &commit);
                let (checked, report) = (checked.as_ref(), &report);
                async move {
                    let pull = shop.ensure_pull(brief, branch, commit, checked, report, draft).await?;
                    self.note(
                        start,
                        AttemptNote { pull_url: Some(pull.url.clone()), ..AttemptNote::default() },
                    )
                    .await?;
                    Ok(pull)
                }
            })
            .await?;
        run.step("finish")
            .stays()
            .within(LONG)
            .run(|_| shop.finish(&brief, Some(sandbox), Ending::Done))
            .await?;
        Ok(json!({ "branch": branch, "commit": commit, "pull": pull, "checked": checked }))
    }
}
