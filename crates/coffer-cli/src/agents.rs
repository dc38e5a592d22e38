//! `agent`: the coding agents of a project.

use clap::{Args, Subcommand};
use coffer_api_types::agents::Agent;
use coffer_core::AgentId;

use crate::agent_setup::{self, Add};
use crate::context::{Context, pick};
use crate::failure::{Failure, Outcome};

/// Coding agents of the project
#[derive(Debug, Args)]
pub struct Agents {
    #[command(subcommand)]
    verb: AgentVerb,
}

#[derive(Debug, Subcommand)]
enum AgentVerb {
    /// List agents
    Ls,
    /// Show an agent
    Show { agent: String },
    /// Add an agent from a preset: store its key, define it, build its template
    ///
    /// `coffer agent add claude_code` asks for the key, or reads it from stdin if that is a pipe; no option takes it. Run
    /// again, it changes what is named: another key, another model. With --preset or --definition the word is the name
    /// of a new agent, and the rest is not done.
    Add(Box<Add>),
    /// Test an agent: start its program, ask it for one word, and show version, model and cost
    Test { agent: String },
    /// List known agent programs
    Presets,
    /// Delete an agent
    Rm { agent: String },
}

pub(crate) async fn resolve(context: &Context, text: &str) -> Result<Agent, Failure> {
    if text.parse::<AgentId>().is_ok() {
        return Ok(context.client.agent(text).await?);
    }
    let all = context.client.agents().all().await?;
    let found =
        pick(&all, "agent", "agent ls", text, |agent| agent.id.as_str(), |agent| Some(agent.name.as_str()))?;
    Ok(found.clone())
}

pub(crate) async fn resolve_some(context: &Context, text: Option<&str>) -> Result<Option<AgentId>, Failure> {
    let Some(text) = text else { return Ok(None) };
    let agent = resolve(context, text).await?;
    agent.id.parse().map(Some).map_err(|_| Failure::new("the agent's id cannot be read"))
}

impl Agents {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let client = &context.client;
        match self.verb {
            AgentVerb::Ls => {
                let columns = ["id", "name", "definition.preset", "definition.model", "created_at"];
                context.printer.list(&client.agents().all().await?, &columns)?;
            }
            AgentVerb::Show { agent } => context.printer.show(&resolve(context, &agent).await?)?,
            AgentVerb::Add(add) => return add.run(context).await,
            AgentVerb::Test { agent } => {
                let agent = resolve(context, &agent).await?;
                return agent_setup::test(context, &agent).await;
            }
            AgentVerb::Presets => {
                let columns =
                    ["preset", "title", "usual_secret", "versions=recipe.versions", "template=recipe.state"];
                context.printer.list(&client.agent_presets().await?, &columns)?;
            }
            AgentVerb::Rm { agent } => {
                let agent = resolve(context, &agent).await?;
                client.delete_agent(&agent.id).await?;
                context.printer.done(&format!("deleted agent {}", agent.name), &agent)?;
            }
        }
        Ok(0)
    }
}
