//! Which commands may be started.

use coffer_core::command::CommandPolicy;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Rules for commands: the first that matches decides, else the default. A shell line is refused if one of
/// its commands is, or if the server cannot determine what it runs.
#[derive(Debug, ToSchema)]
#[schema(as = CommandPolicy)]
#[expect(dead_code, reason = "describes a type of another crate")]
pub struct PolicyShape {
    /// The effect if no rule matches: `allow` by default.
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
    /// The words that a command begins with. `*` in a word matches any characters, the word `**` any words.
    #[schema(example = "git push ** --force", max_length = 256)]
    pattern: String,
    /// Shown to callers whose command it refuses.
    #[schema(max_length = 500)]
    note: Option<String>,
}

/// A command to check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// A shell line, or a program with its arguments.
    pub command: CommandWords,
    /// A policy to try instead of the project's.
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

/// The verdict on a command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Answer {
    pub allowed: bool,
    /// Why it is refused, as the caller would see it.
    pub reason: Option<String>,
    /// The index of the rule that refuses it, from 0; null if the default does, or if the command is unclear.
    pub rule: Option<usize>,
    /// The commands that were found, up to the refused one.
    pub commands: Vec<JudgedShape>,
}

/// The verdict on one command of a line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = JudgedCommand)]
pub struct JudgedShape {
    pub words: Vec<String>,
    /// `allow` or `deny`.
    pub effect: String,
    /// The index of the rule that decides, from 0; null if the default does.
    pub rule: Option<usize>,
}
