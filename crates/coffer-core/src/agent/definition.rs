//! Agent definitions.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::login_file;
use super::model_api::{ModelAccess, ModelApi, NoApi, Wish};
use super::preset::{OutputFormat, Preset, Word};
use super::prompt::{self, Talk, Work};
use super::recipe::Recipe;
use super::resume;
use crate::{LargestSize, Limits, SizeWish};

const LONGEST_PROMPT_TEMPLATE: usize = 64 * 1024;
/// One argument of a program can have 128 KiB.
const LONGEST_PROMPT: usize = 120 * 1024;
const MOST_WORDS: usize = 256;
const LONGEST_WORD: usize = 8 * 1024;
const MOST_VARIABLES: usize = 100;
const LONGEST_VALUE: usize = 16 * 1024;
const LONGEST_MODEL: usize = 200;
const USUAL_TIMEOUT_S: i64 = 3600;
const LONGEST_TIMEOUT_S: i64 = 24 * 3600;

/// A command that works on tasks by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentDefinition {
    pub preset: Preset,
    /// A program and its arguments, instead of the preset's; `{prompt}` and `{model}` in them are filled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The template of its prompt; `{{title}}`, `{{description}}`, `{{messages}}`, `{{branch}}` and
    /// `{{check}}` are filled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Names in `env` whose values are hidden as secrets are. `None`, all of them: a definition of a version that hid
    /// them all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden_env: Option<BTreeSet<String>>,
    /// Maps variables, or files below the home directory (`~/.codex/auth.json`), to names of secrets of the project.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, String>,
    /// Its working directory, relative to the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_directory: Option<String>,
    /// The format of its output, if it differs from the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputFormat>,
    /// The template of its sandboxes, if it is not the server's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    #[serde(default)]
    pub limits: AgentLimits,
    /// How it calls models; through the gateway if its secrets have a key that the preset uses there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_access: Option<ModelAccess>,
    /// Whether the repository's own set-up is run first; yes if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup: Option<bool>,
}

/// Limits of one attempt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentLimits {
    /// How long it may work; an hour by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<i64>,
    /// Processors of its sandbox, instead of the server's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_count: Option<u32>,
    /// Memory of its sandbox, instead of the server's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u32>,
}

impl AgentLimits {
    /// The size of its sandbox.
    pub fn size(&self) -> SizeWish {
        SizeWish { cpu_count: self.cpu_count, memory_mib: self.memory_mib.map(u64::from), disk_mib: None }
    }
}

/// Why a definition cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {why}")]
pub struct BadDefinition {
    pub field: String,
    pub why: String,
}

fn bad(field: impl Into<String>, why: impl Into<String>) -> BadDefinition {
    BadDefinition { field: field.into(), why: why.into() }
}

/// The work for an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Job<'a> {
    pub title: &'a str,
    pub description: &'a str,
    /// The messages since, oldest first.
    pub messages: &'a [String],
    pub branch: &'a str,
    /// The check command, if there is one.
    pub check: Option<&'a str>,
    /// Instead of the agent's own.
    pub model: Option<&'a str>,
    /// What was said and done before.
    pub talk: Talk<'a>,
}

/// A command that is ready to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation {
    pub words: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub output: OutputFormat,
    pub timeout_s: i64,
    /// The prompt in its words.
    pub prompt: String,
    /// Whether it continues the session of the turn before.
    pub continues: bool,
}

impl AgentDefinition {
    /// A preset without changes.
    pub fn of(preset: Preset) -> Self {
        Self {
            preset,
            command: None,
            model: None,
            prompt: None,
            env: BTreeMap::new(),
            hidden_env: Some(BTreeSet::new()),
            secrets: BTreeMap::new(),
            working_directory: None,
            output: None,
            template: None,
            limits: AgentLimits::default(),
            model_access: None,
            setup: None,
        }
    }

    /// Whether the value of a variable is hidden.
    pub fn hides(&self, variable: &str) -> bool {
        self.hidden_env.as_ref().is_none_or(|hidden| hidden.contains(variable))
    }

    /// The values of its environment that must be shown nowhere.
    pub fn hidden_values(&self) -> impl Iterator<Item = &String> {
        self.env.iter().filter(|(name, _)| self.hides(name)).map(|(_, value)| value)
    }

    /// The recipe of its program, unless it has a command of its own.
    pub fn recipe(&self) -> Option<&'static Recipe> {
        self.preset.recipe().filter(|_| self.command.is_none())
    }

    /// The size of its sandbox: its limits, and at least the memory that its program needs. `usual` is what a sandbox
    /// gets without a wish.
    pub fn size(&self, usual: Limits) -> SizeWish {
        let wish = self.limits.size();
        let needed = self.recipe().map_or(0, |recipe| recipe.memory_mib);
        match wish.memory_mib {
            None if needed > usual.memory_mib => SizeWish { memory_mib: Some(needed), ..wish },
            _ => wish,
        }
    }

    fn wish(&self) -> Wish<'_> {
        Wish {
            preset: self.preset,
            access: self.model_access,
            secrets: &self.secrets,
            env: &self.env,
            has_command: self.command.is_some(),
        }
    }

    /// How it uses the model gateway; `None` if its keys are in its environment.
    pub fn model_api(&self) -> Option<ModelApi> {
        self.wish().api().ok().flatten()
    }

    /// Checks the definition; the error says what is wrong.
    pub fn check(&self) -> Result<(), BadDefinition> {
        match &self.command {
            None if self.preset == Preset::Custom => {
                return Err(bad("command", "is needed for a custom agent"));
            }
            None => {}
            Some(words) => check_words(words)?,
        }
        let longest = |field: &str, text: Option<&String>, most: usize| match text {
            Some(text) if text.is_empty() || text.len() > most || text.contains('\0') => {
                Err(bad(field, format!("must have 1 to {most} bytes, none of them NUL")))
            }
            _ => Ok(()),
        };
        longest("model", self.model.as_ref(), LONGEST_MODEL)?;
        longest("prompt", self.prompt.as_ref(), LONGEST_PROMPT_TEMPLATE)?;
        longest("working_directory", self.working_directory.as_ref(), 4096)?;
        longest("template", self.template.as_ref(), 200)?;
        if self.model.as_ref().is_some_and(|model| model.starts_with('-')) {
            return Err(bad("model", "must not begin with a dash"));
        }
        if let Some(directory) = &self.working_directory
            && (directory.starts_with('/') || directory.split('/').any(|part| part == ".."))
        {
            return Err(bad(
                "working_directory",
                "must be below the repository: no leading slash and no `..`",
            ));
        }
        if self.env.len() + self.secrets.len() > MOST_VARIABLES {
            return Err(bad("env", format!("and secrets may be {MOST_VARIABLES} variables together")));
        }
        for (field, name, value) in (self.env.iter().map(|(name, value)| ("env", name, value)))
            .chain(self.secrets.iter().map(|(name, value)| ("secrets", name, value)))
        {
            let fits = name.chars().enumerate().all(|(at, letter)| {
                letter == '_' || letter.is_ascii_alphabetic() || (at > 0 && letter.is_ascii_digit())
            });
            if field == "secrets" && login_file::is_file(name) {
                if !login_file::is_path(name) {
                    return Err(bad(
                        format!("secrets.{name}"),
                        "must be a file below a directory of the home directory, such as ~/.codex/auth.json",
                    ));
                }
                continue;
            }
            if name.is_empty() || name.len() > 200 || !fits {
                return Err(bad(format!("{field}.{name}"), "is not a valid variable name"));
            }
            if value.len() > LONGEST_VALUE || value.contains('\0') {
                return Err(bad(
                    format!("{field}.{name}"),
                    format!("may have {LONGEST_VALUE} bytes, none of them NUL"),
                ));
            }
        }
        if let Some(twice) = self.secrets.keys().find(|name| self.env.contains_key(*name)) {
            return Err(bad(format!("secrets.{twice}"), "is a variable of env too"));
        }
        self.wish().api().map_err(|error| match error {
            NoApi::OwnService => {
                let why = format!("must be `direct`: {} speaks only with its own service", self.preset.title());
                bad("model_access", why)
            }
            NoApi::NoKey => bad(
                "model_access",
                "needs a secret for the provider's key, such as `{\"ANTHROPIC_API_KEY\": \"name of a secret\"}`",
            ),
        })?;
        let timeout = self.limits.timeout_s.unwrap_or(USUAL_TIMEOUT_S);
        if !(1..=LONGEST_TIMEOUT_S).contains(&timeout) {
            return Err(bad("limits.timeout_s", format!("must be between 1 and {LONGEST_TIMEOUT_S}")));
        }
        let size = self.limits.size().check(&LargestSize::ANY);
        size.map_err(|error| bad(format!("limits.{}", error.field), error.why()))
    }

    /// The command for a job.
    pub fn invocation(&self, job: &Job<'_>) -> Result<Invocation, BadDefinition> {
        self.check()?;
        let prompt = self.prompt_for(job, false);
        let model = job.model.or(self.model.as_deref());
        let words = match &self.command {
            Some(words) => {
                if model.is_none() && words.iter().any(|word| word.contains("{model}")) {
                    return Err(bad("model", "is needed: the command has `{model}` in it"));
                }
                // In one pass each, so that a prompt that contains `{model}` stays as it is.
                let fill = |word: &String| {
                    let parts: Vec<String> = word
                        .split("{prompt}")
                        .map(|part| part.replace("{model}", model.unwrap_or_default()))
                        .collect();
                    parts.join(&prompt)
                };
                words.iter().map(fill).collect()
            }
            None => {
                let mut words = Vec::new();
                for word in self.preset.words() {
                    match word {
                        Word::Plain(word) => words.push((*word).to_string()),
                        Word::Prompt => words.push(prompt.clone()),
                        Word::Model(flag) => {
                            words.extend(
                                model.iter().flat_map(|model| [(*flag).to_string(), (*model).to_string()]),
                            );
                        }
                    }
                }
                words
            }
        };
        let preset_env =
            self.preset.env().iter().map(|(name, value)| ((*name).to_string(), (*value).to_string()));
        let env = preset_env.chain(self.env.clone()).collect();
        let output = self.output.unwrap_or(match self.command {
            Some(_) if self.preset == Preset::Custom => OutputFormat::Text,
            _ => self.preset.output(),
        });
        let timeout_s = self.limits.timeout_s.unwrap_or(USUAL_TIMEOUT_S);
        let ran = Invocation { words, env, output, timeout_s, prompt, continues: false };
        Ok(self.continued(job, &ran).unwrap_or(ran))
    }

    /// The same, as the next words of the session of the turn before; `None` if its program cannot.
    fn continued(&self, job: &Job<'_>, new: &Invocation) -> Option<Invocation> {
        let session = job.talk.session.filter(|_| self.command.is_none())?;
        let prompt = self.prompt_for(job, true);
        let swap = |word: &String| if *word == new.prompt { prompt.clone() } else { word.clone() };
        let words: Vec<String> = new.words.iter().map(swap).collect();
        let words = resume::resumed(self.preset, &words, session)?;
        Some(Invocation { words, prompt, continues: true, ..new.clone() })
    }

    fn prompt_for(&self, job: &Job<'_>, remembers: bool) -> String {
        let messages = job.talk.messages(job.messages);
        let mut prompt = String::new();
        let mut rest = match &self.prompt {
            Some(own) => own.as_str(),
            // Nothing in the text is expanded.
            None => {
                let work = Work {
                    title: job.title,
                    description: job.description,
                    messages: job.messages,
                    branch: job.branch,
                    check: job.check,
                    talk: job.talk,
                };
                prompt = if remembers { prompt::next(&work) } else { prompt::usual(&work) };
                ""
            }
        };
        // One pass: inserted text is not expanded again.
        while let Some(at) = rest.find("{{") {
            let (before, after) = rest.split_at(at);
            prompt.push_str(before);
            let known = after[2..].split_once("}}").and_then(|(name, after)| {
                let value = match name.trim() {
                    "title" => job.title,
                    "description" => job.description,
                    "messages" => &messages,
                    "branch" => job.branch,
                    "check" => job.check.unwrap_or_default(),
                    _ => return None,
                };
                Some((value, after))
            });
            match known {
                Some((value, after)) => {
                    prompt.push_str(value);
                    rest = after;
                }
                None => {
                    prompt.push_str("{{");
                    rest = &after[2..];
                }
            }
        }
        prompt.push_str(rest);
        let mut prompt = prompt.trim().replace('\0', "\u{fffd}");
        // A leading dash would make it an option.
        if prompt.starts_with('-') {
            prompt.insert(0, ' ');
        }
        prompt.truncate(prompt.floor_char_boundary(LONGEST_PROMPT));
        prompt
    }
}

fn check_words(words: &[String]) -> Result<(), BadDefinition> {
    if words.is_empty() || words.len() > MOST_WORDS {
        return Err(bad("command", format!("must have 1 to {MOST_WORDS} words")));
    }
    let fits = |word: &String| word.len() <= LONGEST_WORD && !word.contains('\0');
    if words[0].is_empty() || !words.iter().all(fits) {
        return Err(bad("command", format!("words may have {LONGEST_WORD} bytes, none of them NUL")));
    }
    if !words.iter().any(|word| word.contains("{prompt}")) {
        return Err(bad("command", "must have `{prompt}` in one of its words"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job<'a>() -> Job<'a> {
        Job {
            title: "Fix it",
            description: "It {model} {{title}} is broken.",
            branch: "task-1",
            ..Job::default()
        }
    }

    #[test]
    fn every_preset_is_run_with_its_prompt_and_model() {
        for &preset in Preset::ALL.iter().filter(|preset| **preset != Preset::Custom) {
            let definition = AgentDefinition { model: Some("m-1".into()), ..AgentDefinition::of(preset) };
            let ran = definition.invocation(&job()).unwrap();
            let prompts =
                ran.words.iter().filter(|word| word.contains("It {model} {{title}} is broken.")).count();
            assert_eq!(prompts, 1, "{ran:?}");
            assert_eq!(ran.words.contains(&"m-1".to_string()), preset.takes_model(), "{ran:?}");
            let without = AgentDefinition::of(preset).invocation(&job()).unwrap();
            assert!(!without.words.iter().any(|word| word == "--model"), "{without:?}");
            assert_eq!(serde_json::to_value(preset).unwrap(), preset.as_str());
        }
    }

    #[test]
    fn a_custom_command_has_its_words_filled_in_and_no_shell_between() {
        let custom = AgentDefinition {
            command: Some(["my-agent", "--m={model}", "{prompt}"].map(String::from).to_vec()),
            prompt: Some("{{ title }}: {{unknown}} {{messages}}".into()),
            ..AgentDefinition::of(Preset::Custom)
        };
        let messages = ["$(rm -rf /)".to_string(), "second".to_string()];
        let job = Job { model: Some("big"), messages: &messages, ..job() };
        let ran = custom.invocation(&job).unwrap();
        assert_eq!(ran.words, ["my-agent", "--m=big", "Fix it: {{unknown}} $(rm -rf /)\n\nsecond"]);
        assert_eq!((ran.output, ran.timeout_s), (OutputFormat::Text, 3600));
        let needs = custom.invocation(&Job { model: None, ..job }).unwrap_err();
        assert_eq!(needs.field, "model");
    }

    #[test]
    fn a_prompt_is_never_an_option_nor_too_long_to_pass() {
        let long = "é".repeat(200_000);
        for (description, begins) in [("", " --help"), (&*long, " --help")] {
            let job = Job { title: "--help", description, ..Job::default() };
            let ran = AgentDefinition::of(Preset::Codex).invocation(&job).unwrap();
            let prompt = ran.words.last().unwrap();
            assert!(prompt.starts_with(begins) && prompt.len() <= LONGEST_PROMPT);
        }
    }

    #[test]
    fn what_cannot_be_run_is_refused_with_its_field() {
        let good = || AgentDefinition::of(Preset::ClaudeCode);
        let one = |name: &str, value: &str| BTreeMap::from([(name.to_string(), value.to_string())]);
        let words = |words: &[&str]| Some(words.iter().map(ToString::to_string).collect());
        let none = AgentLimits::default();
        let limited = |limits| AgentDefinition { limits, ..good() };
        for (definition, field) in [
            (AgentDefinition::of(Preset::Custom), "command"),
            (AgentDefinition { command: words(&[]), ..good() }, "command"),
            (AgentDefinition { command: words(&["a", "b"]), ..good() }, "command"),
            (AgentDefinition { command: words(&["", "{prompt}"]), ..good() }, "command"),
            (AgentDefinition { model: Some("--x".into()), ..good() }, "model"),
            (AgentDefinition { model: Some(String::new()), ..good() }, "model"),
            (AgentDefinition { env: one("1A", "x"), ..good() }, "env.1A"),
            (AgentDefinition { env: one("A", "\0"), ..good() }, "env.A"),
            (AgentDefinition { env: one("~/.a/b", "x"), ..good() }, "env.~/.a/b"),
            (AgentDefinition { secrets: one("~/.bashrc", "s"), ..good() }, "secrets.~/.bashrc"),
            (AgentDefinition { secrets: one("~/.a/../b", "s"), ..good() }, "secrets.~/.a/../b"),
            (AgentDefinition { env: one("A", "x"), secrets: one("A", "s"), ..good() }, "secrets.A"),
            (AgentDefinition { working_directory: Some("a/../..".into()), ..good() }, "working_directory"),
            (AgentDefinition { working_directory: Some("/etc".into()), ..good() }, "working_directory"),
            (limited(AgentLimits { timeout_s: Some(0), ..none }), "limits.timeout_s"),
            (limited(AgentLimits { cpu_count: Some(0), ..none }), "limits.cpu_count"),
            (limited(AgentLimits { cpu_count: Some(1025), ..none }), "limits.cpu_count"),
            (limited(AgentLimits { memory_mib: Some(63), ..none }), "limits.memory_mib"),
            (limited(AgentLimits { memory_mib: Some(u32::MAX), ..none }), "limits.memory_mib"),
        ] {
            assert_eq!(definition.check().unwrap_err().field, field);
        }
        good().check().unwrap();
        let most = AgentLimits { cpu_count: Some(1024), memory_mib: Some(16 << 20), ..none };
        limited(most).check().unwrap();
    }

    #[test]
    fn a_sandbox_has_what_its_agent_wants_and_otherwise_the_usual() {
        let usual = Limits::default();
        let limits = AgentLimits { memory_mib: Some(512), ..AgentLimits::default() };
        assert_eq!(limits.size().over(usual), Limits { memory_mib: 512, ..usual });
        let limits = AgentLimits { cpu_count: Some(7), ..limits };
        assert_eq!(limits.size().over(usual), Limits { cpu_count: 7, memory_mib: 512, ..usual });
        assert!(AgentLimits::default().size().is_none());
        assert_eq!(AgentLimits::default().size().over(usual), usual);
    }

    #[test]
    fn a_sandbox_has_the_memory_that_its_program_needs() {
        let small = Limits { memory_mib: 256, ..Limits::default() };
        let opencode = AgentDefinition::of(Preset::OpenCode);
        assert_eq!(opencode.size(small).memory_mib, Some(1024));
        assert!(opencode.size(Limits::default()).is_none(), "it has more without a wish");
        let limits = AgentLimits { memory_mib: Some(128), ..AgentLimits::default() };
        let asked = AgentDefinition { limits, ..opencode };
        assert_eq!(asked.size(small).memory_mib, Some(128), "a person's own wish counts");
        assert!(AgentDefinition::of(Preset::Custom).size(small).is_none());
    }

    #[test]
    fn variables_are_plain_unless_an_earlier_version_promised_to_hide_them() {
        let env = BTreeMap::from([("A".to_string(), "one".to_string()), ("B".into(), "two".into())]);
        let new = AgentDefinition { env, ..AgentDefinition::of(Preset::Codex) };
        assert_eq!(new.hidden_values().count(), 0);
        let hidden = BTreeSet::from(["B".to_string()]);
        let some = AgentDefinition { hidden_env: Some(hidden), ..new.clone() };
        assert_eq!(some.hidden_values().collect::<Vec<_>>(), ["two"]);
        let old = r#"{"preset": "codex", "env": {"A": "one"}, "limits": {}}"#;
        let old: AgentDefinition = serde_json::from_str(old).unwrap();
        assert_eq!(old.hidden_values().collect::<Vec<_>>(), ["one"]);
        let again: AgentDefinition = serde_json::from_str(&serde_json::to_string(&new).unwrap()).unwrap();
        assert_eq!(again, new);
    }
}
