//! Presets: known agents, with their documented commands for running without a person.

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

/// The program of an agent.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Preset {
    ClaudeCode,
    Codex,
    Gemini,
    #[serde(rename = "opencode")]
    #[strum(serialize = "opencode")]
    OpenCode,
    Aider,
    Goose,
    Cursor,
    Amp,
    Qwen,
    Copilot,
    /// Any other program: its definition has the command.
    Custom,
}

/// The format of an agent's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, VariantArray)]
#[serde(rename_all = "snake_case")]
pub enum OutputFormat {
    /// Plain text for people.
    Text,
    /// `stream-json` as Claude Code writes it; Cursor, Amp and Qwen Code write much the same.
    ClaudeStream,
    /// `codex exec --json`.
    CodexStream,
    /// `gemini --output-format stream-json`.
    GeminiStream,
    /// `opencode run --format json`.
    #[serde(rename = "opencode_stream")]
    OpenCodeStream,
    /// `goose run --output-format stream-json`.
    GooseStream,
    /// Plain text for people, with lines about its usage.
    Aider,
}

impl OutputFormat {
    pub const ALL: &'static [Self] = Self::VARIANTS;
}

/// A word of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    Plain(&'static str),
    Prompt,
    /// These words followed by the model, if one is chosen.
    Model(&'static str),
}

use Word::{Model, Plain, Prompt};

names!(Preset);

impl Preset {
    /// For people.
    pub const fn title(self) -> &'static str {
        match self {
            Self::ClaudeCode => "Claude Code",
            Self::Codex => "Codex",
            Self::Gemini => "Gemini CLI",
            Self::OpenCode => "OpenCode",
            Self::Aider => "Aider",
            Self::Goose => "Goose",
            Self::Cursor => "Cursor CLI",
            Self::Amp => "Amp",
            Self::Qwen => "Qwen Code",
            Self::Copilot => "Copilot CLI",
            Self::Custom => "any other command",
        }
    }

    /// The usual variable of its key, so that a form can ask for the secret.
    pub fn usual_secret(self) -> Option<&'static str> {
        self.logins().first().map(|login| login.variable)
    }

    /// The sandbox isolates them, so each is run without asking for permissions.
    pub(super) const fn words(self) -> &'static [Word] {
        match self {
            Self::ClaudeCode => &[
                Plain("claude"),
                Plain("--print"),
                Plain("--output-format"),
                Plain("stream-json"),
                Plain("--verbose"),
                Plain("--dangerously-skip-permissions"),
                Model("--model"),
                Prompt,
            ],
            Self::Codex => &[
                Plain("codex"),
                Plain("exec"),
                Plain("--json"),
                Plain("--dangerously-bypass-approvals-and-sandbox"),
                Plain("--skip-git-repo-check"),
                Model("--model"),
                Prompt,
            ],
            Self::Gemini => &[
                Plain("gemini"),
                Plain("--output-format"),
                Plain("stream-json"),
                Plain("--yolo"),
                Model("--model"),
                Plain("--prompt"),
                Prompt,
            ],
            Self::OpenCode => {
                &[Plain("opencode"), Plain("run"), Plain("--format"), Plain("json"), Model("--model"), Prompt]
            }
            // The run commits by itself.
            Self::Aider => &[
                Plain("aider"),
                Plain("--yes-always"),
                Plain("--no-auto-commits"),
                Plain("--no-check-update"),
                Plain("--no-show-release-notes"),
                // It would change the repository's own file; its files are excluded below `.git` instead.
                Plain("--no-gitignore"),
                Plain("--no-pretty"),
                Plain("--no-stream"),
                Model("--model"),
                Plain("--message"),
                Prompt,
            ],
            Self::Goose => &[
                Plain("goose"),
                Plain("run"),
                Plain("--no-session"),
                Plain("--output-format"),
                Plain("stream-json"),
                Model("--model"),
                Plain("--text"),
                Prompt,
            ],
            Self::Cursor => &[
                Plain("cursor-agent"),
                Plain("--print"),
                Plain("--force"),
                Plain("--output-format"),
                Plain("stream-json"),
                Model("--model"),
                Prompt,
            ],
            Self::Amp => &[
                Plain("amp"),
                Plain("--dangerously-allow-all"),
                Plain("--stream-json"),
                Plain("--execute"),
                Prompt,
            ],
            Self::Qwen => &[
                Plain("qwen"),
                Plain("--output-format"),
                Plain("stream-json"),
                Plain("--yolo"),
                // Without it, it wants a model and a base URL in the environment as well as the key.
                Plain("--auth-type"),
                Plain("openai"),
                Model("--model"),
                Prompt,
            ],
            Self::Copilot => {
                &[Plain("copilot"), Plain("--allow-all-tools"), Model("--model"), Plain("--prompt"), Prompt]
            }
            Self::Custom => &[],
        }
    }

    /// Its command with `{prompt}` and `{model}` in it; empty for a custom one.
    pub fn command_shown(self) -> Vec<String> {
        let shown = |word: &Word| match word {
            Plain(word) => vec![(*word).to_string()],
            Prompt => vec!["{prompt}".to_string()],
            Model(flag) => vec![(*flag).to_string(), "{model}".to_string()],
        };
        self.words().iter().flat_map(shown).collect()
    }

    /// Whether its command takes a model.
    pub fn takes_model(self) -> bool {
        self.words().iter().any(|word| matches!(word, Model(_)))
    }

    /// The format of its output.
    pub const fn output(self) -> OutputFormat {
        match self {
            Self::ClaudeCode | Self::Cursor | Self::Amp | Self::Qwen => OutputFormat::ClaudeStream,
            Self::Codex => OutputFormat::CodexStream,
            Self::Gemini => OutputFormat::GeminiStream,
            Self::OpenCode => OutputFormat::OpenCodeStream,
            Self::Goose => OutputFormat::GooseStream,
            Self::Aider => OutputFormat::Aider,
            Self::Copilot | Self::Custom => OutputFormat::Text,
        }
    }

    /// Environment variables that it needs to run without a person.
    pub(super) const fn env(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Goose => &[("GOOSE_MODE", "auto")],
            Self::ClaudeCode => &[("DISABLE_AUTOUPDATER", "1")],
            // The sandbox is the boundary; it refuses to work in a directory that nobody trusted.
            Self::Gemini => &[("GEMINI_CLI_TRUST_WORKSPACE", "true")],
            _ => &[],
        }
    }

    /// Patterns of files that it leaves in the repository, which are no work.
    pub const fn litter(self) -> &'static [&'static str] {
        match self {
            Self::Aider => &[".aider*"],
            _ => &[],
        }
    }
}
