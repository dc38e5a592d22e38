//! A fake arena that only counts. The label of an entry says what it does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use coffer_core::agent::{AgentReport, Tokens};
use coffer_core::compete::DiffSize;
use coffer_core::{ExecutionId, FailureCode, SandboxId, StepCode};
use coffer_flow::compete::{Arena, Base, Changes, Fork, Lane, News, RaceBrief, Raced, Tell};
use coffer_flow::task::{AgentTurn, Checked, Pull};
use coffer_flow::{Start, StepError};
use coffer_store::RunFailure;

use crate::outside::Outside;

/// The outside world, by lookup key.
#[derive(Debug, Default)]
pub(crate) struct Field {
    /// By competition and `source` or the entry's number.
    pub(crate) sandboxes: BTreeMap<String, SandboxId>,
    pub(crate) made: usize,
    pub(crate) resting: Vec<SandboxId>,
    /// Where an agent works, even if no server waits for it.
    pub(crate) at_work: BTreeSet<SandboxId>,
    /// How often each deadline was extended.
    pub(crate) kept: BTreeMap<SandboxId, usize>,
    pub(crate) turns: BTreeMap<String, usize>,
    pub(crate) commits: BTreeMap<String, usize>,
    pub(crate) branches: BTreeMap<String, String>,
    pub(crate) pulls: BTreeMap<String, String>,
    /// Whether expensive entries have reached their cost.
    pub(crate) is_dear: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Ring {
    pub(crate) outside: Outside,
    pub(crate) field: Arc<Mutex<Field>>,
}

/// The methods that a competition by rule calls, in order.
pub(crate) const METHODS: [&str; 12] = [
    "ensure_source",
    "clone",
    "prepare",
    "fork",
    "leave_source",
    "run_agent",
    "commit",
    "changes",
    "check",
    "push",
    "ensure_pull",
    "finish",
];

/// The change of an entry with this label: `lines=7`, or three lines.
fn lines(label: &str) -> u64 {
    let said = label.split(' ').find_map(|word| word.strip_prefix("lines="));
    said.map_or(3, |text| text.parse().unwrap())
}

impl Ring {
    pub(crate) fn new(outside: Outside) -> Self {
        Self { outside, field: Arc::default() }
    }

    async fn act<T>(&self, method: &str, effect: impl FnOnce(&mut Field) -> T) -> Result<T, StepError> {
        self.outside.pass(&format!("before {method}")).await;
        if self.outside.fails(&format!("fatal {method}")) {
            return Err(StepError::fatal(FailureCode::read("broken"), "it is broken"));
        }
        let done = effect(&mut self.field.lock().unwrap());
        self.outside.pass(&format!("after {method}")).await;
        if self.outside.fails(method) {
            return Err(StepError::transient(FailureCode::read("away"), "it is away"));
        }
        Ok(done)
    }

    fn is_there(&self, sandbox: SandboxId) -> bool {
        self.field.lock().unwrap().sandboxes.values().any(|known| *known == sandbox)
    }

    fn assert_there(&self, sandbox: SandboxId) {
        assert!(self.is_there(sandbox), "it works in a sandbox that is gone");
    }
}

fn ensure(field: &mut Field, key: String) -> SandboxId {
    if let Some(known) = field.sandboxes.get(&key) {
        return *known;
    }
    let made = SandboxId::generate();
    field.sandboxes.insert(key, made);
    field.made += 1;
    made
}

#[async_trait::async_trait]
impl Arena for Ring {
    async fn ensure_source(&self, brief: &RaceBrief, start: Start) -> Result<SandboxId, StepError> {
        self.outside.fence(&brief.run.to_string(), start.fence);
        if let Some(given) = brief.source {
            return Ok(given);
        }
        self.act("ensure_source", |field| ensure(field, format!("{}/source", brief.competition))).await
    }

    async fn clone(&self, brief: &RaceBrief, _: SandboxId) -> Result<Base, StepError> {
        assert_eq!(brief.repository, "local/app");
        self.act("clone", |_| Base { branch: "main".into(), commit: "base".into() }).await
    }

    async fn prepare(&self, _: &RaceBrief, _: SandboxId, command: &str) -> Result<Checked, StepError> {
        let passed = command == "make ready";
        let exit_code = Some(i64::from(!passed));
        self.act("prepare", |_| Checked { passed, exit_code, execution: None, tail: None }).await
    }

    async fn fork(&self, brief: &RaceBrief, source: SandboxId) -> Result<Vec<Fork>, StepError> {
        self.act("fork", |field| {
            let all_there = brief.entries.iter().all(|entry| {
                entry.label.contains("unforked")
                    || field.sandboxes.contains_key(&format!("{}/{}", brief.competition, entry.number))
            });
            let source_there = field.sandboxes.values().any(|known| *known == source);
            assert!(all_there || brief.source.is_some() || source_there, "it forks what is gone");
            let fork = |entry: &coffer_flow::compete::EntryBrief| {
                if entry.label.contains("unforked") {
                    return Err(RunFailure::new(StepCode::NoRoom, "there is no room"));
                }
                Ok(ensure(field, format!("{}/{}", brief.competition, entry.number)))
            };
            brief.entries.iter().map(fork).collect()
        })
        .await
    }

    async fn leave_source(&self, brief: &RaceBrief, _: SandboxId) -> Result<(), StepError> {
        self.act("leave_source", |field| {
            field.sandboxes.remove(&format!("{}/source", brief.competition));
        })
        .await
    }

    async fn run_agent(&self, lane: Lane<'_>, tell: Tell<'_>) -> Result<Raced, StepError> {
        self.assert_there(lane.sandbox);
        let label = lane.entry.label.as_str();
        let key = format!("{}/{}", lane.brief.competition, lane.entry.number);
        let execution = ExecutionId::generate();
        self.act("run_agent", |field| *field.turns.entry(key).or_default() = 1).await?;
        tell(News::Begun(execution)).await;
        assert!(!label.contains("panics"), "on purpose");
        if label.contains("hangs") {
            self.field.lock().unwrap().at_work.insert(lane.sandbox);
            std::future::pending::<()>().await;
        }
        let report = AgentReport {
            tokens: Some(Tokens { input: 100, cached: 0, output: 10 }),
            cost_nanos: Some(5),
            summary: Some("done".into()),
            ..AgentReport::default()
        };
        let exit_code = Some(i64::from(label.contains("fails")));
        let turn = AgentTurn {
            execution: Some(execution),
            exit_code,
            report,
            reported: None,
            halted: None,
            trouble: None,
        };
        Ok(Raced { turn, duration_ms: Some(1000) })
    }

    async fn stop(&self, lane: Lane<'_>) -> Result<(), StepError> {
        self.field.lock().unwrap().at_work.remove(&lane.sandbox);
        Ok(())
    }

    async fn commit(&self, lane: Lane<'_>) -> Result<Option<String>, StepError> {
        self.act("commit", |field| {
            if lane.entry.label.contains("lazy") {
                return None;
            }
            let commit = format!("{}@{}", lane.entry.branch, lane.brief.run);
            *field.commits.entry(commit.clone()).or_default() = 1;
            Some(commit)
        })
        .await
    }

    async fn changes(&self, lane: Lane<'_>) -> Result<Changes, StepError> {
        if self.field.lock().unwrap().at_work.contains(&lane.sandbox) {
            return Err(StepError::transient(StepCode::StillRunning, "its agent is at work"));
        }
        let diff = DiffSize { files: 1, added: lines(&lane.entry.label), removed: 0 };
        self.act("changes", |_| Changes { diff, patch: lane.entry.label.clone(), is_cut: false }).await
    }

    async fn check(&self, lane: Lane<'_>, command: &str) -> Result<Checked, StepError> {
        assert_eq!(command, "make test");
        self.assert_there(lane.sandbox);
        let passed = !lane.entry.label.contains("wrong");
        let exit_code = Some(i64::from(!passed));
        self.act("check", |_| Checked { passed, exit_code, execution: None, tail: None }).await
    }

    async fn spent(&self, brief: &RaceBrief, sandbox: SandboxId) -> Result<i64, StepError> {
        let field = self.field.lock().unwrap();
        let of = |label: &str| {
            let entry = brief.entries.iter().find(|entry| entry.label.contains(label))?;
            field.sandboxes.get(&format!("{}/{}", brief.competition, entry.number)).copied()
        };
        Ok(if field.is_dear && of("dear") == Some(sandbox) { 1_000_000 } else { 10 })
    }

    async fn keep(&self, _: &RaceBrief, sandbox: SandboxId) -> Result<(), StepError> {
        *self.field.lock().unwrap().kept.entry(sandbox).or_default() += 1;
        Ok(())
    }

    async fn give_back(&self, _: &RaceBrief, sandbox: SandboxId) -> Result<(), StepError> {
        self.field.lock().unwrap().sandboxes.retain(|_, known| *known != sandbox);
        Ok(())
    }

    async fn rest(&self, _: &RaceBrief, sandbox: SandboxId) -> Result<(), StepError> {
        if !self.is_there(sandbox) {
            return Err(StepError::fatal(StepCode::SandboxLost, "its time was up"));
        }
        self.act("rest", |field| field.resting.push(sandbox)).await
    }

    async fn push(&self, lane: Lane<'_>, commit: &str) -> Result<(), StepError> {
        self.assert_there(lane.sandbox);
        if self.outside.fails("full push") {
            return Err(StepError::transient(StepCode::NoRoom, "the project is full"));
        }
        self.act("push", |field| {
            assert!(field.commits.contains_key(commit));
            field.branches.insert(lane.entry.branch.clone(), commit.to_string());
        })
        .await
    }

    async fn ensure_pull(&self, lane: Lane<'_>, reasons: &[String]) -> Result<Pull, StepError> {
        assert!(!reasons.is_empty());
        self.act("ensure_pull", |field| {
            assert!(field.branches.contains_key(&lane.entry.branch));
            let number = i64::try_from(field.pulls.len()).unwrap() + 1;
            let pulls = &mut field.pulls;
            let url = pulls.entry(lane.entry.branch.clone()).or_insert_with(|| format!("/pulls/{number}"));
            Pull { url: url.clone(), number: Some(number) }
        })
        .await
    }

    async fn finish(&self, brief: &RaceBrief) -> Result<(), StepError> {
        let prefix = format!("{}/", brief.competition);
        self.act("finish", |field| field.sandboxes.retain(|key, _| !key.starts_with(&prefix))).await
    }
}
