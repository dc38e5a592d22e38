//! `agent add` and `agent test`: an agent from nothing, and whether it works.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use coffer_api_types::agents::{
    Agent, AgentSetup, AgentTest, Definition, NewAgent, PresetInfo, PresetLogin, SetUpAgent,
};
use coffer_client::Error;

use crate::context::Context;
use crate::failure::{FAILED, Failure, NOT_FOUND, Outcome};
use crate::{escape, pairs, printer, terminal};

const LOOK: Duration = Duration::from_secs(1);
/// How the key can be given without a person.
const KEY_HINT: &str = "pipe it in, or use --key-env VARIABLE or --key-file FILE";

/// Add an agent
#[derive(Debug, Args)]
pub(crate) struct Add {
    /// The preset; `coffer agent presets` lists them. With --preset or --definition, the agent's name
    #[arg(value_name = "PRESET")]
    word: String,
    /// The agent's name; the preset's by default
    #[arg(long, value_name = "NAME", conflicts_with_all = ["preset", "definition"])]
    name: Option<String>,
    /// Its model
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// The variable of its key, or the file of its login, if the preset has several ways to sign in
    #[arg(long, value_name = "VARIABLE|FILE", conflicts_with_all = ["preset", "definition"])]
    login: Option<String>,
    /// A file with the key; `-` is stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["key_env", "preset", "definition"])]
    key_file: Option<PathBuf>,
    /// A variable of this program's environment with the key
    #[arg(long, value_name = "VARIABLE", conflicts_with_all = ["preset", "definition"])]
    key_env: Option<String>,
    /// The secret that the key is stored as, or that has it already; the preset has a usual name
    #[arg(long, value_name = "NAME", conflicts_with_all = ["preset", "definition"])]
    secret_name: Option<String>,
    /// A variable of its environment. May be repeated; NAME alone takes the value from here
    #[arg(short, long, value_name = "NAME[=VALUE]", conflicts_with_all = ["preset", "definition"])]
    env: Vec<String>,
    /// Another template than the preset's
    #[arg(long, value_name = "NAME", conflicts_with_all = ["preset", "definition"])]
    template: Option<String>,
    /// Test it when its template is built
    #[arg(long, conflicts_with_all = ["preset", "definition", "no_wait"])]
    test: bool,
    /// Do not wait for its template
    #[arg(long, conflicts_with_all = ["preset", "definition"])]
    no_wait: bool,
    /// Only define an agent of this program
    #[arg(long, value_name = "PRESET")]
    preset: Option<String>,
    /// With --preset: a variable with the value of a secret of the project. May be repeated
    #[arg(long, value_name = "NAME[=SECRET]", requires = "preset")]
    secret: Vec<String>,
    /// Only define an agent by this JSON, as `agent show -o json` prints it; `-` is stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["preset", "model"])]
    definition: Option<PathBuf>,
}

impl Add {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        if self.preset.is_some() || self.definition.is_some() {
            return self.define(context).await;
        }
        let presets = context.client.agent_presets().await?;
        let found = presets.iter().find(|info| info.preset.as_str() == self.word);
        let info = found.ok_or_else(|| {
            let known: Vec<&str> = presets.iter().map(|info| info.preset.as_str()).collect();
            Failure::new(format!("preset '{}' not found", self.word))
                .exit(NOT_FOUND)
                .hint(format!("one of {}", known.join(", ")))
        })?;
        let login = self.login_of(info)?;
        let key = self.key(context, info, login).await?;
        let setup = AgentSetup {
            name: self.name.clone(),
            model: self.model.clone(),
            key,
            secret: self.secret_name.clone(),
            login: self.login.as_ref().map(|_| login.variable.clone()),
            env: pairs::variables(&self.env)?,
            template: self.template.clone(),
        };
        let made = context.client.set_up_agent(&self.word, &setup).await.map_err(explain)?;
        let name = made.agent.name.clone();
        if context.printer.is_table() {
            printer::note(&format!("agent {name}: {} is secret {}", made.variable, made.secret));
        }
        let agent = if self.no_wait {
            made.agent
        } else {
            // Without the key: it is stored.
            let again = AgentSetup { key: None, ..setup };
            await_template(context, made.agent, || context.client.set_up_agent(&self.word, &again)).await?
        };
        if self.test {
            return test(context, &agent).await;
        }
        let said = match agent.template.as_ref().map(|template| template.state.as_str()) {
            Some("building" | "not_built") => format!("added agent {name}; its template is being built"),
            _ => format!("added agent {name}; `coffer agent test {name}` asks it for one word"),
        };
        context.printer.done(&said, &agent)?;
        Ok(0)
    }

    /// An agent with a definition and nothing more.
    async fn define(self, context: &Context) -> Outcome {
        let definition = match (self.preset, self.definition) {
            (Some(preset), _) => Definition {
                preset: pairs::word(Some(preset))?.ok_or_else(|| Failure::usage("name a preset"))?,
                command: None,
                model: self.model,
                prompt: None,
                env: Default::default(),
                secrets: pairs::secrets(&self.secret)?,
                working_directory: None,
                output: None,
                template: None,
                limits: Default::default(),
                model_access: None,
                setup: None,
            },
            (None, file) => {
                let text = text_of(&file.unwrap_or_default())?;
                let read = serde_json::from_str(&text);
                read.map_err(|error| Failure::usage(format!("the definition: {error}")))?
            }
        };
        let new = NewAgent { name: self.word, definition: Some(definition) };
        let made = context.client.create_agent(&new).await?;
        context.printer.done(&made.id, &made)?;
        Ok(0)
    }

    fn login_of<'a>(&self, info: &'a PresetInfo) -> Result<&'a PresetLogin, Failure> {
        let known = || info.logins.iter().map(|login| login.variable.as_str()).collect::<Vec<_>>().join(", ");
        let none = || {
            Failure::usage(format!("preset '{}' has no set-up", self.word))
                .hint("`coffer agent add NAME --definition FILE` defines an agent")
        };
        match &self.login {
            None => info.logins.first().ok_or_else(none),
            Some(wanted) => {
                let found =
                    info.logins.iter().find(|login| login.variable == *wanted || is_file_of(login, wanted));
                found.ok_or_else(|| {
                    Failure::usage(format!("'{wanted}' is no way to sign in to {}", info.title))
                        .hint(format!("--login takes one of {}", known()))
                })
            }
        }
    }

    /// The key, if one is given; none keeps the secret that exists.
    async fn key(
        &self,
        context: &Context,
        info: &PresetInfo,
        login: &PresetLogin,
    ) -> Result<Option<String>, Failure> {
        if let Some(variable) = &self.key_env {
            let value = std::env::var(variable).ok().filter(|value| !value.is_empty());
            let missing = || Failure::usage(format!("the variable '{variable}' is not set here"));
            return Ok(Some(value.ok_or_else(missing)?));
        }
        if let Some(file) = &self.key_file {
            let text = text_of(file)?;
            let key = text.trim_end_matches(['\r', '\n']);
            if key.is_empty() {
                return Err(Failure::usage(format!("`{}` is empty", file.display())));
            }
            return Ok(Some(key.to_string()));
        }
        if let Some(file) = self.login.as_ref().filter(|wanted| is_file_of(login, wanted)) {
            return Ok(Some(text_of(Path::new(file))?));
        }
        let secret = self.secret_name.as_ref().unwrap_or(&login.secret);
        if !std::io::stdin().is_terminal() {
            let text = std::io::read_to_string(std::io::stdin())?;
            let key = text.trim_end_matches(['\r', '\n']);
            return Ok((!key.is_empty()).then(|| key.to_string()));
        }
        let known = context.client.secrets().all().await?.iter().any(|known| known.name == *secret);
        let kept = if known { format!(" (Enter keeps secret {secret})") } else { String::new() };
        let question = format!("{} for {}, {}{kept}", login.variable, info.title, login.about);
        match terminal::prompt_secret(&question)? {
            key if key.is_empty() && known => Ok(None),
            key if key.is_empty() => Err(Failure::usage("no key was given").hint(KEY_HINT)),
            key => Ok(Some(key)),
        }
    }
}

/// Whether a path here is the file of a login: `/home/me/.codex/auth.json` for `~/.codex/auth.json`.
fn is_file_of(login: &PresetLogin, path: &str) -> bool {
    let own = login.variable.strip_prefix("~/");
    own.is_some_and(|own| {
        path.contains(['/', '\\']) && Path::new(path).ends_with(own) && !path.starts_with("~/")
    })
}

fn text_of(file: &Path) -> Result<String, Failure> {
    match file.to_str() {
        Some("-") => Ok(std::io::read_to_string(std::io::stdin())?),
        _ => std::fs::read_to_string(file)
            .map_err(|error| Failure::new(format!("could not read `{}`: {error}", file.display()))),
    }
}

/// A refused field by the option that gives it.
fn explain(error: Error) -> Failure {
    let field = match &error {
        Error::Refused(refusal) if refusal.status == http::StatusCode::UNPROCESSABLE_ENTITY => {
            refusal.message.split_whitespace().next().unwrap_or_default().to_string()
        }
        _ => String::new(),
    };
    let failure = Failure::from(error);
    match field.as_str() {
        "key" => failure.hint(KEY_HINT),
        "model" => failure.hint("--model MODEL names it"),
        "template" => failure.hint("--template NAME names it"),
        _ => failure,
    }
}

/// Waits for the agent's template and says how far it is. `again` asks for it once more, if the server forgot.
async fn await_template<F>(
    context: &Context,
    mut agent: Agent,
    again: impl Fn() -> F,
) -> Result<Agent, Failure>
where
    F: Future<Output = Result<SetUpAgent, Error>>,
{
    let mut told = String::new();
    while let Some(template) = agent.template.clone() {
        let doing = template.doing.unwrap_or_default();
        match template.state.as_str() {
            "building" => {}
            "not_built" => drop(again().await?),
            "failed" => {
                let message = format!("template {} could not be built: {doing}", template.name);
                let hint = format!(
                    "run it again; an operator sees the log with `coffer template build {}`",
                    template.name
                );
                return Err(Failure::new(message).hint(hint).exit(FAILED));
            }
            _ => break,
        }
        let line = format!("building template {}: {doing}", template.name);
        if line != told {
            printer::note(&line);
            told = line;
        }
        tokio::time::sleep(LOOK).await;
        agent = context.client.agent(&agent.id).await?;
    }
    Ok(agent)
}

/// Tests an agent and shows the result; the exit code says whether it works.
pub(crate) async fn test(context: &Context, agent: &Agent) -> Outcome {
    let mut told = None;
    let result = loop {
        match context.client.test_agent(&agent.id).await {
            Ok(result) => break result,
            // Its template is being built.
            Err(Error::Refused(refusal))
                if refusal.code == "template_not_built" && refusal.retry_after.is_some() =>
            {
                if told.as_ref() != Some(&refusal.message) {
                    printer::note(&refusal.message);
                    told = Some(refusal.message.clone());
                }
                tokio::time::sleep(refusal.retry_after.unwrap_or(LOOK)).await;
            }
            Err(error) => return Err(error.into()),
        }
    };
    if !context.printer.is_table() {
        context.printer.show(&result)?;
        return Ok(if result.ok { 0 } else { FAILED });
    }
    if !result.ok {
        let why = result.message.clone().unwrap_or_else(|| "it did not answer".to_string());
        let failure = Failure::new(format!("agent {} does not work: {why}", agent.name)).exit(FAILED);
        return Err(match result.code.as_deref() {
            Some("agent_missing") => failure.hint("`coffer agent show` has its template"),
            _ => failure,
        });
    }
    printer::print(&said(agent, &result));
    Ok(0)
}

fn said(agent: &Agent, result: &AgentTest) -> String {
    let dash = || "-".to_string();
    let tokens = match (result.input_tokens, result.output_tokens) {
        (None, None) => dash(),
        (input, output) => format!("{} in, {} out", input.unwrap_or(0), output.unwrap_or(0)),
    };
    let rows = [
        ("agent", agent.name.clone()),
        ("template", result.template.clone()),
        ("version", result.version.clone().unwrap_or_else(dash)),
        ("model", result.model.clone().unwrap_or_else(dash)),
        ("answer", result.answer.clone().unwrap_or_else(dash)),
        ("tokens", tokens),
        ("cost", result.cost.map_or_else(dash, |cost| cost.to_string())),
        ("time", format!("{:.1} s", Duration::from_millis(result.took_ms.unsigned_abs()).as_secs_f64())),
    ];
    let rows = rows.map(|(name, value)| vec![name.to_string(), escape::line(&value)]);
    printer::lay_out(rows.to_vec())
}
