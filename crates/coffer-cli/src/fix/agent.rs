//! Who does the work: a named agent, the only one, or one that is made now.

use std::collections::BTreeMap;

use coffer_api_types::agents::{Definition, NewAgent, PresetInfo};
use coffer_api_types::secrets::NewValue;
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
                .hint("add one: `coffer agent add claude_code --preset claude_code`")
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

/// Asks for a program and its key, and defines an agent.
async fn make(context: &Context) -> Result<Chosen, Failure> {
    eprintln!("The project has no agent yet. Known programs:");
    let mut presets = context.client.agent_presets().await?;
    presets.retain(|preset| preset.usual_secret.is_some());
    let word = |preset: &PresetInfo| {
        let value = printer::to_value(&preset.preset).ok();
        value.and_then(|value| value.as_str().map(str::to_string)).unwrap_or_default()
    };
    let shown = |preset: &PresetInfo| format!("{}  {}", word(preset), preset.title);
    let preset = ask::choose("Which one", &presets, shown)?;
    let mut secrets = BTreeMap::new();
    if let Some(variable) = &preset.usual_secret {
        let known = context.client.secrets().all().await?;
        if !known.iter().any(|secret| &secret.name == variable) {
            let value = terminal::prompt_secret(&format!("{variable} (stored as a secret of the project)"))?;
            if value.is_empty() {
                return Err(Failure::usage("without its key the agent cannot work"));
            }
            let value = NewValue { value, hosts: None, plain_http: None };
            context.client.set_secret(variable, &value).await?;
        }
        secrets.insert(variable.clone(), variable.clone());
    }
    let definition = Definition {
        preset: preset.preset,
        command: None,
        model: None,
        prompt: None,
        env: BTreeMap::default(),
        secrets,
        working_directory: None,
        output: None,
        template: None,
        limits: Default::default(),
    };
    let new = NewAgent { name: word(preset), definition: Some(definition) };
    let made = context.client.create_agent(&new).await?;
    printer::note(&format!("added agent {}", made.name));
    Ok(Chosen { id: agent_id(&made.id)?, name: made.name })
}

/// An id of the API's own.
fn agent_id(text: &str) -> Result<AgentId, Failure> {
    text.parse().map_err(|_| Failure::new("the agent's id cannot be read"))
}
