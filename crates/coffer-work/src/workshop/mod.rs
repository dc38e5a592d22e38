//! Where agents work: a sandbox, a repository in it, an agent, and what becomes of its work.
//!
//! [`Workbench`] has the single moves, for whoever has a plan; [`TaskShop`] is the plan of an attempt at a task. Every move
//! may be asked for again after a server died over it: it finds what is there, by the key or the names that it was
//! given, and goes on from that.

mod agent;
mod compete;
mod describe;
mod heard;
mod making;
mod repository;
mod sandbox;
mod task;
mod trouble;

use std::sync::Arc;

use coffer_core::agent::AgentDefinition;
use coffer_core::{AgentId, LifetimePolicy, SandboxId, StepCode};
use coffer_flow::StepError;
use coffer_store::{AgentRow, ProjectScope, Store};

pub use agent::AgentOrder;
pub use compete::Ring;
pub use describe::{PullText, WorkDone};
pub use repository::{Base, CommitText};
pub use sandbox::SandboxOrder;
pub use task::TaskShop;

use making::Making;

use crate::git::{Git, Signature};
use coffer_fleet::Fleet;
use coffer_fleet::exec::Exec;
use coffer_fleet::limits::Limiter;

/// What the moves are made with.
#[derive(Debug)]
pub struct Workbench {
    pub store: Store,
    pub fleet: Arc<Fleet>,
    pub git: Arc<Git>,
    pub exec: Exec,
    pub limiter: Arc<Limiter>,
    pub policy: LifetimePolicy,
    pub default_template: String,
    /// Under whose name is committed where a project has none.
    pub signature: Signature,
    /// Whoever looks for a sandbox waits until those that are being made are on record.
    making: Making,
}

/// What a workbench is made of.
#[derive(Debug)]
pub struct Tools {
    pub store: Store,
    pub fleet: Arc<Fleet>,
    pub git: Arc<Git>,
    pub exec: Exec,
    pub limiter: Arc<Limiter>,
    pub policy: LifetimePolicy,
    pub default_template: String,
    pub signature: Signature,
}

/// Whose work it is, and where it is done.
#[derive(Debug, Clone)]
pub struct Station {
    pub scope: ProjectScope,
    pub sandbox: SandboxId,
    /// For records: `agent:<id>`.
    pub actor: String,
}

impl Workbench {
    pub fn new(tools: Tools) -> Self {
        let Tools { store, fleet, git, exec, limiter, policy, default_template, signature } = tools;
        Self {
            store,
            fleet,
            git,
            exec,
            limiter,
            policy,
            default_template,
            signature,
            making: Making::default(),
        }
    }

    /// The name of an agent, and how it is run.
    pub async fn agent(
        &self,
        scope: &ProjectScope,
        agent: AgentId,
    ) -> Result<(String, AgentDefinition), StepError> {
        let found = self.store.agent(scope, agent).await?;
        let found = found.ok_or_else(|| StepError::fatal(StepCode::NoAgent, "the agent was removed"))?;
        let AgentRow { name, definition, .. } = found;
        let undefined = || {
            StepError::fatal(
                StepCode::AgentUndefined,
                format!("agent `{name}` has no definition, or one that is sealed"),
            )
        };
        let definition = definition.ok_or_else(undefined)?;
        Ok((name, definition))
    }

    /// What an agent is called, also where it was removed.
    pub async fn name_of(&self, scope: &ProjectScope, agent: AgentId) -> Result<String, StepError> {
        Ok(self.store.agent(scope, agent).await?.map_or_else(|| agent.to_string(), |found| found.name))
    }
}
