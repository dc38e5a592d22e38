//! Which commands may be started.

use coffer_core::command::CommandPolicy;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Rules for commands: the first that fits decides, else the default. A line for a shell is refused when one of
/// the commands in it is, or when it cannot be told what it runs.
#[derive(Debug, ToSchema)]
#[schema(as = CommandPolicy)]
#[expect(dead_code, reason = "describes a type of another crate")]
pub struct PolicyShape {
    /// For commands that no rule fits: `allow` unless said otherwise.
    default: Option<EffectShape>,
    #[schema(max_items = 100)]
    rules: Option<Vec<RuleShape>>,
}

#[derive(Debug, ToSchema)]
#[schema(as = CommandEffect, rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a type of another crate")]
pub(crate) enum EffectShape {
    Allow,
    Deny,
}

#[derive(Debug, ToSchema)]
#[schema(as = CommandRule)]
#[expect(dead_code, reason = "describes a type of another crate")]
pub(crate) struct RuleShape {
    effect: EffectShape,
    /// The words that a command begins with. `*` in a word stands for any letters, the word `**` for any words.
    #[schema(example = "git push ** --force", max_length = 256)]
    pattern: String,
    /// Told to whoever is refused by it.
    #[schema(max_length = 500)]
    note: Option<String>,
}

/// A command, and what to hold against it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// A line for a shell, or a program with its arguments.
    pub command: CommandWords,
    /// Another policy than the project's, to try it out.
    #[serde(default)]
    #[schema(value_type = Option<PolicyShape>)]
    pub policy: Option<CommandPolicy>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum CommandWords {
    Line(String),
    Words(Vec<String>),
}

/// What would become of a command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Answer {
    pub allowed: bool,
    /// Why not, as whoever asks for it is told.
    pub reason: Option<String>,
    /// The place of the rule that refuses it, from 0; null where the default does or it cannot be told.
    pub rule: Option<usize>,
    /// The commands that were found, up to the one that is refused.
    pub commands: Vec<JudgedShape>,
}

/// What would become of one command of a line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = JudgedCommand)]
pub struct JudgedShape {
    pub words: Vec<String>,
    /// `allow` or `deny`.
    pub effect: String,
    /// The place of the rule that decides, from 0; null where the default does.
    pub rule: Option<usize>,
}
