//! Helpers for tests of competitions.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::agent::{AgentDefinition, Preset};
use coffer_core::compete::{CompetitionState, CompetitionTerms, EntryState, Rule};
use coffer_core::{AgentId, CompetitionId, Priority, TaskState};
use coffer_flow::compete::CompeteKind;
use coffer_flow::{Kind, Runner};
use coffer_store::{CompetitionRow, EntryRow, NewAgent, NewCompetition, NewEntry, NewTask, RunState};

use crate::ring::Ring;
use crate::world::{PATIENCE, World};

/// A store, an arena, and an agent to compete in it.
pub(crate) struct Stadium {
    pub(crate) world: World,
    pub(crate) ring: Ring,
    agent: AgentId,
}

impl Stadium {
    pub(crate) async fn new(database: &coffer_testkit::TestDatabase) -> Self {
        let world = World::new(database).await;
        let definition = Some(AgentDefinition::of(Preset::Codex));
        let new = NewAgent { name: "coder".into(), definition };
        let agent = world.store.create_agent(&world.scope, new).await.unwrap().id;
        let ring = Ring::new(world.outside.clone());
        Self { world, ring, agent }
    }

    pub(crate) async fn runner(&self) -> Runner {
        let settings = self.world.settings("here");
        let kind = CompeteKind::new(self.world.store.clone(), Arc::new(self.ring.clone())).paced(
            settings.clock.clone(),
            settings.tries,
            Duration::from_millis(5),
        );
        let kind: Arc<dyn Kind> = Arc::new(kind);
        Runner::start(self.world.store.clone(), settings, vec![kind]).await.unwrap()
    }

    pub(crate) fn new_one(&self, rule: Rule, labels: &[&str]) -> NewCompetition {
        let entry = |label: &&str| NewEntry {
            label: (*label).into(),
            agent: self.agent,
            model: None,
            prompt: None,
            budget_nanos: None,
        };
        let terms = CompetitionTerms {
            title: "Fix it".into(),
            prompt: "It is broken.".into(),
            repository: Some("local/app".into()),
            source: None,
            base_branch: None,
            template: None,
            prepare_command: Some("make ready".into()),
            check_command: Some("make test".into()),
            rule,
            budget_nanos: None,
            decide_within_s: 3600,
            context_id: None,
        };
        let entries = labels.iter().map(entry).collect();
        NewCompetition { terms, entries, actor: "test".into(), idempotency: None }
    }

    pub(crate) async fn begin(&self, new: NewCompetition) -> CompetitionRow {
        self.world.store.create_competition(&self.world.scope, new).await.unwrap()
    }

    pub(crate) async fn row(&self, competition: CompetitionId) -> CompetitionRow {
        self.world.store.competition(&self.world.scope, competition).await.unwrap().unwrap()
    }

    pub(crate) async fn entries(&self, competition: CompetitionId) -> Vec<EntryRow> {
        self.world.store.competition_entries(&self.world.scope, competition).await.unwrap()
    }

    /// Waits until its entries match.
    pub(crate) async fn until_states(&self, row: &CompetitionRow, states: &[EntryState]) {
        let so = tokio::time::timeout(PATIENCE, async {
            while self.entries(row.id).await.iter().map(|entry| entry.state).collect::<Vec<_>>() != states {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
        so.await.expect("the entries come that far");
    }

    /// Waits until it waits for a person.
    pub(crate) async fn until_waiting(&self, row: &CompetitionRow) {
        self.world.until(row.run, |run| run.state == RunState::Parked).await;
        assert_eq!(self.row(row.id).await.state, CompetitionState::Waiting);
    }

    /// Entry 2 won once, and no sandbox is left.
    pub(crate) async fn assert_second_won(&self, row: &CompetitionRow) {
        let row = self.row(row.id).await;
        assert_eq!((row.state, row.winner, &row.error), (CompetitionState::Decided, Some(2), &None));
        let entries = self.entries(row.id).await;
        let states: Vec<_> = entries.iter().map(|entry| entry.state).collect();
        assert_eq!(states, [EntryState::Done; 3]);
        let ranks: Vec<_> = entries.iter().map(|entry| entry.rank.unwrap()).collect();
        assert_eq!(ranks, [2, 1, 3]);
        let branch = format!("fork-{}-2", row.id);
        let field = self.ring.field.lock().unwrap();
        assert_eq!(row.pull_url.as_ref(), field.pulls.get(&branch));
        assert!(row.pull_url.is_some() && entries[1].branch.as_ref() == Some(&branch));
        assert_eq!(field.branches.get(&branch), entries[1].commit.as_ref());
        let left = field.sandboxes.keys().filter(|key| key.starts_with(&row.id.to_string())).count();
        assert_eq!(left, 0, "sandboxes are left");
        let own = |key: &&String| key.contains(&row.id.to_string());
        assert_eq!(field.branches.keys().filter(own).count(), 1, "only the winner's is pushed");
    }
}

pub(crate) fn new_task() -> NewTask {
    NewTask {
        title: "Fix it".into(),
        description: "It is broken.".into(),
        state: TaskState::Todo,
        priority: Priority::Medium,
        labels: Vec::new(),
        repository: Some("local/app".into()),
        base_branch: None,
        agent: None,
        model: None,
        check_command: None,
        budget_nanos: None,
        context_id: None,
        actor: "test".into(),
    }
}

pub(crate) const THREE: [&str; 3] = ["lines=5", "lines=2", "wrong lines=1"];
