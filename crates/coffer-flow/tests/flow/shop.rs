//! A fake workshop that only counts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use coffer_core::agent::{AgentReport, Tokens};
use coffer_core::{FailureCode, SandboxId};
use coffer_flow::task::{AgentTurn, Brief, Checked, Ending, Halt, Pull, Turn, Workshop};
use coffer_flow::{Start, StepError};
use coffer_store::{ProjectScope, Store};

use crate::outside::Outside;

/// The outside world, by lookup key.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) sandboxes: BTreeMap<String, SandboxId>,
    /// How many were ever created.
    pub(crate) sandboxes_made: usize,
    pub(crate) branches: BTreeMap<String, Option<String>>,
    pub(crate) turns: BTreeMap<String, Vec<String>>,
    pub(crate) checks: BTreeMap<String, bool>,
    pub(crate) commits: Vec<String>,
    pub(crate) pulls: BTreeMap<String, String>,
    /// Why pull requests are drafts, by branch.
    pub(crate) drafts: BTreeMap<String, String>,
    /// How often sandboxes rested, and work again, by run.
    pub(crate) resting: BTreeMap<String, bool>,
    /// Turns that are ended before they are done, by number of the turn.
    pub(crate) halts: BTreeMap<usize, Halt>,
    /// The budgets that turns had.
    pub(crate) budgets: Vec<Option<i64>>,
    pub(crate) endings: Vec<(String, Ending)>,
}

#[derive(Debug, Clone)]
pub(crate) struct Shop {
    pub(crate) outside: Outside,
    pub(crate) world: Arc<Mutex<World>>,
    /// The task that gets a message during every turn.
    pub(crate) chatter: Arc<Mutex<Option<(Store, ProjectScope)>>>,
}

/// The methods, in the order in which they are called.
pub(crate) const METHODS: [&str; 9] =
    ["ensure_sandbox", "clone", "branch", "run_agent", "check", "commit", "push", "ensure_pull", "finish"];

impl Shop {
    pub(crate) fn new(outside: Outside) -> Self {
        Self { outside, world: Arc::default(), chatter: Arc::default() }
    }

    /// Passes the two sides of an effect, and fails if requested.
    async fn act<T>(&self, method: &str, effect: impl FnOnce(&mut World) -> T) -> Result<T, StepError> {
        self.outside.pass(&format!("before {method}")).await;
        if self.outside.fails(&format!("fatal {method}")) {
            return Err(StepError::fatal(FailureCode::read("broken"), "it is broken"));
        }
        let done = effect(&mut self.world.lock().unwrap());
        self.outside.pass(&format!("after {method}")).await;
        if self.outside.fails(method) {
            return Err(StepError::transient(FailureCode::read("away"), "it is away"));
        }
        Ok(done)
    }
}

#[async_trait::async_trait]
impl Workshop for Shop {
    async fn ensure_sandbox(&self, brief: &Brief, start: Start) -> Result<SandboxId, StepError> {
        self.outside.fence(&brief.run.to_string(), start.fence);
        self.act("ensure_sandbox", |world| {
            let known = world.sandboxes.get(&brief.run.to_string()).copied();
            known.unwrap_or_else(|| {
                let made = SandboxId::generate();
                world.sandboxes.insert(brief.run.to_string(), made);
                world.sandboxes_made += 1;
                made
            })
        })
        .await
    }

    async fn clone(&self, brief: &Brief, sandbox: SandboxId) -> Result<String, StepError> {
        assert_eq!(brief.repository, "local/app");
        self.act("clone", |world| {
            assert!(world.sandboxes.values().any(|known| *known == sandbox));
            "base".to_string()
        })
        .await
    }

    async fn set_up(&self, _: &Brief, _: SandboxId, _: Start) -> Result<Option<SandboxId>, StepError> {
        Ok(None)
    }

    async fn branch(&self, brief: &Brief, _: SandboxId, _: &str) -> Result<String, StepError> {
        self.act("branch", |world| {
            world.branches.entry(brief.branch.clone()).or_default();
            brief.branch.clone()
        })
        .await
    }

    async fn run_agent(
        &self,
        brief: &Brief,
        _: SandboxId,
        turn: Turn<'_>,
        _: Start,
    ) -> Result<AgentTurn, StepError> {
        self.act("run_agent", |world| {
            // By its key, so that it is started once.
            let key = format!("{}/{}", brief.run, turn.number);
            let failed = turn.failed.map(|(checked, correction)| {
                assert!(!checked.passed && checked.tail.as_deref() == Some("no tests"));
                format!("correction {correction}")
            });
            let halted = turn.halted.map(|halt| format!("stopped: {}", halt.told()));
            let said = halted.into_iter().chain(turn.said.iter().map(|said| said.plain())).chain(failed);
            assert!(world.resting.get(&brief.run.to_string()) != Some(&true), "its sandbox rests");
            if let std::collections::btree_map::Entry::Vacant(entry) = world.turns.entry(key) {
                entry.insert(said.collect());
                world.budgets.push(brief.budget_nanos);
            }
        })
        .await?;
        let chatter = self.chatter.lock().unwrap().clone();
        if let Some((store, scope)) = chatter {
            store
                .say_to_task(&scope, brief.task, "ann", &format!("after {}", turn.number), None)
                .await
                .unwrap();
        }
        let failed = self.outside.fails("agent");
        let tokens = Tokens { input: 100, cached: 0, output: 10 };
        let report = AgentReport {
            tokens: Some(tokens),
            cost_nanos: Some(5),
            summary: Some("done".into()),
            error: failed.then(|| "no idea".into()),
            ..AgentReport::default()
        };
        let halted = self.world.lock().unwrap().halts.get(&turn.number).cloned();
        // A turn that is ended has no good end.
        let exit_code = Some(i64::from(failed || halted.is_some()));
        Ok(AgentTurn { execution: None, exit_code, report, reported: None, halted, trouble: None })
    }

    async fn check(
        &self,
        brief: &Brief,
        _: SandboxId,
        command: &str,
        step: &str,
        _: usize,
    ) -> Result<Checked, StepError> {
        assert_eq!(command, "make test");
        self.act("check", |world| {
            // By its key, so that it is started once.
            let key = format!("{}/{step}", brief.run);
            let passed = *world.checks.entry(key).or_insert_with(|| !self.outside.fails("the check"));
            let tail = (!passed).then(|| "no tests".to_string());
            Checked { passed, exit_code: Some(i64::from(!passed)), execution: None, tail }
        })
        .await
    }

    async fn commit(
        &self,
        brief: &Brief,
        _: SandboxId,
        branch: &str,
        _: &str,
    ) -> Result<Option<String>, StepError> {
        let nothing = self.outside.fails("nothing to commit");
        self.act("commit", |world| {
            if nothing {
                return None;
            }
            let commit = format!("{branch}@{}", brief.run);
            if !world.commits.contains(&commit) {
                world.commits.push(commit.clone());
            }
            Some(commit)
        })
        .await
    }

    async fn push(&self, _: &Brief, _: SandboxId, branch: &str, commit: &str) -> Result<(), StepError> {
        self.act("push", |world| {
            world.branches.insert(branch.to_string(), Some(commit.to_string()));
        })
        .await
    }

    async fn ensure_pull(
        &self,
        _: &Brief,
        branch: &str,
        commit: &str,
        _: Option<&Checked>,
        report: &AgentReport,
        draft: Option<&str>,
    ) -> Result<Pull, StepError> {
        assert!(report.tokens.is_some());
        self.act("ensure_pull", |world| {
            assert_eq!(world.branches[branch].as_deref(), Some(commit));
            if let Some(why) = draft {
                world.drafts.insert(branch.to_string(), why.to_string());
            }
            let number = i64::try_from(world.pulls.len()).unwrap() + 1;
            let url = world.pulls.entry(branch.to_string()).or_insert_with(|| format!("/pulls/{number}"));
            Pull { url: url.clone(), number: Some(number) }
        })
        .await
    }

    async fn rest(&self, brief: &Brief, _: SandboxId) -> Result<(), StepError> {
        self.act("rest", |world| {
            world.resting.insert(brief.run.to_string(), true);
        })
        .await
    }

    async fn wake(&self, brief: &Brief, _: SandboxId) -> Result<(), StepError> {
        self.act("wake", |world| {
            world.resting.insert(brief.run.to_string(), false);
        })
        .await
    }

    async fn finish(&self, brief: &Brief, _: Option<SandboxId>, how: Ending) -> Result<(), StepError> {
        self.act("finish", |world| {
            // A failed sandbox is left for a person to look at.
            if how != Ending::Failed {
                world.sandboxes.remove(&brief.run.to_string());
            }
            let ending = (brief.run.to_string(), how);
            if !world.endings.contains(&ending) {
                world.endings.push(ending);
            }
        })
        .await
    }
}
