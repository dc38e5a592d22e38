//! Who does the work: a named agent, the only one, or one that is made now.

use coffer_api_types::agents::{AgentSetup, PresetInfo};
use coffer_core::AgentId;

use crate::context::Context;
use crate::failure::{Failure, USAGE};
use crate::{agents, ask, escape, printer, terminal};

/// The agent.
#[derive(Debug, Clone)]
pub(super) struct Chosen {
    pub(super) id: AgentId,
    pub(super) name: String,
}

pub(super) async fn choose(context: &Context, named: Option<&str>, asks: bool) -> Result<Chosen, Failure> {
    if let Some(named) = named {
        let found = agents::resolve(context, named).await?;
        return Ok(Chosen { id: agent_id(&found.id)?, name: found.name });
    }
    let mut all = context.client.agents().all().await?;
    // Those without a definition own sandboxes and do no work.
    all.retain(|agent| agent.definition.is_some());
    let chosen = match all.as_slice() {
        [] if asks => return make(context).await,
        [] => {
            return Err(Failure::new("the project has no agent")
                .hint("add one: `coffer agent add claude_code`")
                .exit(USAGE));
        }
        [only] => only,
        several if asks => ask::choose("Which agent", several, |agent| agent.name.clone())?,
        several => {
            let names: Vec<String> = several.iter().map(|agent| escape::line(&agent.name)).collect();
            return Err(Failure::usage(format!("the project has {} agents: name one", names.len()))
                .hint(format!("--agent {}", names.join(" | "))));
        }
    };
    Ok(Chosen { id: agent_id(&chosen.id)?, name: chosen.name.clone() })
}

/// Asks for a program and its key, and sets an agent up as `agent add` does. The attempt waits for its template.
async fn make(context: &Context) -> Result<Chosen, Failure> {
    eprintln!("The project has no agent yet. Known programs:");
    let mut presets = context.client.agent_presets().await?;
    presets.retain(|preset| preset.recipe.is_some() && !preset.logins.is_empty());
    let shown = |preset: &PresetInfo| format!("{}  {}", preset.preset.as_str(), preset.title);
    let preset = ask::choose("Which one", &presets, shown)?;
    let mut setup = AgentSetup::default();
    if let Some(login) = preset.logins.first() {
        let known = context.client.secrets().all().await?;
        if !known.iter().any(|secret| secret.name == login.secret) {
            let question = format!("{} ({}; stored as a secret of the project)", login.variable, login.about);
            let key = terminal::prompt_secret(&question)?;
            if key.is_empty() {
                return Err(Failure::usage("without its key the agent cannot work"));
            }
            setup.key = Some(key);
        }
    }
    let made = context.client.set_up_agent(preset.preset.as_str(), &setup).await?.agent;
    printer::note(&format!("added agent {}", made.name));
    Ok(Chosen { id: agent_id(&made.id)?, name: made.name })
}

/// An id of the API's own.
fn agent_id(text: &str) -> Result<AgentId, Failure> {
    text.parse().map_err(|_| Failure::new("the agent's id cannot be read"))
}
