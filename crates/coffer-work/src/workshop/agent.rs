//! Runs agents and checks: programs that are started once, however often a step is repeated.
//!
//! Their output is read from the sandbox's log and not from their own stream. So it does not matter which
//! server started a program, and the output is already redacted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use coffer_core::agent::login_file::is_file;
use coffer_core::agent::transcript::{EntryBody, Room, Text};
use coffer_core::agent::{
    AgentDefinition, AgentReader, AgentReport, Job, ModelApi, OutputFormat, Reported, Tokens,
};
use coffer_core::{AgentId, Code, ExecutionId, RunFailure, RunId, StateName, StepCode, TaskId};
use coffer_flow::StepError;
use coffer_flow::task::{AgentTurn, Checked, Halt};
use coffer_store::{ExecutionRow, ExecutionState, Idempotency, ModelKey, TakenKey, TurnPlace};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::heard::{Heard, Progress, hear, quiet_for};
use super::script::Script;
use super::{Station, Workbench, repository, trouble};
use crate::models::{Grant, GrantOrder, ModelError, Spending};
use coffer_core::clock::now_ms;
use coffer_fleet::exec::Command;
use coffer_fleet::output::Patterns;
use coffer_fleet::{FleetError, secret_variables};

const FINGERPRINT: &str = "workshop";
pub(super) const PAUSED_AT_BUDGET: &str =
    "the budget of the project or of the sandbox is spent, and the sandbox was paused: raise the budget";
const CHECK_WITHIN: Duration = Duration::from_secs(1500);
/// How long agentd may take to end a program after its timeout, and to report it.
const OVERTIME: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_secs(2);
/// How often the sandbox's deadline is extended, and its cost is checked: usage is recorded every few
/// seconds.
const KEEP_EVERY: Duration = Duration::from_secs(60);
const COST_EVERY: Duration = Duration::from_secs(4);
/// How long a program may be recorded without running before it is started again.
const START_WITHIN: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(500);
/// How long an interrupted program has to end by itself, and then after it was asked to terminate.
const INTERRUPT_PATIENCE: Duration = Duration::from_secs(10);
const TERMINATE_PATIENCE: Duration = Duration::from_secs(5);
const SHORTEST_HIDDEN: usize = 6;
/// How often a transcript is written.
const WRITE: Duration = Duration::from_millis(500);
/// Longest texts of our own entries.
const PROMPT_HEAD: usize = 12 * 1024;
const PROMPT_TAIL: usize = 4 * 1024;
const CHECK_COMMAND: usize = 4 * 1024;
const CHECK_TAIL: usize = 8 * 1024;

/// Where an agent works.
#[derive(Debug, Clone, Copy)]
pub enum Place<'a> {
    /// In the clone of a repository.
    Repository(&'a str),
    /// In a directory of the sandbox.
    Directory(&'a str),
}

/// A turn of an agent.
#[derive(Debug)]
pub struct AgentOrder<'a> {
    /// Identifies this turn.
    pub key: &'a str,
    pub place: Place<'a>,
    pub definition: &'a AgentDefinition,
    pub job: Job<'a>,
    /// Added to the agent's own.
    pub env: BTreeMap<String, String>,
    /// The turn in its transcript; nothing for a test, which has none.
    pub turn: Option<TurnPlace>,
    /// Who works, for the records of its calls of models.
    pub agent: AgentId,
    pub task: Option<TaskId>,
    pub run: Option<RunId>,
    /// The most that its sandbox in all and this turn may cost.
    pub allowance: Option<i64>,
    /// The most that calls of models of the whole run may cost.
    pub run_allowance: Option<i64>,
}

/// An agent that was started, now or before.
#[derive(Debug)]
pub struct AtWork {
    pub execution: ExecutionId,
    output: OutputFormat,
    within: Duration,
    /// Values of its definition to redact.
    hidden: Patterns,
    /// The cost that it reports so far.
    reported: AtomicI64,
    turn: Option<TurnPlace>,
    /// Whether it continues a session.
    continues: bool,
    /// Its access to models, if that is through the gateway.
    grant: Option<Arc<Grant>>,
    definition: AgentDefinition,
}

impl AtWork {
    /// The cost that it reports, or that the model gateway counted, in billionths.
    pub fn reported(&self) -> i64 {
        self.reported.load(Ordering::Relaxed)
    }
}

/// Called with an agent's progress now and then while it works.
pub(super) type Tell<'a> = &'a (dyn Fn(Progress) -> BoxFuture<'a, ()> + Send + Sync);

/// How to watch a program.
#[derive(Clone, Copy)]
pub(super) struct Watch<'a> {
    pub(super) within: Duration,
    pub(super) allowance: Option<i64>,
    pub(super) tell: Option<Tell<'a>>,
    /// Redacts what goes into a transcript.
    pub(super) show: &'a (dyn Fn(&str) -> String + Send + Sync),
    pub(super) grant: Option<&'a Grant>,
    /// The turn that a person may interrupt.
    pub(super) turn: Option<TurnPlace>,
}

impl Workbench {
    /// Starts a turn of an agent, unless it was started before.
    pub async fn start_agent(&self, at: &Station, order: AgentOrder<'_>) -> Result<AtWork, StepError> {
        let AgentOrder { key, place, definition, ref job, ref env, turn, .. } = order;
        let mut invocation = definition.invocation(job).map_err(|error| {
            StepError::fatal(StepCode::AgentUndefined, format!("the agent cannot be run: {error}"))
        })?;
        let api = self.model_api(definition);
        if let Some(api) = &api {
            let at = invocation.words.len().min(1);
            invocation.words.splice(at..at, api.words.iter().cloned());
        }
        let within = Duration::from_secs(invocation.timeout_s.unsigned_abs());
        let values = definition.hidden_values().filter(|value| value.len() >= SHORTEST_HIDDEN);
        let values: Vec<&String> = values.collect();
        let mut cwd = match place {
            Place::Repository(name) => self.path_of(at, name).await?,
            Place::Directory(path) => path.to_string(),
        };
        if let Some(below) = &definition.working_directory {
            cwd = format!("{cwd}/{below}");
        }
        // Before it can write any output.
        self.record(at).await?.hidden.add(definition.hidden_values());
        self.exclude_litter(at, definition, &cwd).await?;
        let mut variables = self.not_granted(at, &inside(definition, api.as_ref())).await?;
        variables.extend(api.iter().flat_map(|api| api.env.clone()));
        variables.extend(invocation.env);
        variables.extend(env.clone());
        let logins = self.place_logins(at, definition).await?;
        // Before it can make a call; again if the step is repeated, because a server that died has lost its passes.
        let grant = match &api {
            Some(api) => Some(self.open_models(at, &order, api).await?),
            None => None,
        };
        let make = || Command {
            words: invocation.words.clone(),
            cwd: Some(cwd.clone()),
            env: variables.clone(),
            timeout: Some(within),
            ..Command::default()
        };
        let execution = match self.start_once(at, key, make).await {
            Ok(execution) => execution,
            Err(error) if error.code == Code::Invalid => {
                let program = invocation.words.first().map_or("", String::as_str);
                return Err(self.why_not_started(at, definition, program, &cwd, error).await);
            }
            Err(error) => return Err(error),
        };
        let hidden = Patterns::new(&values.into_iter().chain(&logins).collect::<Vec<_>>());
        let show = |text: &str| hidden.redact(&self.redacted_whole(at, text));
        if let Some(turn) = turn {
            let text = Text::folded(&invocation.prompt, PROMPT_HEAD, PROMPT_TAIL);
            let entries = vec![(1, now_ms(), EntryBody::Prompt { text })];
            self.tell_script(at, turn, &format!("{execution}/prompt"), entries, &show).await?;
        }
        let (output, continues) = (invocation.output, invocation.continues);
        let reported = AtomicI64::new(0);
        let definition = definition.clone();
        Ok(AtWork { execution, output, within, hidden, reported, turn, continues, grant, definition })
    }

    /// How an agent uses the model gateway, if it does.
    fn model_api(&self, definition: &AgentDefinition) -> Option<ModelApi> {
        definition.model_api().filter(|_| self.models.is_enabled())
    }

    /// The secrets that an agent's sandbox has in its environment: without keys that the model gateway adds outside.
    pub fn secrets_inside(&self, definition: &AgentDefinition) -> BTreeMap<String, String> {
        inside(definition, self.model_api(definition).as_ref())
    }

    fn model_trouble(&self, at: &Station, error: ModelError) -> StepError {
        match error {
            ModelError::Store(error) => error.into(),
            ModelError::Fleet(error) => self.trouble_at(at, error),
            other => StepError::fatal(StepCode::AgentUndefined, format!("the agent cannot be run: {other}")),
        }
    }

    /// Opens the way to models for a turn.
    async fn open_models(
        &self,
        at: &Station,
        order: &AgentOrder<'_>,
        api: &ModelApi,
    ) -> Result<Arc<Grant>, StepError> {
        let keys = api
            .keys
            .iter()
            .map(|(provider, key)| (*provider, ModelKey { secret: key.secret.clone(), header: key.header }));
        let grant = GrantOrder {
            scope: at.scope,
            record: self.record(at).await?,
            key: order.key.to_string(),
            agent: Some(order.agent),
            task: order.task,
            run: order.run,
            preset: order.definition.preset,
            keys: keys.collect(),
            budget_nanos: order.allowance,
            run_budget_nanos: order.run_allowance,
        };
        self.models.open(grant).await.map_err(|error| self.model_trouble(at, error))
    }

    /// Waits for an agent. `allowance` is the most that its sandbox in all and this turn, as the agent
    /// reports it, may cost: beyond that the agent is ended, and so is one that a person interrupts; the turn says so.
    /// `before` is what the turns before it used.
    pub async fn await_agent(
        &self,
        at: &Station,
        work: &AtWork,
        allowance: Option<i64>,
        before: Option<Tokens>,
        tell: Tell<'_>,
    ) -> Result<AgentTurn, StepError> {
        let (script, room) = match work.turn {
            Some(turn) => {
                let (script, room) = self.open_script(at, turn, work.execution).await?;
                (Some(script), room)
            }
            None => (None, Room::WHOLE),
        };
        let mut reader = AgentReader::within(work.output, room);
        reader.continues(before.filter(|_| work.continues).unwrap_or_default());
        let mut heard = Heard::new(Some(reader), script);
        let show = |text: &str| work.hidden.redact(&self.redacted_whole(at, text));
        let shown = |text: String| show(&text);
        let grant = work.grant.as_deref();
        let tell = |(doing, report): Progress| {
            let doing = doing.told(show);
            let report = AgentReport { summary: doing.message.clone(), error: None, ..report };
            async move {
                let report = match grant {
                    Some(grant) => counted(report, self.models.spent(grant).await.ok().as_ref()),
                    None => report,
                };
                tell((doing, report)).await;
            }
            .boxed()
        };
        let watch =
            Watch { within: work.within, allowance, tell: Some(&tell), show: &show, grant, turn: work.turn };
        let followed = self.follow(at, work.execution, watch, &mut heard).await;
        work.reported.store(heard.cost(), Ordering::Relaxed);
        if followed.as_ref().is_err_and(|error| error.transient) {
            // The step will be repeated, and the agent goes on meanwhile.
            return followed.map(|_: Option<ExecutionRow>| unreachable!("it is an error"));
        }
        self.take_back_logins(at, &work.definition).await;
        let spending = match grant {
            None => None,
            Some(grant) => {
                Some(self.models.close(grant).await.map_err(|error| self.model_trouble(at, error))?)
            }
        };
        if let Some(spending) = &spending {
            work.reported.store(spending.known_cost_nanos, Ordering::Relaxed);
        }
        // Also of a turn that was ended: its transcript is whole.
        heard.hear_answers(grant.map(Grant::failed_answers).unwrap_or_default());
        let told = heard.end();
        if let Some(script) = &mut heard.script {
            self.write_script(at, script, &show).await?;
        }
        let row = followed?;
        let reported = spending.map(|_| Reported { tokens: told.tokens, cost_nanos: told.cost_nanos });
        let report = counted(told, spending.as_ref());
        let exit_code = row.as_ref().and_then(|row| exit_of(row, work.within));
        let failed = exit_code != Some(0) || report.error.is_some();
        // Some programs end as if all were well when no call was answered.
        let is_unanswered = grant.is_some_and(|grant| !grant.was_answered());
        // The gateway refuses a call before it can cost more than is left.
        let refused = spending.filter(|spending| spending.was_refused);
        let wants_more = failed || (is_unanswered && refused.is_some());
        let halted = match work.turn {
            Some(turn) => self.store.interrupted_by(turn.run, turn.turn).await?,
            None => None,
        };
        let halted = match halted {
            Some(by) => Some(Halt::Interrupted { by }),
            // One that was done by itself needs no more money: its work counts.
            None if !wants_more => None,
            None => {
                let cost = report.cost_nanos.unwrap_or(0);
                self.at_a_budget(at, allowance, cost, refused, row.is_none()).await?
            }
        };
        let error = report.error.or_else(|| match exit_code {
            Some(0) => None,
            // What it was doing, not what else is on its streams.
            None => heard.last(),
            Some(_) => heard.last_words().or_else(|| heard.last()),
        });
        let report = AgentReport {
            summary: report.summary.map(shown),
            error: error.map(shown),
            model: report.model.map(shown),
            session: report.session.map(shown),
            ..report
        };
        let trouble = grant.filter(|_| failed || is_unanswered).and_then(Grant::trouble);
        let trouble = trouble.map(|(code, message)| RunFailure::new(code, message));
        Ok(AgentTurn { execution: Some(work.execution), exit_code, report, reported, halted, trouble })
    }

    /// Runs the check, a shell line in the repository; once for each key.
    pub async fn run_check(
        &self,
        at: &Station,
        key: &str,
        repository: &str,
        command: &str,
        place: Option<TurnPlace>,
    ) -> Result<Checked, StepError> {
        let cwd = self.path_of(at, repository).await?;
        let make = || Command {
            words: ["/bin/bash", "-l", "-c", command].map(str::to_string).to_vec(),
            cwd: Some(cwd.clone()),
            timeout: Some(CHECK_WITHIN),
            ..Command::default()
        };
        let execution = self.start_once(at, key, make).await?;
        let show = |text: &str| self.redacted_whole(at, text);
        let watch =
            Watch { within: CHECK_WITHIN, allowance: None, tell: None, show: &show, grant: None, turn: None };
        let mut heard = Heard::new(None, None);
        let row = self.follow(at, execution, watch, &mut heard).await?;
        let row = row.ok_or_else(|| StepError::fatal(Code::BudgetExceeded, PAUSED_AT_BUDGET))?;
        let exit_code = exit_of(&row, CHECK_WITHIN);
        let passed = exit_code == Some(0);
        let output = Text::folded(&heard.tail(), 0, CHECK_TAIL).map(&show);
        if let Some(place) = place {
            let command = Text::head(command, CHECK_COMMAND);
            let body = EntryBody::Check { command, passed, exit_code, output: output.clone() };
            self.tell_script(at, place, &execution.to_string(), vec![(1, now_ms(), body)], &show).await?;
        }
        let tail = if output.end.is_empty() { output.text } else { output.end };
        Ok(Checked { passed, exit_code, execution: Some(execution), tail: Some(tail).filter(|_| !passed) })
    }

    pub(super) async fn path_of(&self, at: &Station, repository: &str) -> Result<String, StepError> {
        let session = self.session(at).await?;
        let found = self.git.path_of(&session, &repository::plain(repository)).await;
        found.map_err(|error| self.trouble_at(at, error))
    }

    /// The values of secrets that the sandbox itself does not have.
    async fn not_granted(
        &self,
        at: &Station,
        wanted: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, String>, StepError> {
        let granted = self.record(at).await?.row().secrets;
        let missing = wanted.iter().filter(|(variable, name)| granted.get(*variable) != Some(*name));
        let missing: BTreeMap<_, _> =
            missing.map(|(variable, name)| (variable.clone(), name.clone())).collect();
        if missing.is_empty() {
            return Ok(missing);
        }
        let values = self.store.read_secrets(at.scope.project()).await?;
        secret_variables(&missing, &values).map_err(|error| self.trouble_at(at, FleetError::from(error)))
    }

    /// Starts a program once for each key, and returns its execution.
    pub(super) async fn start_once(
        &self,
        at: &Station,
        key: &str,
        command: impl Fn() -> Command,
    ) -> Result<ExecutionId, StepError> {
        let since = Instant::now();
        loop {
            let mine = ExecutionId::generate();
            let idempotency = Idempotency { key, fingerprint: FINGERPRINT };
            let execution =
                match self.store.take_execution_key(&at.scope, at.sandbox, idempotency, mine).await? {
                    TakenKey::New => mine,
                    TakenKey::Earlier(first) if self.has_begun(at, first).await? => return Ok(first),
                    TakenKey::Earlier(first) => first,
                    TakenKey::UsedDifferently => {
                        return Err(StepError::fatal(
                            StepCode::SandboxLost,
                            "the program was started in another sandbox",
                        ));
                    }
                };
            let record = self.record(at).await?;
            let Err(error) = self.exec.launch(&record, execution, command()).await else {
                return Ok(execution);
            };
            // It is recorded as not started: another try is another execution.
            self.store.release_execution_key(&at.scope, key, execution).await?;
            if !error.is_transient() || since.elapsed() > START_WITHIN {
                return Err(self.trouble_at(at, error));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Whether a program that an earlier server recorded was started. That server may have died just before
    /// or after the start.
    async fn has_begun(&self, at: &Station, execution: ExecutionId) -> Result<bool, StepError> {
        let since = Instant::now();
        let known = |row: ExecutionRow| row.state != ExecutionState::Running || row.process.is_some();
        loop {
            if self.store.execution(&at.scope, execution).await?.is_some_and(known) {
                return Ok(true);
            }
            let record = self.record(at).await?;
            match self.exec.running(&record).await {
                Ok(running) if running.contains(&execution) => return Ok(true),
                Ok(_) => {
                    // The journal has an end of a moment ago, even if it is not recorded yet.
                    self.exec.output.catch_up(&record, LOOK).await;
                    return Ok(self.store.execution(&at.scope, execution).await?.is_some_and(known));
                }
                Err(error) if !error.is_transient() || since.elapsed() > START_WITHIN => {
                    return Err(self.trouble_at(at, error));
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// Waits until an execution ends, however it was started; reads its output, and extends the sandbox's
    /// deadline. `None` if its sandbox was paused because a budget is spent.
    pub(super) async fn follow(
        &self,
        at: &Station,
        execution: ExecutionId,
        Watch { within, allowance, tell, show, grant, turn }: Watch<'_>,
        heard: &mut Heard,
    ) -> Result<Option<ExecutionRow>, StepError> {
        let row = self.on_record(at, execution).await?;
        let from = row.positions.map_or(0, |(first, _)| first);
        let mut log = self.exec.output.reader(at.scope, at.sandbox, Some(from)).await?;
        let (mut kept, mut counted, mut told) = (None::<Instant>, Instant::now(), Instant::now());
        let (mut written, mut was_ended) = (Instant::now(), false);
        let (mut ending, mut is_over) = (Ending::default(), false);
        let mut writes = tokio::time::interval(WRITE);
        writes.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                record = log.next() => {
                    let Some(record) = record else {
                        // This server is about to stop, and the next one continues to wait. Record no
                        // failure.
                        return std::future::pending().await;
                    };
                    heard.hear_answers(grant.map(Grant::failed_answers).unwrap_or_default());
                    if hear(&record, execution, heard) {
                        break;
                    }
                    if let Some(script) = heard.script.as_mut().filter(|script| script.is_full())
                        && written.elapsed() > WRITE
                    {
                        written = Instant::now();
                        self.write_some(at, script, show).await;
                    }
                    continue;
                }
                _ = writes.tick() => {
                    heard.hear_answers(grant.map(Grant::failed_answers).unwrap_or_default());
                    if let Some(script) = &mut heard.script {
                        written = Instant::now();
                        self.write_some(at, script, show).await;
                    }
                    continue;
                }
                _ = looks.tick() => {}
            }
            let record = match self.record(at).await {
                Ok(record) => record,
                // Its output before its sandbox ended is recorded.
                Err(error) if !error.transient => break,
                Err(error) => return Err(error),
            };
            if record.row().state.name() == StateName::Paused
                && self.fleet.usage.admits(at.scope.project(), Some(at.sandbox)).is_err()
            {
                return Ok(None);
            }
            self.exec.output.wake(&record);
            let row = self.on_record(at, execution).await?;
            if row.state != ExecutionState::Running {
                break;
            }
            if let Some(turn) = turn
                && (ending.has_begun() || self.store.interrupted_by(turn.run, turn.turn).await?.is_some())
            {
                self.interrupt(at, &row, &mut ending).await?;
            }
            let age = Duration::from_millis(u64::try_from(now_ms() - row.started_ms).unwrap_or(0));
            if age > within + OVERTIME {
                self.end_execution(at, execution).await?;
            }
            if kept.is_none_or(|kept| kept.elapsed() > KEEP_EVERY) {
                kept = Some(Instant::now());
                self.keep(at).await?;
            }
            if !was_ended && grant.is_some_and(Grant::is_key_refused) {
                // It would try again for minutes. Its turn ends as one that failed, with that reason.
                was_ended = true;
                self.end_execution(at, execution).await?;
            }
            if let Some(allowance) = allowance.filter(|_| !is_over && counted.elapsed() > COST_EVERY) {
                counted = Instant::now();
                let cost = match grant {
                    Some(grant) => self.models.spent(grant).await.map_or(0, |spent| spent.known_cost_nanos),
                    None => heard.cost(),
                };
                // Once it has ended, its turn says why.
                is_over = self.cost_of(&at.scope, at.sandbox).await?.saturating_add(cost) > allowance;
                if is_over {
                    self.end_execution(at, execution).await?;
                }
            }
            if let Some(tell) = tell.filter(|_| told.elapsed() >= quiet_for(age))
                && let Some(news) = heard.news()
            {
                told = Instant::now();
                tell(news).await;
            }
        }
        self.hear_out(at, execution, log.position(), heard).await?;
        let row = self.on_record(at, execution).await?;
        match row.state {
            ExecutionState::Exited => Ok(Some(row)),
            ExecutionState::Failed => {
                let why = row.status.unwrap_or_else(|| "it could not be started".into());
                let why = trouble::redacted(&self.patterns_at(at), &why);
                let message = format!("the program did not start: {why}");
                Err(StepError::fatal(StepCode::NotStarted, message))
            }
            ExecutionState::Lost => match self.record(at).await {
                Err(error) => Err(error),
                Ok(_) => Err(StepError::fatal(
                    StepCode::SandboxLost,
                    "the sandbox was restarted while the program ran",
                )),
            },
            ExecutionState::Running => Err(self.record(at).await.err().unwrap_or_else(|| {
                StepError::transient(
                    StepCode::StillRunning,
                    "the end of the program has not been recorded yet",
                )
            })),
        }
    }

    /// Writes what is waiting of a transcript; what cannot be written now waits for the next time.
    async fn write_some(
        &self,
        at: &Station,
        script: &mut Script,
        show: &(dyn Fn(&str) -> String + Send + Sync),
    ) {
        if let Err(error) = self.write_script(at, script, &|text| show(text)).await {
            tracing::debug!("could not write a transcript yet: {error}");
        }
    }

    /// Reads the rest of its output, if its end was noticed before.
    async fn hear_out(
        &self,
        at: &Station,
        execution: ExecutionId,
        mut from: i64,
        heard: &mut Heard,
    ) -> Result<(), StepError> {
        loop {
            let page = self.exec.output.read(&at.scope, at.sandbox, from, 1 << 20).await?;
            for record in &page.records {
                hear(record, execution, heard);
            }
            if page.at_end || page.next <= from {
                return Ok(());
            }
            from = page.next;
        }
    }

    async fn on_record(&self, at: &Station, execution: ExecutionId) -> Result<ExecutionRow, StepError> {
        let row = self.store.execution(&at.scope, execution).await?;
        row.ok_or_else(|| {
            StepError::fatal(StepCode::SandboxLost, "the record of the started program was deleted")
        })
    }

    async fn end_execution(&self, at: &Station, execution: ExecutionId) -> Result<(), StepError> {
        let record = self.record(at).await?;
        let ended = self.exec.kill(&record, execution).await;
        ended.map_err(|error| self.trouble_at(at, error))
    }

    /// Stops a program as a person would: Ctrl-C, and then less kindly. Called again until it has ended.
    async fn interrupt(
        &self,
        at: &Station,
        row: &ExecutionRow,
        ending: &mut Ending,
    ) -> Result<(), StepError> {
        match ending.next(Instant::now()) {
            None => {}
            Some(Push::Interrupt) => {
                let record = self.record(at).await?;
                if let Err(error) = self.exec.interrupt(&record, row.id).await {
                    // The next signal follows soon.
                    tracing::debug!(sandbox.id = %at.sandbox, "could not interrupt execution {}: {error}", row.id);
                }
            }
            Some(Push::Terminate) => {
                let record = self.record(at).await?;
                let asked = self.exec.terminate(&record, row.id).await;
                asked.map_err(|error| self.trouble_at(at, error))?;
            }
            Some(Push::Kill) => self.end_execution(at, row.id).await?,
        }
        Ok(())
    }

    /// Whether a turn ended because a budget is spent. `refused` if the gateway refused it a call.
    async fn at_a_budget(
        &self,
        at: &Station,
        allowance: Option<i64>,
        cost: i64,
        refused: Option<Spending>,
        was_paused: bool,
    ) -> Result<Option<Halt>, StepError> {
        let spent = self.cost_of(&at.scope, at.sandbox).await?.saturating_add(cost);
        let is_others = was_paused || refused.is_some_and(|refused| refused.by_another);
        let halt = |is_others, spent_nanos, budget_nanos, message| {
            Some(Halt::Budget { is_others, spent_nanos, budget_nanos, message })
        };
        if is_others {
            let message =
                "the budget of the project or of the sandbox is spent: raise it at /api/v1/budgets".into();
            return Ok(halt(true, None, None, message));
        }
        let is_over = allowance.is_some_and(|allowance| spent > allowance);
        if !is_over && refused.is_none() {
            return Ok(None);
        }
        let currency = &self.fleet.usage.settings().currency;
        let message = match allowance {
            Some(allowance) => format!(
                "the agent was stopped: sandbox {} and the agent together cost {} {currency}, of a remaining budget of \
                 {} {currency}",
                at.sandbox,
                amount(spent),
                amount(allowance.max(0))
            ),
            None => "the agent was stopped: the budget is spent".into(),
        };
        Ok(halt(false, Some(spent), allowance, message))
    }

    /// Redacts a text without shortening it.
    pub(super) fn redacted_whole(&self, at: &Station, text: &str) -> String {
        self.exec.output.patterns(at.scope.project()).redact(text)
    }
}

/// How far the end of an interrupted program is.
#[derive(Debug, Default)]
struct Ending {
    last: Option<(Push, Instant)>,
}

/// What ends a program, the kindest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Push {
    Interrupt,
    Terminate,
    Kill,
}

impl Ending {
    const fn has_begun(&self) -> bool {
        self.last.is_some()
    }

    /// What to do now, if anything.
    fn next(&mut self, now: Instant) -> Option<Push> {
        let push = match self.last {
            None => Push::Interrupt,
            Some((Push::Interrupt, at)) if now >= at + INTERRUPT_PATIENCE => Push::Terminate,
            // Again and again: the sandbox may not have answered.
            Some((Push::Terminate | Push::Kill, at)) if now >= at + TERMINATE_PATIENCE => Push::Kill,
            Some(_) => return None,
        };
        self.last = Some((push, now));
        Some(push)
    }
}

/// The secrets that enter the sandbox.
fn inside(definition: &AgentDefinition, api: Option<&ModelApi>) -> BTreeMap<String, String> {
    let mut secrets = definition.secrets.clone();
    secrets.retain(|name, _| !is_file(name) && !api.is_some_and(|api| api.kept_out.contains(name)));
    secrets
}

/// An agent's report with what the model gateway counted instead of what the agent told.
fn counted(report: AgentReport, spending: Option<&Spending>) -> AgentReport {
    let Some(spending) = spending.filter(|spending| spending.calls > 0) else { return report };
    let cost_nanos = spending.cost_nanos.or(report.cost_nanos).or(Some(spending.known_cost_nanos));
    AgentReport { tokens: Some(spending.tokens), cost_nanos, ..report }
}

/// Billionths as decimal text.
pub(super) fn amount(nanos: i64) -> String {
    let text = format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000);
    let text = text.trim_end_matches('0');
    text.strip_suffix('.').unwrap_or(text).to_string()
}

/// `None` if it timed out. The record says how it was killed, but not why.
pub(super) fn exit_of(row: &ExecutionRow, within: Duration) -> Option<i64> {
    let took = row.ended_ms.map_or(0, |ended| ended - row.started_ms);
    let timed_out = u128::try_from(took).is_ok_and(|took| took >= within.as_millis());
    row.exit_code.filter(|code| !timed_out || *code == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_program_is_asked_first_and_killed_last() {
        let (mut ending, start) = (Ending::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let pushes: Vec<_> = (0..40).step_by(2).map(|seconds| ending.next(at(seconds))).collect();
        let told: Vec<_> = pushes.iter().flatten().take(4).copied().collect();
        assert_eq!(told, [Push::Interrupt, Push::Terminate, Push::Kill, Push::Kill]);
        assert_eq!(pushes[1..5], [None; 4]);
    }

    #[test]
    fn amounts_read_as_people_write_them() {
        for (nanos, text) in [(0, "0"), (1_500_000_000, "1.5"), (2_000_000_000, "2"), (20, "0.00000002")] {
            assert_eq!(amount(nanos), text);
        }
    }
}
