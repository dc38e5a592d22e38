//! `agent`: the coding agents of a project.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use coffer_api_types::agents::{Agent, Definition, NewAgent};
use coffer_core::AgentId;

use crate::context::{Context, pick};
use crate::failure::{Failure, Outcome};
use crate::pairs;

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
    /// Add an agent
    Add {
        name: String,
        /// Its program; `coffer agent presets` lists them
        #[arg(long, value_name = "PRESET")]
        preset: Option<String>,
        /// Its model
        #[arg(long, value_name = "MODEL", requires = "preset")]
        model: Option<String>,
        /// A variable with the value of a secret of the project. May be repeated
        #[arg(long, value_name = "NAME[=SECRET]", requires = "preset")]
        secret: Vec<String>,
        /// The whole definition as JSON, as `agent show -o json` prints it; `-` is stdin
        #[arg(long, value_name = "FILE", conflicts_with = "preset")]
        definition: Option<PathBuf>,
    },
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
            AgentVerb::Add { name, preset, model, secret, definition } => {
                let definition = match (preset, definition) {
                    (Some(preset), _) => Some(Definition {
                        preset: pairs::word(Some(preset))?.ok_or_else(|| Failure::usage("name a preset"))?,
                        command: None,
                        model,
                        prompt: None,
                        env: Default::default(),
                        secrets: pairs::secrets(&secret)?,
                        working_directory: None,
                        output: None,
                        template: None,
                        limits: Default::default(),
                        model_access: None,
                    }),
                    (None, Some(file)) => {
                        let text = match file.to_str() {
                            Some("-") => std::io::read_to_string(std::io::stdin())?,
                            _ => std::fs::read_to_string(&file).map_err(|error| {
                                Failure::new(format!("could not read `{}`: {error}", file.display()))
                            })?,
                        };
                        let read = serde_json::from_str(&text);
                        Some(read.map_err(|error| Failure::usage(format!("the definition: {error}")))?)
                    }
                    (None, None) => None,
                };
                let made = client.create_agent(&NewAgent { name, definition }).await?;
                context.printer.done(&made.id, &made)?;
            }
            AgentVerb::Presets => {
                let columns = ["preset", "title", "usual_secret", "takes_model"];
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
