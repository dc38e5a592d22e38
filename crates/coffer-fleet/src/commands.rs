//! Checks whether a project permits a command: command policies, cached in memory, and events for refusals.
//!
//! A change by this server applies from its answer on; one by another server on the same database within
//! [`LOOK`]. If the database does not answer, the cached policies stay in force.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use coffer_core::command::CommandPolicy;
use coffer_core::event::{CommandRefused, Event};
use coffer_core::sync::RwLock;
use coffer_core::{ExecutionSource, ProjectId};
use coffer_store::{Store, StoreError, VersionedPolicy};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::fleet::Record;
use crate::follow::Follower;
use crate::output::Output;
use coffer_core::clock::now_ms;
use coffer_core::command::RefusedCommand;

/// How long a change by another server may go unnoticed.
const LOOK: Duration = Duration::from_secs(2);

/// Longest command text in an event.
const LONGEST_TOLD: usize = 256;

/// The policies of all projects that have one.
#[derive(Debug)]
pub struct Commands {
    store: Store,
    output: Arc<Output>,
    policies: RwLock<HashMap<ProjectId, Known>>,
}

#[derive(Debug, Clone)]
struct Known {
    policy: Arc<CommandPolicy>,
    version: i64,
}

impl Commands {
    /// Reads all policies, and follows changes by other servers until `stop`.
    pub async fn start(
        store: Store,
        output: Arc<Output>,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Result<Arc<Self>, StoreError> {
        let commands = Arc::new(Self { store, output, policies: RwLock::default() });
        let version = commands.refresh().await?;
        tasks.spawn(commands.clone().follow(version, stop));
        Ok(commands)
    }

    async fn follow(self: Arc<Self>, mut version: i64, stop: CancellationToken) {
        let late = "could not read command policies, trying again";
        let (mut follower, mut looked) = (Follower::new(late, LOOK, stop), Ok(()));
        while follower.again(looked).await {
            looked = self.look(&mut version).await;
        }
    }

    async fn look(&self, version: &mut i64) -> Result<(), StoreError> {
        if self.store.command_policies_version(&self.store.operator()).await? != *version {
            *version = self.refresh().await?;
        }
        Ok(())
    }

    async fn refresh(&self) -> Result<i64, StoreError> {
        let operator = self.store.operator();
        // Read the version first: a change in between is then read twice, not missed.
        let version = self.store.command_policies_version(&operator).await?;
        for (project, policy) in self.store.command_policies(&operator).await? {
            self.learn(project, policy);
        }
        Ok(version)
    }

    /// Caches a policy, unless a newer one is cached.
    pub fn learn(&self, project: ProjectId, new: VersionedPolicy) {
        let mut policies = self.policies.write();
        if policies.get(&project).is_none_or(|known| known.version < new.version) {
            policies.insert(project, Known { policy: Arc::new(new.policy), version: new.version });
        }
    }

    /// Whether a project has a policy that could refuse a command.
    pub fn restricts(&self, project: ProjectId) -> bool {
        self.policy(project).is_some()
    }

    /// The command policy of a project; `None` if it permits everything.
    fn policy(&self, project: ProjectId) -> Option<Arc<CommandPolicy>> {
        let policies = self.policies.read();
        policies.get(&project).map(|known| known.policy.clone()).filter(|policy| !policy.is_empty())
    }

    /// Checks a program with its arguments against the policy of a project: the only place that does. Every
    /// way to start a command asks here, by way of [`permit`](Self::permit) or of the proxy's gate.
    pub fn check(&self, project: ProjectId, words: &[String]) -> Result<(), RefusedCommand> {
        self.policy(project).map_or(Ok(()), |policy| policy.permit(words))
    }

    /// Checks whether a command may be started in a sandbox; before a refusal is returned, its event is
    /// written.
    pub async fn permit(&self, record: &Record, words: &[String]) -> Result<(), RefusedCommand> {
        let permitted = self.check(record.project, words);
        if let Err(refused) = &permitted {
            self.tell(record, refused, ExecutionSource::Api).await;
        }
        permitted
    }

    /// Records a refused command as an event.
    pub async fn tell(&self, record: &Record, refused: &RefusedCommand, source: ExecutionSource) {
        let command = self.output.patterns_in(record).redact(&refused.words.join(" "));
        let command: String = command.chars().take(LONGEST_TOLD).collect();
        let (reason, rule) = (refused.why.clone(), refused.rule);
        let event = Event::CommandRefused(CommandRefused { command, reason, rule, source });
        let recorded = self.store.record_event_of(&self.store.operator(), record.id, event, now_ms()).await;
        if let Err(error) = recorded {
            tracing::error!(sandbox.id = %record.id, "could not record the event of a refused command: {error}");
        }
        tracing::info!(sandbox.id = %record.id, project.id = %record.project, "refused a command: {}", refused.why);
    }
}
