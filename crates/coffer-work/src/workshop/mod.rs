//! The work of agents: a sandbox, a repository in it, an agent, and its results.
//!
//! [`TaskShop`] implements the steps of an attempt at a task, [`Ring`] those of a competition. Both use
//! [`Git`] for git operations, and share a [`Workbench`]: sandboxes, agents and retries. Every step may be
//! called again after a server died: it finds existing results, by the key or the names that it gets, and
//! continues from them.

mod agent;
mod compete;
mod describe;
mod heard;
mod login;
mod making;
mod program;
mod repository;
mod rest;
mod sandbox;
mod script;
mod setup;
mod status;
mod stock;
mod task;
mod trial;
mod trouble;
mod waiting;

use std::sync::Arc;

use coffer_core::agent::AgentDefinition;
use coffer_core::{AgentId, LifetimePolicy, SandboxId, StepCode};
use coffer_flow::StepError;
use coffer_store::{AgentRow, ProjectScope, Store};

pub use agent::{AgentOrder, Place};
pub use compete::Ring;
pub use describe::{PullText, WorkDone};
pub use making::Making;
pub use sandbox::SandboxOrder;
pub use status::OWN_STATUS;
pub use stock::{Stock, StockState};
pub use task::TaskShop;
pub use trial::Trial;

use crate::git::{Git, Signature};
use crate::models::Models;
use coffer_fleet::Fleet;
use coffer_fleet::exec::Exec;
use coffer_fleet::limits::Limiter;

/// The services that steps of tasks and competitions use.
#[derive(Debug)]
pub struct Workbench {
    pub store: Store,
    pub fleet: Arc<Fleet>,
    pub git: Arc<Git>,
    pub models: Arc<Models>,
    pub exec: Exec,
    pub limiter: Arc<Limiter>,
    pub policy: LifetimePolicy,
    pub default_template: String,
    /// Templates that are built when an agent needs them.
    pub stock: Arc<dyn Stock>,
    /// The author of commits if a project has none.
    pub signature: Signature,
    /// A lookup of a sandbox waits until those being created are recorded.
    pub making: Making,
}

/// The project and sandbox of some work.
#[derive(Debug, Clone)]
pub struct Station {
    pub scope: ProjectScope,
    pub sandbox: SandboxId,
    /// The actor for records: `agent:<id>`.
    pub actor: String,
}

impl Workbench {
    /// The name and definition of an agent.
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

    /// The name of an agent, or its id if it was deleted.
    pub async fn name_of(&self, scope: &ProjectScope, agent: AgentId) -> Result<String, StepError> {
        Ok(self.store.agent(scope, agent).await?.map_or_else(|| agent.to_string(), |found| found.name))
    }
}
