//! The steps of a competition.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use coffer_core::agent::login_file::is_file;
use coffer_core::agent::{AgentProgress, Job, Talk};
use coffer_core::compete::DiffSize;
use coffer_core::{Code, Millis, SandboxId, SizeWish, StepCode};
use coffer_flow::compete::{Arena, Base, Changes, EntryBrief, Fork, Lane, News, RaceBrief, Raced, Tell};
use coffer_flow::task::{Checked, Halt, Pull};
use coffer_flow::{Start, StepError};
use coffer_store::{
    EntryNote, EntryRow, Idempotency, Inserted, ProjectScope, RunFailure, TranscriptOf, TurnPlace,
};
use futures_util::FutureExt as _;
use tracing::Instrument as _;

use super::describe::{code, quoted};
use super::heard::Progress;
use super::repository::{branch_name, branch_order, commit_id, expect, kept_pull, plain, push_order};
use super::{AgentOrder, Place, PullText, SandboxOrder, Station, Workbench};
use coffer_fleet::{FleetError, ForkSpec, Forked, MemoryWish};

/// How long forks live unless an agent works in them.
const AHEAD_MS: Millis = 3_600_000;
const FINGERPRINT: &str = "competition";

/// Runs competitions.
#[derive(Debug)]
pub struct Ring {
    bench: Arc<Workbench>,
}

/// A key of a run. Users' keys have no colon.
fn key(brief: &RaceBrief, what: &str) -> String {
    format!("run:{}/{what}", brief.run)
}

/// What the keys of a group of entries end with: nothing for the first.
fn suffix(group: usize) -> String {
    if group == 0 { String::new() } else { format!("-{}", group + 1) }
}

/// The key of all forks of a group.
fn key_of_forks(brief: &RaceBrief, group: usize) -> String {
    key(brief, &format!("forks{}", suffix(group)))
}

/// An entry's only turn, in its transcript.
fn place(brief: &RaceBrief, entry: i64) -> TurnPlace {
    TurnPlace { of: TranscriptOf::Entry(brief.competition, entry), run: brief.run, attempt: 1, turn: 1 }
}

/// The keys by which an entry's sandbox is found: created with the others of its group, or in a separate try.
fn keys_of_fork(brief: &RaceBrief, number: i64) -> [String; 2] {
    let alone = key(brief, &format!("fork-{number}"));
    let place = brief.groups().into_iter().enumerate().find_map(|(group, (_, entries))| {
        let at = entries.iter().position(|entry| entry.number == number)?;
        Some((group, at + 1))
    });
    let (group, at) = place.unwrap_or((0, usize::try_from(number).unwrap_or(0)));
    [format!("fork/{at}/{}", key_of_forks(brief, group)), format!("fork/1/{alone}")]
}

impl Ring {
    pub fn new(bench: Arc<Workbench>) -> Self {
        Self { bench }
    }

    fn scope(&self, brief: &RaceBrief) -> ProjectScope {
        self.bench.store.operator().acting_for(brief.project, None)
    }

    fn station(&self, brief: &RaceBrief, sandbox: SandboxId) -> Station {
        Station { scope: self.scope(brief), sandbox, actor: format!("competition:{}", brief.competition) }
    }

    fn lane(&self, lane: Lane<'_>) -> Station {
        let actor = format!("agent:{}", lane.entry.agent);
        Station { scope: self.scope(lane.brief), sandbox: lane.sandbox, actor }
    }

    fn ahead_ms(&self) -> Millis {
        AHEAD_MS.min(self.bench.policy.longest_timeout_ms)
    }

    /// All sandboxes that an entry ever had, live or ended.
    async fn forks_of(&self, brief: &RaceBrief, number: i64) -> Result<Vec<(SandboxId, bool)>, StepError> {
        // A fork that is being created for a caller that no longer waits is not recorded yet.
        self.bench.making.done(&key(brief, "forks")).await;
        let mut found = Vec::new();
        for key in keys_of_fork(brief, number) {
            let idempotency = Idempotency { key: &key, fingerprint: FINGERPRINT };
            if let Inserted::Existing(row) =
                self.bench.store.earlier_sandbox(&self.scope(brief), idempotency).await?
            {
                found.push((row.id, row.state.is_live()));
            }
        }
        Ok(found)
    }

    /// Forks the source, to the end even if the caller no longer waits; waits for room.
    async fn fork_so_often(
        &self,
        brief: &RaceBrief,
        source: SandboxId,
        sizes: Vec<SizeWish>,
        key: &str,
    ) -> Result<Forked, StepError> {
        let at = self.station(brief, source);
        let since = Instant::now();
        loop {
            let record = self.bench.record(&at).await?;
            let metadata = [("competition", brief.competition.to_string()), ("run", brief.run.to_string())];
            let spec = ForkSpec {
                count: u32::try_from(sizes.len()).unwrap_or(u32::MAX),
                timeout_ms: self.ahead_ms(),
                // Agents start from scratch: they only need files.
                wish: MemoryWish { memory: Some(false), with_secrets: false },
                task: brief.task,
                // An agent that thinks for an hour is not idle, nor is one that waits for slower ones.
                idle_s: Some(0),
                sizes: sizes.clone(),
                metadata: metadata.map(|(name, value)| (name.to_string(), value)).into(),
                env_vars: BTreeMap::new(),
                secrets: BTreeMap::new(),
                idempotency: Some((key.to_string(), FINGERPRINT.to_string())),
            };
            let (fleet, scope) = (self.bench.fleet.clone(), at.scope);
            let making = self.bench.making.begin(key).await;
            let forked = async move {
                let forked = fleet.fork(scope, record, spec).await;
                drop(making);
                forked
            };
            let error = match self
                .bench
                .fleet
                .spawn_step(forked.in_current_span())
                .await
                .unwrap_or(Err(FleetError::Broken))
            {
                Ok(forked) => return Ok(forked),
                Err(error) => error,
            };
            self.bench.await_room(brief.project, error, since).await?;
        }
    }

    fn failure(&self, brief: &RaceBrief, error: FleetError) -> RunFailure {
        let told = self.bench.trouble(brief.project, error);
        RunFailure::new(StepCode::ForkFailed, format!("the fork failed: {}", told.message))
    }

    /// The size of an entry's sandbox. An agent without a definition fails later, when it should work.
    async fn size_of(&self, brief: &RaceBrief, entry: &EntryBrief) -> Result<SizeWish, StepError> {
        let agent = self.bench.store.agent(&self.scope(brief), entry.agent).await?;
        let definition = agent.and_then(|agent| agent.definition);
        let usual = self.bench.fleet.usual_limits();
        Ok(definition.map(|definition| definition.size(usual)).unwrap_or_default())
    }

    /// Finds or creates the sandbox that a group of entries is forked from.
    async fn ensure_group(
        &self,
        brief: &RaceBrief,
        group: usize,
        template: Option<&str>,
    ) -> Result<SandboxId, StepError> {
        let metadata = [("competition", brief.competition.to_string()), ("run", brief.run.to_string())];
        let order = SandboxOrder {
            key: &key(brief, &format!("source{}", suffix(group))),
            // It has no owner: each agent may see at most its own fork.
            agent: None,
            task: brief.task,
            template: template.or(brief.template.as_deref()),
            secrets: &BTreeMap::new(),
            env: BTreeMap::new(),
            metadata: metadata.map(|(name, value)| (name.to_string(), value)).into(),
            size: SizeWish::default(),
        };
        self.bench.ensure_sandbox(self.scope(brief), order).await
    }

    /// The sandboxes that entries are forked from, by group.
    async fn sources(&self, brief: &RaceBrief, first: SandboxId) -> Result<Vec<SandboxId>, StepError> {
        let mut sources = vec![first];
        for (group, (template, _)) in brief.groups().into_iter().enumerate().skip(1) {
            sources.push(self.ensure_group(brief, group, template).await?);
        }
        Ok(sources)
    }

    /// Waits for the templates of all agents, and tells each entry what it waits for.
    async fn await_templates(&self, brief: &RaceBrief, start: Start) -> Result<(), StepError> {
        for entry in &brief.entries {
            let (name, definition) = self.bench.agent(&self.scope(brief), entry.agent).await?;
            if definition.secrets.keys().any(|name| is_file(name)) {
                let message = format!(
                    "agent `{name}` signs in with a file, which one attempt at a time may use: it cannot compete"
                );
                return Err(StepError::fatal(StepCode::AgentUndefined, message));
            }
        }
        for (template, entries) in brief.groups() {
            let numbers: Vec<i64> = entries.iter().map(|entry| entry.number).collect();
            let tell = |doing: AgentProgress| {
                let numbers = numbers.clone();
                async move {
                    for number in numbers {
                        let note = EntryNote { doing: Some(doing.clone()), ..EntryNote::default() };
                        let told = self.bench.store.note_entry(start.run, start.fence, number, note).await;
                        if let Err(error) = told {
                            tracing::debug!("could not publish progress of entry {number}: {error}");
                        }
                    }
                }
                .boxed()
            };
            let template = template.or(brief.template.as_deref());
            self.bench.await_template(&self.scope(brief), template, &tell).await?;
        }
        Ok(())
    }

    /// One more try for an entry that got no sandbox.
    async fn fork_alone(&self, brief: &RaceBrief, source: SandboxId, entry: &EntryBrief) -> Fork {
        let key = key(brief, &format!("fork-{}", entry.number));
        let told = |error: StepError| RunFailure::new(error.code, error.message);
        let size = self.size_of(brief, entry).await.map_err(told)?;
        let forked = self.fork_so_often(brief, source, vec![size], &key).await;
        let forked = forked.map_err(told)?;
        match forked.children.into_iter().next() {
            Some(Ok(row)) => Ok(row.id),
            Some(Err(error)) => Err(self.failure(brief, error)),
            None => Err(RunFailure::new(StepCode::ForkFailed, "the fork failed")),
        }
    }

    async fn entry(&self, lane: Lane<'_>) -> Result<EntryRow, StepError> {
        let rows =
            self.bench.store.competition_entries(&self.scope(lane.brief), lane.brief.competition).await?;
        let found = rows.into_iter().find(|row| row.number == lane.entry.number);
        found.ok_or_else(|| StepError::fatal(StepCode::CompetitionGone, "the entry was deleted"))
    }

    /// The sandboxes in the competition's own rows; a sandbox that the caller prepared is not among them.
    async fn on_record(&self, brief: &RaceBrief) -> Result<Vec<SandboxId>, StepError> {
        let scope = self.scope(brief);
        let entries = self.bench.store.competition_entries(&scope, brief.competition).await?;
        let mut all: Vec<SandboxId> = entries.iter().filter_map(|entry| entry.sandbox).collect();
        if brief.source.is_none() {
            let row = self.bench.store.competition(&scope, brief.competition).await?;
            all.extend(row.and_then(|row| row.sandbox));
        }
        Ok(all)
    }

    /// The sandboxes that this competition created to fork them, live or ended.
    async fn own_sources(&self, brief: &RaceBrief) -> Result<Vec<SandboxId>, StepError> {
        let mut found = Vec::new();
        for group in 0..brief.groups().len() {
            let key = key(brief, &format!("source{}", suffix(group)));
            found.extend(self.bench.find_sandbox(&self.scope(brief), &key).await?);
        }
        Ok(found)
    }
}

#[async_trait::async_trait]
impl Arena for Ring {
    async fn ensure_source(&self, brief: &RaceBrief, start: Start) -> Result<SandboxId, StepError> {
        if let Some(given) = brief.source {
            self.bench.record(&self.station(brief, given)).await?;
            return Ok(given);
        }
        self.await_templates(brief, start).await?;
        let first = brief.groups().first().and_then(|(template, _)| *template);
        self.ensure_group(brief, 0, first).await
    }

    async fn clone(&self, brief: &RaceBrief, source: SandboxId) -> Result<Base, StepError> {
        let mut base = None;
        for source in self.sources(brief, source).await? {
            let at = self.station(brief, source);
            let order = self.bench.clone_order(&brief.repository, brief.base_branch.as_deref())?;
            let cloned = self.bench.with_git(&at, order, |git, session, order| async move {
                git.clone_to_work(&session, order).await
            });
            let (branch, commit) = cloned.await?;
            base.get_or_insert(Base { branch: branch.to_string(), commit: commit.to_string() });
        }
        base.ok_or_else(|| StepError::fatal(StepCode::CompetitionGone, "the competition has no entry"))
    }

    async fn prepare(
        &self,
        brief: &RaceBrief,
        source: SandboxId,
        command: &str,
    ) -> Result<Checked, StepError> {
        let mut last = None;
        for (group, source) in self.sources(brief, source).await?.into_iter().enumerate() {
            let (at, key) = (self.station(brief, source), key(brief, &format!("prepare{}", suffix(group))));
            let prepared = self.bench.run_check(&at, &key, &brief.repository, command, None).await?;
            if !prepared.passed {
                return Ok(prepared);
            }
            last = Some(prepared);
        }
        last.ok_or_else(|| StepError::fatal(StepCode::CompetitionGone, "the competition has no entry"))
    }

    async fn fork(&self, brief: &RaceBrief, source: SandboxId) -> Result<Vec<Fork>, StepError> {
        let sources = self.sources(brief, source).await?;
        let mut all: BTreeMap<i64, Fork> = BTreeMap::new();
        for (group, ((_, entries), source)) in brief.groups().into_iter().zip(sources).enumerate() {
            let mut forks: Vec<Option<Fork>> = Vec::with_capacity(entries.len());
            for entry in &entries {
                let known = self.forks_of(brief, entry.number).await?;
                forks.push(known.into_iter().find(|(_, live)| *live).map(|(sandbox, _)| Ok(sandbox)));
            }
            if forks.iter().all(Option::is_none) {
                let mut sizes = Vec::with_capacity(entries.len());
                for entry in &entries {
                    sizes.push(self.size_of(brief, entry).await?);
                }
                let key = key_of_forks(brief, group);
                let forked = self.fork_so_often(brief, source, sizes, &key).await?;
                for (fork, child) in forks.iter_mut().zip(forked.children) {
                    *fork = child.ok().map(|row| Ok(row.id));
                }
            }
            for (entry, fork) in entries.iter().zip(forks) {
                let fork = match fork {
                    Some(fork) => fork,
                    None => self.fork_alone(brief, source, entry).await,
                };
                all.insert(entry.number, fork);
            }
        }
        // In the order of the entries.
        let missing = || Err(RunFailure::new(StepCode::ForkFailed, "the entry has no sandbox"));
        Ok(brief.entries.iter().map(|entry| all.remove(&entry.number).unwrap_or_else(missing)).collect())
    }

    async fn leave_source(&self, brief: &RaceBrief, source: SandboxId) -> Result<(), StepError> {
        if brief.source.is_some() {
            return Ok(());
        }
        for source in self.own_sources(brief).await?.into_iter().chain([source]) {
            self.bench.end_sandbox(&self.station(brief, source)).await?;
        }
        Ok(())
    }

    async fn run_agent(&self, lane: Lane<'_>, tell: Tell<'_>) -> Result<Raced, StepError> {
        let (at, brief, entry) = (self.lane(lane), lane.brief, lane.entry);
        let (_, definition) = self.bench.agent(&at.scope, entry.agent).await?;
        let order = branch_order(&brief.repository, &entry.branch, Some(&lane.base.branch))?;
        let branched = self
            .bench
            .with_git(&at, order, |git, session, order| async move { git.branch(&session, order).await });
        branched.await?;
        let env = [
            ("COFFER_FORK_ID", brief.competition.to_string()),
            ("COFFER_ENTRY", entry.number.to_string()),
            ("COFFER_RUN_ID", brief.run.to_string()),
            ("COFFER_SANDBOX_ID", lane.sandbox.to_string()),
            ("COFFER_BRANCH", entry.branch.clone()),
            ("COFFER_TASK_ID", brief.task.map(|task| task.to_string()).unwrap_or_default()),
        ];
        let order = AgentOrder {
            key: &key(brief, &format!("agent-{}", entry.number)),
            place: Place::Repository(&brief.repository),
            definition: &definition,
            job: Job {
                title: &brief.title,
                description: entry.prompt.as_deref().unwrap_or(&brief.prompt),
                messages: &brief.messages,
                branch: &entry.branch,
                check: brief.check_command.as_deref(),
                model: entry.model.as_deref(),
                talk: Talk::default(),
            },
            env: env
                .into_iter()
                .filter(|(_, value)| !value.is_empty())
                .map(|(name, value)| (name.to_string(), value))
                .collect(),
            turn: Some(place(brief, entry.number)),
            agent: entry.agent,
            task: brief.task,
            run: Some(brief.run),
            allowance: entry.budget_nanos,
            run_allowance: brief.budget_nanos,
        };
        let work = self.bench.start_agent(&at, order).await?;
        tell(News::Begun(work.execution)).await;
        let progress = |(doing, report): Progress| tell(News::Progress(doing, report));
        let turn = self.bench.await_agent(&at, &work, entry.budget_nanos, None, &progress).await?;
        // The others go on: nobody is asked, and what it has done is on record with its patch.
        if let Some(Halt::Budget { message, .. }) = &turn.halted {
            return Err(StepError::fatal(Code::BudgetExceeded, message));
        }
        let row = self.bench.store.execution(&at.scope, work.execution).await?;
        let duration_ms = row.and_then(|row| Some((row.ended_ms? - row.started_ms).max(0)));
        Ok(Raced { turn, duration_ms })
    }

    async fn stop(&self, lane: Lane<'_>) -> Result<(), StepError> {
        let at = self.lane(lane);
        for what in ["agent", "check"] {
            let key = key(lane.brief, &format!("{what}-{}", lane.entry.number));
            if let Some(execution) = self.bench.store.keyed_execution(&at.scope, &key).await? {
                let record = self.bench.record(&at).await?;
                let ended = self.bench.exec.kill(&record, execution).await;
                ended.map_err(|error| self.bench.trouble(at.scope.project(), error))?;
            }
        }
        Ok(())
    }

    async fn commit(&self, lane: Lane<'_>) -> Result<Option<String>, StepError> {
        let (at, brief, entry) = (self.lane(lane), lane.brief, lane.entry);
        self.bench.keep(&at).await?;
        let agent = self.bench.agent(&at.scope, entry.agent).await;
        let agent = agent.map_or_else(|_| entry.agent.to_string(), |(name, _)| name);
        let about = match brief.task {
            Some(task) => ("Task", task.to_string()),
            None => ("Fork", brief.competition.to_string()),
        };
        let order = self.bench.commit_order(&at, &brief.repository, &brief.title, [about, ("Agent", agent)]);
        let onto = branch_name(&entry.branch, StepCode::Branch)?;
        let from = branch_name(&lane.base.branch, StepCode::UnknownBase)?;
        let committed =
            self.bench.with_git(&at, (order, onto, from), |git, session, (order, onto, from)| async move {
                git.commit_work(&session, order, &onto, &from).await
            });
        Ok(committed.await?.map(|commit| commit.to_string()).filter(|commit| *commit != lane.base.commit))
    }

    async fn changes(&self, lane: Lane<'_>) -> Result<Changes, StepError> {
        let at = self.lane(lane);
        let names = (plain(&lane.brief.repository), commit_id(&lane.base.commit)?);
        let found = self.bench.with_git(&at, names, |git, session, (repository, base)| async move {
            git.changes_since(&session, &repository, &base).await
        });
        let (stat, diff) = found.await?;
        // Callers that may read the record may not read secrets: redact it as an artifact. The first caller
        // loads the values.
        let project = at.scope.project();
        self.bench.store.secret_values(project).await?;
        Ok(Changes {
            diff: DiffSize { files: stat.files, added: stat.added, removed: stat.removed },
            patch: self.bench.patterns_at(&at).redact(&diff.patch),
            is_cut: diff.truncated,
        })
    }

    async fn check(&self, lane: Lane<'_>, command: &str) -> Result<Checked, StepError> {
        let key = key(lane.brief, &format!("check-{}", lane.entry.number));
        let place = Some(place(lane.brief, lane.entry.number));
        self.bench.run_check(&self.lane(lane), &key, &lane.brief.repository, command, place).await
    }

    async fn spent(&self, brief: &RaceBrief, sandbox: SandboxId) -> Result<i64, StepError> {
        self.bench.cost_of(&self.scope(brief), sandbox).await
    }

    async fn keep(&self, brief: &RaceBrief, sandbox: SandboxId) -> Result<(), StepError> {
        self.bench.keep(&self.station(brief, sandbox)).await
    }

    async fn give_back(&self, brief: &RaceBrief, sandbox: SandboxId) -> Result<(), StepError> {
        self.bench.end_sandbox(&self.station(brief, sandbox)).await
    }

    async fn rest(&self, brief: &RaceBrief, sandbox: SandboxId) -> Result<(), StepError> {
        self.bench.rest(&self.station(brief, sandbox)).await
    }

    async fn push(&self, lane: Lane<'_>, commit: &str) -> Result<(), StepError> {
        let at = self.lane(lane);
        self.bench.awake(&at).await?;
        let order = push_order(&lane.brief.repository, &lane.entry.branch)?;
        let pushed = self
            .bench
            .with_git(&at, order, |git, session, order| async move { git.push(&session, order).await });
        expect(&pushed.await?, commit)
    }

    async fn ensure_pull(&self, lane: Lane<'_>, reasons: &[String]) -> Result<Pull, StepError> {
        let (at, brief) = (self.lane(lane), lane.brief);
        self.bench.awake(&at).await?;
        let entry = self.entry(lane).await?;
        let text = describe(brief, &entry, reasons);
        let (repository, base) = (&brief.repository, Some(lane.base.branch.as_str()));
        let order = self.bench.pull_order(&at, repository, &text, &lane.entry.branch, base, false)?;
        let found = self
            .bench
            .with_git(&at, order, |git, session, order| async move { git.propose(&session, order).await });
        Ok(kept_pull(repository, found.await?))
    }

    async fn finish(&self, brief: &RaceBrief) -> Result<(), StepError> {
        let mut all = Vec::new();
        for entry in &brief.entries {
            all.extend(self.forks_of(brief, entry.number).await?.into_iter().map(|(sandbox, _)| sandbox));
        }
        if brief.source.is_none() {
            all.extend(self.own_sources(brief).await?);
        }
        // A key refers to a sandbox for a day, and a person may take longer to decide: use the rows too. The
        // keys have sandboxes that the rows do not have yet.
        all.extend(self.on_record(brief).await?);
        for sandbox in all {
            self.bench.end_sandbox(&self.station(brief, sandbox)).await?;
        }
        Ok(())
    }
}

/// The text of the winner's pull request.
fn describe(brief: &RaceBrief, entry: &EntryRow, reasons: &[String]) -> PullText {
    const LONGEST_TITLE: usize = 256;
    let mut body = quoted(entry.summary.as_deref());
    let about = match brief.task {
        Some(task) => format!("| Task | {} ({}) |\n", code(&task.to_string()), code(&brief.title)),
        None => String::new(),
    };
    let model = entry.model.as_deref().map(|model| format!(" ({})", code(model))).unwrap_or_default();
    let entries = brief.entries.len();
    body.push_str(&format!(
        "| | |\n|---|---|\n{about}| Competition | {} |\n| Winner | entry {} of {entries}, {}{model} |\n",
        code(&brief.competition.to_string()),
        entry.number,
        code(&entry.label),
    ));
    if let Some(commit) = &entry.commit {
        body.push_str(&format!("| Commit | {commit} |\n"));
    }
    // A person may pick another than the first; the reasons are those of its place.
    match entry.rank {
        Some(rank) if rank > 1 => {
            body.push_str(&format!("\nA person picked it. By rank it is number {rank}:\n\n"))
        }
        _ => body.push_str("\nWhy it won:\n\n"),
    }
    for reason in reasons {
        body.push_str(&format!("- {}\n", reason.replace(['\n', '\r'], " ").replace('@', "@\u{200b}")));
    }
    PullText { title: brief.title.chars().take(LONGEST_TITLE).collect(), body }
}
