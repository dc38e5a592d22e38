//! How each preset is pointed at the model gateway, so that its key stays outside the sandbox.
//!
//! Names of variables and words are those of the programs' own documentation. A program that speaks only with its own
//! service (Cursor, Amp) gets its key in its environment, as before.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::json;
use strum::{EnumString, IntoStaticStr, VariantArray};

use super::preset::Preset;
use super::report::Tokens;
use crate::model::{KeyHeader, MODEL_NAME, Provider, key_of};

/// How an agent calls its models.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", const_into_str)]
pub enum ModelAccess {
    /// Through the gateway, with the keys that its secrets have under their usual names.
    Gateway,
    /// Its keys are in its environment.
    Direct,
    /// Through the gateway, with its only secret, or the one of the usual name, as the key of this provider.
    Anthropic,
    OpenAi,
    Gemini,
}

names!(ModelAccess);

/// What an agent itself reported, where the gateway's figures are used instead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reported {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Tokens>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_nanos: Option<i64>,
}

impl Reported {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let tokens = match (self.tokens, other.tokens) {
            (Some(one), Some(other)) => Some(Tokens {
                input: one.input.saturating_add(other.input),
                cached: one.cached.saturating_add(other.cached),
                output: one.output.saturating_add(other.output),
            }),
            (one, other) => one.or(other),
        };
        let cost_nanos = match (self.cost_nanos, other.cost_nanos) {
            (Some(one), Some(other)) => Some(one.saturating_add(other)),
            (one, other) => one.or(other),
        };
        Self { tokens, cost_nanos }
    }
}

/// The key of a provider: a secret of the project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    pub variable: String,
    pub secret: String,
    pub header: KeyHeader,
}

/// How an agent uses the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelApi {
    pub keys: BTreeMap<Provider, ApiKey>,
    /// Variables whose secrets do not enter the sandbox.
    pub kept_out: BTreeSet<String>,
    /// Variables for the agent: the gateway's addresses, and dummies for keys.
    pub env: BTreeMap<String, String>,
    /// Words that follow the program's name.
    pub words: Vec<String>,
}

/// Why a definition cannot use the gateway as it asks to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoApi {
    /// The program speaks only with its own service.
    OwnService,
    /// No secret has the name of a key.
    NoKey,
}

impl Preset {
    /// Whether its program can be pointed at the gateway.
    pub const fn can_use_gateway(self) -> bool {
        !matches!(self, Self::Cursor | Self::Amp)
    }
}

/// The part of a definition that decides how its agent calls models.
pub(super) struct Wish<'a> {
    pub(super) preset: Preset,
    pub(super) access: Option<ModelAccess>,
    pub(super) secrets: &'a BTreeMap<String, String>,
    pub(super) env: &'a BTreeMap<String, String>,
    /// The definition has a command of its own.
    pub(super) has_command: bool,
}

impl Wish<'_> {
    /// How the agent uses the gateway; `None` if it does not.
    pub(super) fn api(&self) -> Result<Option<ModelApi>, NoApi> {
        let is_asked = match self.access {
            Some(ModelAccess::Direct) => return Ok(None),
            Some(_) => true,
            None => false,
        };
        if !self.preset.can_use_gateway() {
            return if is_asked { Err(NoApi::OwnService) } else { Ok(None) };
        }
        // A custom command, and Codex with a command of its own, must be told of the gateway by whoever wrote it.
        let must_ask = self.preset == Preset::Custom || (self.preset == Preset::Codex && self.has_command);
        if must_ask && !is_asked {
            return Ok(None);
        }
        let mut api = ModelApi {
            keys: BTreeMap::new(),
            kept_out: BTreeSet::new(),
            env: BTreeMap::new(),
            words: Vec::new(),
        };
        let only = match self.access {
            Some(ModelAccess::Anthropic) => Some(Provider::Anthropic),
            Some(ModelAccess::OpenAi) => Some(Provider::OpenAi),
            Some(ModelAccess::Gemini) => Some(Provider::Gemini),
            _ => None,
        };
        for (variable, secret) in self.secrets {
            let Some((provider, header)) = self.key(variable) else { continue };
            if only.is_some_and(|only| only != provider) {
                continue;
            }
            api.take(provider, ApiKey { variable: variable.clone(), secret: secret.clone(), header });
        }
        if let (true, Some(provider), 1) = (api.keys.is_empty(), only, self.secrets.len()) {
            for (variable, secret) in self.secrets {
                let header = usual_header(provider);
                api.take(provider, ApiKey { variable: variable.clone(), secret: secret.clone(), header });
            }
        }
        if api.keys.is_empty() {
            return if is_asked { Err(NoApi::NoKey) } else { Ok(None) };
        }
        self.point(&mut api);
        Ok(Some(api))
    }

    /// The provider and header of a variable.
    fn key(&self, variable: &str) -> Option<(Provider, KeyHeader)> {
        if self.preset == Preset::Copilot && variable == "COPILOT_PROVIDER_API_KEY" {
            let kind = self.env.get("COPILOT_PROVIDER_TYPE").map(String::as_str);
            let provider = if kind == Some("anthropic") { Provider::Anthropic } else { Provider::OpenAi };
            return Some((provider, usual_header(provider)));
        }
        key_of(variable)
    }

    /// Sets what the program reads its addresses from.
    fn point(&self, api: &mut ModelApi) {
        let providers: Vec<Provider> = api.keys.keys().copied().collect();
        let mut set = |name: &str, value: String| drop(api.env.insert(name.to_string(), value));
        for provider in providers.iter().copied() {
            let url = provider.url_inside();
            match (self.preset, provider) {
                (Preset::Codex, Provider::OpenAi) => {}
                // One variable has all of its settings.
                (Preset::OpenCode, _) => {}
                (Preset::Goose, Provider::Anthropic) => set("ANTHROPIC_HOST", url),
                (Preset::Goose, Provider::OpenAi) => set("OPENAI_HOST", url),
                (Preset::Goose, Provider::Gemini) => set("GOOGLE_HOST", url),
                (Preset::Aider, Provider::Anthropic) => set("ANTHROPIC_API_BASE", url),
                (Preset::Aider, Provider::OpenAi) => set("OPENAI_API_BASE", format!("{url}/v1")),
                (Preset::Aider, Provider::Gemini) => set("GEMINI_API_BASE", url),
                (Preset::Copilot, Provider::Anthropic) => {
                    set("COPILOT_PROVIDER_TYPE", "anthropic".into());
                    set("COPILOT_PROVIDER_BASE_URL", url);
                    set("COPILOT_PROVIDER_API_KEY", provider.dummy_key().into());
                }
                (Preset::Copilot, Provider::OpenAi) => {
                    set("COPILOT_PROVIDER_BASE_URL", format!("{url}/v1"));
                    set("COPILOT_PROVIDER_API_KEY", provider.dummy_key().into());
                }
                (_, Provider::Anthropic) => set("ANTHROPIC_BASE_URL", url),
                (_, Provider::OpenAi) => {
                    set("OPENAI_BASE_URL", format!("{url}/v1"));
                    set("OPENAI_API_BASE", format!("{url}/v1"));
                }
                // Gemini CLI takes nothing but HTTPS from a host that is not the local one.
                (_, Provider::Gemini) => {
                    set("GOOGLE_GEMINI_BASE_URL", format!("https://{MODEL_NAME}/{}", provider.as_str()));
                }
            }
        }
        if self.preset == Preset::OpenCode {
            let mut of = serde_json::Map::new();
            for provider in providers {
                let (name, version) = match provider {
                    Provider::Anthropic => ("anthropic", "v1"),
                    Provider::OpenAi => ("openai", "v1"),
                    Provider::Gemini => ("google", "v1beta"),
                };
                let url = format!("{}/{version}", provider.url_inside());
                of.insert(name.into(), json!({"options": {"baseURL": url}}));
            }
            set("OPENCODE_CONFIG_CONTENT", json!({"provider": of}).to_string());
        }
        if let (Preset::Codex, false, Some(key)) =
            (self.preset, self.has_command, api.keys.get(&Provider::OpenAi))
        {
            let url = Provider::OpenAi.url_inside();
            let provider = format!(
                "model_providers.coffer={{name=\"Cofferdam\",base_url=\"{url}/v1\",env_key=\"{}\",wire_api=\"responses\"}}",
                key.variable
            );
            let words = ["-c", "model_provider=\"coffer\"", "-c", &provider];
            api.words = words.map(str::to_string).to_vec();
        }
    }
}

impl ModelApi {
    fn take(&mut self, provider: Provider, key: ApiKey) {
        self.kept_out.insert(key.variable.clone());
        // An OAuth token looks like one to its program.
        let dummy = match key.variable.as_str() {
            "CLAUDE_CODE_OAUTH_TOKEN" => "sk-ant-oat01-kept-outside-the-sandbox",
            _ => provider.dummy_key(),
        };
        self.env.insert(key.variable.clone(), dummy.to_string());
        self.keys.entry(provider).or_insert(key);
    }
}

const fn usual_header(provider: Provider) -> KeyHeader {
    match provider {
        Provider::Anthropic => KeyHeader::ApiKey,
        Provider::OpenAi => KeyHeader::Bearer,
        Provider::Gemini => KeyHeader::GoogApiKey,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(
        preset: Preset,
        access: Option<ModelAccess>,
        secrets: &[(&str, &str)],
        has_command: bool,
    ) -> Result<Option<ModelApi>, NoApi> {
        let pairs =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
        let (secrets, env) = (pairs(secrets), BTreeMap::new());
        Wish { preset, access, secrets: &secrets, env: &env, has_command }.api()
    }

    #[test]
    fn a_key_under_its_usual_name_stays_outside() {
        for (preset, variable, provider, points) in [
            (Preset::ClaudeCode, "ANTHROPIC_API_KEY", Provider::Anthropic, "ANTHROPIC_BASE_URL"),
            (Preset::ClaudeCode, "CLAUDE_CODE_OAUTH_TOKEN", Provider::Anthropic, "ANTHROPIC_BASE_URL"),
            (Preset::Gemini, "GEMINI_API_KEY", Provider::Gemini, "GOOGLE_GEMINI_BASE_URL"),
            (Preset::Qwen, "OPENAI_API_KEY", Provider::OpenAi, "OPENAI_BASE_URL"),
            (Preset::Goose, "OPENAI_API_KEY", Provider::OpenAi, "OPENAI_HOST"),
            (Preset::Aider, "ANTHROPIC_API_KEY", Provider::Anthropic, "ANTHROPIC_API_BASE"),
            (Preset::Copilot, "COPILOT_PROVIDER_API_KEY", Provider::OpenAi, "COPILOT_PROVIDER_BASE_URL"),
            (Preset::OpenCode, "OPENAI_API_KEY", Provider::OpenAi, "OPENCODE_CONFIG_CONTENT"),
        ] {
            let api = api(preset, None, &[(variable, "s"), ("OTHER", "t")], false).unwrap().unwrap();
            assert_eq!(api.keys[&provider].secret, "s", "{preset:?}");
            assert!(api.kept_out.contains(variable) && !api.kept_out.contains("OTHER"), "{preset:?}");
            assert!(api.env[points].contains(MODEL_NAME), "{preset:?} {:?}", api.env);
            assert!(api.env[variable].contains("outside"), "{preset:?}");
        }
    }

    #[test]
    fn codex_is_told_by_its_command() {
        let told = api(Preset::Codex, None, &[("CODEX_API_KEY", "s")], false).unwrap().unwrap();
        assert_eq!(told.words.len(), 4);
        assert!(told.words[3].contains("env_key=\"CODEX_API_KEY\"") && told.words[3].contains("/openai/v1"));
        assert_eq!(api(Preset::Codex, None, &[("CODEX_API_KEY", "s")], true), Ok(None), "an own command");
    }

    #[test]
    fn who_does_not_want_it_or_cannot_use_it_keeps_its_key() {
        let key = [("ANTHROPIC_API_KEY", "s")];
        assert_eq!(api(Preset::ClaudeCode, Some(ModelAccess::Direct), &key, false), Ok(None));
        assert_eq!(api(Preset::Amp, None, &key, false), Ok(None));
        assert_eq!(api(Preset::Amp, Some(ModelAccess::Gateway), &key, false), Err(NoApi::OwnService));
        assert_eq!(api(Preset::ClaudeCode, None, &[], false), Ok(None));
        assert_eq!(api(Preset::ClaudeCode, Some(ModelAccess::Gateway), &[], false), Err(NoApi::NoKey));
        assert_eq!(api(Preset::Custom, None, &key, true), Ok(None));
        let custom =
            api(Preset::Custom, Some(ModelAccess::OpenAi), &[("MY_KEY", "s")], true).unwrap().unwrap();
        assert_eq!(custom.keys[&Provider::OpenAi].variable, "MY_KEY");
        assert!(custom.env.contains_key("OPENAI_BASE_URL") && custom.env["MY_KEY"].contains("outside"));
        let two = [("A", "s"), ("B", "t")];
        assert_eq!(api(Preset::Custom, Some(ModelAccess::Gemini), &two, true), Err(NoApi::NoKey));
    }
}
