//! The steps of an attempt at a task.

use std::collections::BTreeMap;
use std::sync::Arc;

use coffer_core::agent::login_file::is_file;
use coffer_core::agent::{AgentDefinition, AgentProgress, AgentReport, FailedCheck, Job, Talk};
use coffer_core::forge::StatusState;
use coffer_core::{Code, RunId, SandboxId, StepCode};
use coffer_flow::task::{AgentTurn, Brief, Checked, Ending, Halt, Pull, Turn, Workshop, so_far};
use coffer_flow::{Start, StepError};
use coffer_store::{Attempt, AttemptNote, ProjectScope, TranscriptOf, TurnPlace};
use futures_util::FutureExt as _;

use super::agent::amount;
use super::heard::Progress;
use super::repository::{branch_name, branch_order, expect, kept_pull, plain, push_order};
use super::setup::{SetUpOrder, prepared_key, setup_key};
use super::{AgentOrder, Place, PullText, SandboxOrder, Station, WorkDone, Workbench};

/// Works on tasks.
#[derive(Debug)]
pub struct TaskShop {
    bench: Arc<Workbench>,
}

/// A key of a run. Users' keys have no colon.
fn key(run: RunId, what: &str) -> String {
    format!("run:{run}/{what}")
}

fn metadata_of(brief: &Brief) -> BTreeMap<String, String> {
    let metadata = [("task", brief.task.to_string()), ("run", brief.run.to_string())];
    metadata.map(|(name, value)| (name.to_string(), value)).into()
}

impl TaskShop {
    pub fn new(bench: Arc<Workbench>) -> Self {
        Self { bench }
    }

    fn scope(&self, brief: &Brief) -> ProjectScope {
        self.bench.store.operator().acting_for(brief.project, None)
    }

    fn station(&self, brief: &Brief, sandbox: SandboxId) -> Station {
        Station { scope: self.scope(brief), sandbox, actor: format!("agent:{}", brief.agent) }
    }

    fn place(&self, brief: &Brief, turn: usize) -> TurnPlace {
        TurnPlace {
            of: TranscriptOf::Task(brief.task),
            run: brief.run,
            attempt: brief.attempt,
            turn: i64::try_from(turn).unwrap_or(i64::MAX),
        }
    }

    /// The attempts at the task, this one included.
    async fn attempts(&self, brief: &Brief) -> Result<Vec<Attempt>, StepError> {
        Ok(self.bench.store.attempts(&self.scope(brief), brief.task).await?)
    }

    async fn own_attempt(&self, brief: &Brief) -> Result<Option<Attempt>, StepError> {
        Ok(self.attempts(brief).await?.into_iter().find(|attempt| attempt.run == brief.run))
    }

    /// What this attempt's sandbox, and the next turn of its agent, may still cost. The record of this
    /// attempt may include a turn in progress, so the caller passes the cost of the turns before.
    async fn allowance(&self, brief: &Brief, before: &AgentReport) -> Result<Option<i64>, StepError> {
        let Some(budget) = brief.budget_nanos else { return Ok(None) };
        let mut left = budget.saturating_sub(before.cost_nanos.unwrap_or(0));
        for attempt in self.attempts(brief).await?.into_iter().filter(|attempt| attempt.run != brief.run) {
            let told = attempt.note.cost_nanos.unwrap_or(0);
            left = left.saturating_sub(told.max(self.called(brief, attempt.run).await?));
            if let Some(sandbox) = attempt.note.sandbox {
                left = left.saturating_sub(self.bench.cost_of(&self.scope(brief), sandbox).await?);
            }
        }
        Ok(Some(left))
    }

    /// The cost of an attempt's calls of models. An attempt that was cancelled has not noted all of it.
    async fn called(&self, brief: &Brief, run: RunId) -> Result<i64, StepError> {
        Ok(self.bench.store.run_model_cost(&self.scope(brief), run).await?)
    }

    /// Tells of the whole task's budget instead of what was left of it for a turn.
    fn of_the_task(&self, brief: &Brief, allowance: Option<i64>, halt: Halt) -> Halt {
        let (Some(budget), Some(left), Halt::Budget { is_others: false, spent_nanos: Some(spent), .. }) =
            (brief.budget_nanos, allowance, &halt)
        else {
            return halt;
        };
        let spent = budget.saturating_sub(left).saturating_add(*spent);
        let currency = &self.bench.fleet.usage.settings().currency;
        let message = format!(
            "the task has cost {} {currency} of its budget of {} {currency}: its agent has stopped, and waits for you to \
             raise the budget, finish or stop",
            amount(spent),
            amount(budget)
        );
        Halt::Budget { is_others: false, spent_nanos: Some(spent), budget_nanos: Some(budget), message }
    }

    /// Runs what the repository asks for; returns the sandbox with the result.
    async fn prepared(
        &self,
        brief: &Brief,
        at: &Station,
        definition: &AgentDefinition,
        start: Start,
    ) -> Result<Option<SandboxId>, StepError> {
        let run = format!("run:{}", brief.run);
        let metadata = metadata_of(brief);
        let doing =
            AgentProgress { message: Some("the repository's set-up".into()), ..AgentProgress::default() };
        let order = SetUpOrder {
            run: &run,
            repository: &brief.repository,
            clone: self.bench.clone_order(&brief.repository, brief.base_branch.as_deref())?,
            definition,
            task: brief.task,
            metadata: metadata.clone(),
            place: self.place(brief, 1),
            begins: &|| {
                self.note(start, AttemptNote { doing: Some(doing.clone()), ..AttemptNote::default() }).boxed()
            },
        };
        let Some(prepared) = self.bench.set_up(at, order).await? else { return Ok(None) };
        let order = SandboxOrder {
            key: &prepared_key(&run),
            agent: Some(brief.agent),
            task: Some(brief.task),
            template: definition.template.as_deref(),
            secrets: &self.bench.secrets_inside(definition),
            env: BTreeMap::new(),
            metadata,
            size: definition.size(self.bench.fleet.usual_limits()),
        };
        Ok(Some(self.bench.prepared_sandbox(&at.scope, order, prepared).await?))
    }

    async fn note(&self, start: Start, note: AttemptNote) -> Result<(), StepError> {
        Ok(self.bench.store.note_attempt(start.run, start.fence, note).await?)
    }
}

#[async_trait::async_trait]
impl Workshop for TaskShop {
    async fn ensure_sandbox(&self, brief: &Brief, start: Start) -> Result<SandboxId, StepError> {
        let scope = self.scope(brief);
        let left = self.allowance(brief, &AgentReport::default()).await?;
        if let (Some(left), Some(budget)) = (left, brief.budget_nanos)
            && left <= 0
        {
            let (spent, budget) = (amount(budget.saturating_sub(left)), amount(budget));
            let currency = &self.bench.fleet.usage.settings().currency;
            let message = format!(
                "earlier attempts cost {spent} {currency}, and the task's budget is {budget}: raise it and start again"
            );
            return Err(StepError::fatal(Code::BudgetExceeded, message));
        }
        let (_, definition) = self.bench.agent(&scope, brief.agent).await?;
        let tell = move |doing| {
            let note = AttemptNote { doing: Some(doing), ..AttemptNote::default() };
            async move {
                if let Err(error) = self.note(start, note).await {
                    tracing::debug!("could not publish progress of run {}: {error}", start.run);
                }
            }
            .boxed()
        };
        self.bench.await_template(&scope, definition.template.as_deref(), &tell).await?;
        self.bench.take_logins(&scope, &definition, brief.run, None, &tell).await?;
        let order = SandboxOrder {
            key: &key(brief.run, "sandbox"),
            agent: Some(brief.agent),
            task: Some(brief.task),
            template: definition.template.as_deref(),
            secrets: &self.bench.secrets_inside(&definition),
            env: BTreeMap::new(),
            metadata: metadata_of(brief),
            size: definition.size(self.bench.fleet.usual_limits()),
        };
        self.bench.ensure_sandbox(scope, order).await
    }

    async fn clone(&self, brief: &Brief, sandbox: SandboxId) -> Result<String, StepError> {
        let at = self.station(brief, sandbox);
        let order = self.bench.clone_order(&brief.repository, brief.base_branch.as_deref())?;
        let cloned = self.bench.with_git(&at, order, |git, session, order| async move {
            git.clone_to_work(&session, order).await
        });
        let (_, commit) = cloned.await?;
        Ok(commit.to_string())
    }

    async fn set_up(
        &self,
        brief: &Brief,
        sandbox: SandboxId,
        start: Start,
    ) -> Result<Option<SandboxId>, StepError> {
        let at = self.station(brief, sandbox);
        let run = format!("run:{}", brief.run);
        let (_, definition) = self.bench.agent(&at.scope, brief.agent).await?;
        // An attempt that began before there was this step has its agent at work in this sandbox.
        let has_begun = self.own_attempt(brief).await?.is_some_and(|own| own.note.execution.is_some());
        if definition.setup == Some(false) || has_begun {
            return Ok(None);
        }
        // A step that is repeated finds the sandbox that it made.
        let known = self.bench.find_sandbox(&at.scope, &prepared_key(&run)).await?;
        let made = match known {
            Some(known) => known,
            None => match self.prepared(brief, &at, &definition, start).await? {
                Some(made) => made,
                None => return Ok(None),
            },
        };
        let order = self.bench.clone_order(&brief.repository, brief.base_branch.as_deref())?;
        // It has the clone of the set-up, which this brings up to date.
        let there = self.station(brief, made);
        let cloned = self.bench.with_git(&there, order, |git, session, order| async move {
            git.clone_to_work(&session, order).await
        });
        cloned.await?;
        self.bench.end_sandbox(&at).await?;
        Ok(Some(made))
    }

    async fn branch(&self, brief: &Brief, sandbox: SandboxId, _: &str) -> Result<String, StepError> {
        let at = self.station(brief, sandbox);
        let order = branch_order(&brief.repository, &brief.branch, brief.base_branch.as_deref())?;
        let branched = self
            .bench
            .with_git(&at, order, |git, session, order| async move { git.branch(&session, order).await });
        Ok(branched.await?.branch)
    }

    async fn run_agent(
        &self,
        brief: &Brief,
        sandbox: SandboxId,
        turn: Turn<'_>,
        start: Start,
    ) -> Result<AgentTurn, StepError> {
        let at = self.station(brief, sandbox);
        let (_, definition) = self.bench.agent(&at.scope, brief.agent).await?;
        let env: BTreeMap<String, String> = [
            ("COFFER_TASK_ID", brief.task.to_string()),
            ("COFFER_RUN_ID", brief.run.to_string()),
            ("COFFER_SANDBOX_ID", sandbox.to_string()),
            ("COFFER_BRANCH", brief.branch.clone()),
            ("COFFER_TURN", turn.number.to_string()),
        ]
        .map(|(name, value)| (name.to_string(), value))
        .into();
        let first = turn.number == 1;
        let failed =
            turn.failed.zip(brief.check_command.as_deref()).map(|((checked, correction), command)| {
                let output = checked.tail.as_deref().unwrap_or_default();
                FailedCheck {
                    command,
                    exit_code: checked.exit_code,
                    output,
                    correction,
                    of: brief.check_tries,
                }
            });
        // Sessions beside a login are in memory, which a sandbox that rested has lost.
        let is_kept = turn.halted.is_none() || !definition.secrets.keys().any(|name| is_file(name));
        let talk = Talk {
            attempt: brief.attempt,
            turn: i64::try_from(turn.number).unwrap_or(i64::MAX),
            said: turn.said,
            earlier: &brief.earlier,
            ended: brief.ended.as_deref(),
            last_words: if first { brief.last_words.as_deref() } else { turn.before.summary.as_deref() },
            failed,
            session: turn.before.session.as_deref().filter(|_| is_kept),
            halted: turn.halted.map(Halt::told),
        };
        let place = self.place(brief, turn.number);
        self.bench.tell_said(&at, place, turn.said).await?;
        let allowance = self.allowance(brief, turn.before).await?;
        let order = AgentOrder {
            key: &key(brief.run, &format!("agent-{}", turn.number)),
            place: Place::Repository(&brief.repository),
            definition: &definition,
            job: Job {
                title: &brief.title,
                description: &brief.description,
                messages: &[],
                branch: &brief.branch,
                check: brief.check_command.as_deref(),
                model: brief.model.as_deref(),
                talk,
            },
            env,
            turn: Some(place),
            agent: brief.agent,
            task: Some(brief.task),
            run: Some(brief.run),
            allowance,
            run_allowance: None,
        };
        let work = self.bench.start_agent(&at, order).await?;
        // Record the execution now, so that clients can read its output while it runs.
        let execution = Some(work.execution);
        self.note(start, AttemptNote { execution, ..AttemptNote::default() }).await?;
        let tell = move |(doing, report): Progress| {
            let model = report.model.clone();
            let note = AttemptNote { doing: Some(doing), model, ..so_far(turn.before, &report) };
            async move {
                if let Err(error) = self.note(start, note).await {
                    // The totals are recorded when it ends.
                    tracing::debug!("could not publish progress of run {}: {error}", start.run);
                }
            }
            .boxed()
        };
        let done = self.bench.await_agent(&at, &work, allowance, turn.before.tokens, &tell).await;
        if done.as_ref().is_err_and(|error| !error.transient) && work.reported() > 0 {
            // Count a failed turn too: the next attempt has that much less.
            let before = turn.before.cost_nanos.unwrap_or(0);
            let cost_nanos = Some(before.saturating_add(work.reported()));
            self.note(start, AttemptNote { cost_nanos, ..AttemptNote::default() }).await?;
        }
        let mut done = done?;
        done.halted = done.halted.map(|halt| self.of_the_task(brief, allowance, halt));
        Ok(done)
    }

    async fn check(
        &self,
        brief: &Brief,
        sandbox: SandboxId,
        command: &str,
        step: &str,
        turn: usize,
    ) -> Result<Checked, StepError> {
        let at = self.station(brief, sandbox);
        let place = self.place(brief, turn);
        self.bench.run_check(&at, &key(brief.run, step), &brief.repository, command, Some(place)).await
    }

    async fn commit(
        &self,
        brief: &Brief,
        sandbox: SandboxId,
        branch: &str,
        base: &str,
    ) -> Result<Option<String>, StepError> {
        let at = self.station(brief, sandbox);
        self.bench.keep(&at).await?;
        let agent = self.bench.name_of(&at.scope, brief.agent).await?;
        let footers = [("Task", brief.task.to_string()), ("Agent", agent)];
        let order = self.bench.commit_order(&at, &brief.repository, &brief.title, footers);
        let base_branch = match &brief.base_branch {
            Some(branch) => branch.clone(),
            None => self.bench.default_branch(&at, &brief.repository).await?,
        };
        let onto = branch_name(branch, StepCode::Branch)?;
        let from = branch_name(&base_branch, StepCode::UnknownBase)?;
        let committed =
            self.bench.with_git(&at, (order, onto, from), |git, session, (order, onto, from)| async move {
                git.commit_work(&session, order, &onto, &from).await
            });
        Ok(committed.await?.map(|commit| commit.to_string()).filter(|commit| commit != base))
    }

    async fn push(
        &self,
        brief: &Brief,
        sandbox: SandboxId,
        branch: &str,
        commit: &str,
    ) -> Result<(), StepError> {
        let at = self.station(brief, sandbox);
        self.bench.keep(&at).await?;
        if branch != brief.branch {
            let names = (plain(&brief.repository), branch_name(branch, StepCode::Branch)?);
            let brought = self.bench.with_git(&at, names, |git, session, (repository, branch)| async move {
                git.bring_onto(&session, Some(&repository), &branch).await
            });
            brought.await?;
        }
        let order = push_order(&brief.repository, branch)?;
        let pushed = self
            .bench
            .with_git(&at, order, |git, session, order| async move { git.push(&session, order).await });
        expect(&pushed.await?, commit)?;
        if branch == brief.branch {
            let said = "an agent has pushed; its pull request follows";
            self.bench.report(&at.scope, &brief.repository, commit, StatusState::Pending, said).await;
        }
        Ok(())
    }

    async fn ensure_pull(
        &self,
        brief: &Brief,
        branch: &str,
        commit: &str,
        checked: Option<&Checked>,
        report: &AgentReport,
        draft: Option<&str>,
    ) -> Result<Pull, StepError> {
        let sandbox = self.own_attempt(brief).await?.and_then(|attempt| attempt.note.sandbox);
        let sandbox = sandbox
            .ok_or_else(|| StepError::fatal(StepCode::SandboxLost, "the attempt has no recorded sandbox"))?;
        let at = self.station(brief, sandbox);
        let agent = self.bench.name_of(&at.scope, brief.agent).await?;
        let (task, command) = (brief.task.to_string(), brief.check_command.as_deref());
        let text = PullText::of(WorkDone {
            title: &brief.title,
            task: &task,
            attempt: brief.attempt,
            agent: &agent,
            model: brief.model.as_deref().or(report.model.as_deref()),
            check: command.zip(checked),
            summary: report.summary.as_deref(),
            commit,
            closes: brief.issue.as_ref().map(|issue| issue.number),
            draft,
        });
        let (repository, base) = (&brief.repository, brief.base_branch.as_deref());
        let order = self.bench.pull_order(&at, repository, &text, branch, base, draft.is_some())?;
        let found = self
            .bench
            .with_git(&at, order, |git, session, order| async move { git.propose(&session, order).await });
        let found = found.await?;
        let said = match (draft, checked) {
            (Some(_), _) => "the agent was not done: this is a draft",
            (None, Some(_)) => "the check of the task passed",
            (None, None) => "the work is done; the task has no check",
        };
        let state = if draft.is_some() { StatusState::Pending } else { StatusState::Success };
        self.bench.report(&at.scope, repository, commit, state, said).await;
        Ok(kept_pull(repository, found))
    }

    async fn rest(&self, brief: &Brief, sandbox: SandboxId) -> Result<(), StepError> {
        self.bench.rest(&self.station(brief, sandbox)).await
    }

    async fn wake(&self, brief: &Brief, sandbox: SandboxId) -> Result<(), StepError> {
        self.bench.awake(&self.station(brief, sandbox)).await
    }

    async fn finish(&self, brief: &Brief, sandbox: Option<SandboxId>, how: Ending) -> Result<(), StepError> {
        let sandbox = match sandbox {
            Some(known) => Some(known),
            None => self.bench.find_sandbox(&self.scope(brief), &key(brief.run, "sandbox")).await?,
        };
        let Some(first) = sandbox else {
            return self.bench.release_logins(&self.scope(brief), brief.run).await;
        };
        // After a set-up the attempt goes on in another sandbox.
        let run = format!("run:{}", brief.run);
        let prepared = self.bench.find_sandbox(&self.scope(brief), &prepared_key(&run)).await?;
        let preparing = self.bench.find_sandbox(&self.scope(brief), &setup_key(&run)).await?;
        let sandbox = prepared.unwrap_or(first);
        for other in [Some(first), preparing].into_iter().flatten().filter(|other| *other != sandbox) {
            self.bench.end_sandbox(&self.station(brief, other)).await?;
        }
        let at = self.station(brief, sandbox);
        let own = self.own_attempt(brief).await?;
        let commit = own.as_ref().and_then(|attempt| attempt.note.commit.clone());
        if let (Ending::Failed | Ending::Cancelled, Some(commit)) = (how, commit) {
            let said = "the attempt ended without a pull request: the task says why";
            self.bench.report(&at.scope, &brief.repository, &commit, StatusState::Failure, said).await;
        }
        let was_worked_in = own.is_some_and(|attempt| attempt.note.execution.is_some());
        if let Ok((_, definition)) = self.bench.agent(&at.scope, brief.agent).await {
            self.bench.take_back_logins(&at, &definition).await;
        }
        self.bench.release_logins(&at.scope, brief.run).await?;
        match how {
            // A person may want to look at the agent's work there.
            Ending::Failed if was_worked_in => self.bench.leave_sandbox(&at).await,
            Ending::Done | Ending::Cancelled | Ending::Failed => self.bench.end_sandbox(&at).await,
        }
    }
}
