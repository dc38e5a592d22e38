//! Command policies: which commands may be started through a project's API.
//!
//! A policy is an ordered list of rules and a default. A command is its words; the first rule whose pattern
//! matches decides, and if none does, the default. A shell line (`bash -c`) is split into its commands, and
//! is refused if one of them is. An unclear command, such as one whose name is a variable, is refused: a
//! policy's author wants to know what runs.
//!
//! Code for the code interpreter is the command `code:<language>`. It can start any program, so only a rule
//! that names it permits it: see [`CommandPolicy::decide`].
//!
//! This guards the API. It is not a sandbox: an allowed program may start any other.

mod pattern;
mod shell;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

pub use pattern::{BadPattern, Pattern};
pub use shell::Unclear;

/// Most rules in one policy.
const MOST_RULES: usize = 100;
const LONGEST_NOTE: usize = 500;

/// Shells that take a line by `-c`, and whose grammar is parsed here.
const SHELLS: [&str; 4] = ["sh", "bash", "dash", "ash"];

/// The beginning of the word that stands for code in a language.
const CODE: &str = "code:";

/// The languages of the code interpreter, as policies name them.
pub const LANGUAGES: [&str; 6] = ["python", "javascript", "typescript", "r", "bash", "java"];

/// Most nested shell lines.
const DEEPEST_SHELL: usize = 4;

/// The command that stands for code in a language of the code interpreter.
pub fn code(language: &str) -> Vec<String> {
    vec![format!("{CODE}{language}")]
}

/// Whether a word stands for code.
pub fn is_code(word: &str) -> bool {
    word.starts_with(CODE)
}

/// The effect on a command.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Default,
    Serialize,
    Deserialize,
    EnumString,
    IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Effect {
    #[default]
    Allow,
    Deny,
}

names!(Effect);

/// A refused command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedCommand {
    /// As far as it was understood.
    pub words: Vec<String>,
    pub why: String,
    pub rule: Option<usize>,
}

/// One rule of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    pub effect: Effect,
    pub pattern: Pattern,
    /// For callers whose command it refuses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A project's command policy. The empty one permits everything.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CommandPolicy {
    /// The effect if no rule matches.
    pub default: Effect,
    /// The first that matches decides.
    pub rules: Vec<Rule>,
}

/// Why a policy is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPolicy {
    #[error("a policy may have at most {MOST_RULES} rules")]
    TooManyRules,
    #[error("the note of rule {0} is longer than {LONGEST_NOTE} characters")]
    LongNote(usize),
}

/// The verdict on all commands of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// Each command that was found, in order; the refused one is the last.
    pub commands: Vec<Judged>,
    /// Why the rest is unclear, if it is.
    pub unclear: Option<Unclear>,
}

/// The verdict on one command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    pub words: Vec<String>,
    pub effect: Effect,
    /// The index of the rule that decided, from 0; `None` if the default did.
    pub rule: Option<usize>,
}

/// Why a command is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    ByRule { rule: usize, note: Option<String> },
    ByDefault,
    Unclear(Unclear),
}

impl Refused {
    /// The index of the rule that refused it, from 0.
    pub const fn rule(&self) -> Option<usize> {
        match self {
            Self::ByRule { rule, .. } => Some(*rule),
            Self::ByDefault | Self::Unclear(_) => None,
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByRule { rule, note: None } => write!(f, "rule {rule} of the project's policy forbids it"),
            Self::ByRule { rule, note: Some(note) } => {
                write!(f, "rule {rule} of the project's policy forbids it: {note}")
            }
            Self::ByDefault => f.write_str("no rule of the project's policy allows it"),
            Self::Unclear(why) => write!(f, "the project's policy cannot be checked: {why}"),
        }
    }
}

impl CommandPolicy {
    /// Whether it permits everything, so that checks can be skipped.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.default == Effect::Allow
    }

    /// Checks the policy; the error says what is wrong.
    pub fn check(&self) -> Result<(), BadPolicy> {
        if self.rules.len() > MOST_RULES {
            return Err(BadPolicy::TooManyRules);
        }
        let long = |rule: &Rule| rule.note.as_ref().is_some_and(|note| note.chars().count() > LONGEST_NOTE);
        self.rules.iter().position(long).map_or(Ok(()), |rule| Err(BadPolicy::LongNote(rule)))
    }

    /// Judges a program with its arguments.
    pub fn judge(&self, words: &[String]) -> Judgement {
        let mut judgement = Judgement { commands: Vec::new(), unclear: None };
        // An empty policy forbids nothing.
        if !self.is_empty() {
            judgement.unclear = self.look(words, &mut judgement.commands, DEEPEST_SHELL).err();
        }
        judgement
    }

    /// Stops at the first refused command.
    fn look(&self, words: &[String], found: &mut Vec<Judged>, deeper: usize) -> Result<(), Unclear> {
        let Some(line) = shell_line(words) else {
            if words.iter().map(String::len).sum::<usize>() > shell::LONGEST
                || words.len() > shell::MOST_WORDS
            {
                return Err(Unclear::TooLong);
            }
            found.push(self.decide(words.to_vec()));
            return Ok(());
        };
        let deeper = deeper.checked_sub(1).ok_or(Unclear::TooDeep)?;
        for words in shell::commands(line)? {
            if is_refused(found) {
                break;
            }
            self.look(&words, found, deeper)?;
        }
        Ok(())
    }

    /// The verdict on one command. For code, only rules that name code count, and the default is to refuse:
    /// a policy that forbids `curl` and allows the rest would otherwise forbid nothing.
    fn decide(&self, words: Vec<String>) -> Judged {
        let is_code = words.first().is_some_and(|first| is_code(first));
        let counts = |rule: &Rule| !is_code || rule.pattern.begins_with(CODE);
        let rule = self.rules.iter().position(|rule| counts(rule) && rule.pattern.fits(&words));
        let default = if is_code { Effect::Deny } else { self.default };
        let effect = rule.map_or(default, |rule| self.rules[rule].effect);
        Judged { words, effect, rule }
    }

    /// Whether a command may be started.
    pub fn permit(&self, words: &[String]) -> Result<(), RefusedCommand> {
        match self.refusal(&self.judge(words)) {
            None => Ok(()),
            Some(refused) => {
                Err(RefusedCommand { words: words.to_vec(), why: refused.to_string(), rule: refused.rule() })
            }
        }
    }

    /// Why the judged command is refused, if it is.
    pub fn refusal(&self, judgement: &Judgement) -> Option<Refused> {
        if is_refused(&judgement.commands) {
            let rule = judgement.commands.last().and_then(|last| last.rule);
            return Some(match rule {
                Some(rule) => {
                    Refused::ByRule { rule, note: self.rules.get(rule).and_then(|rule| rule.note.clone()) }
                }
                None => Refused::ByDefault,
            });
        }
        judgement.unclear.clone().map(Refused::Unclear)
    }
}

fn is_refused(found: &[Judged]) -> bool {
    found.last().is_some_and(|last| last.effect == Effect::Deny)
}

/// The line after `-c`, if the words start a shell that way.
fn shell_line(words: &[String]) -> Option<&str> {
    let (program, arguments) = words.split_first()?;
    if !SHELLS.contains(&program.rsplit('/').next()?) {
        return None;
    }
    let mut arguments = arguments.iter();
    let mut has_line = false;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--" | "-" => return arguments.next().filter(|_| has_line).map(String::as_str),
            "--rcfile" | "--init-file" => {
                arguments.next();
            }
            long if long.starts_with("--") => {}
            // Other options of this form are mistakes; treat their value as a line.
            short
                if short.len() > 1
                    && short.starts_with(['-', '+'])
                    && short[1..].bytes().all(|byte| byte.is_ascii_alphabetic()) =>
            {
                has_line |= short.starts_with('-') && short.contains('c');
                // Each of these options takes a name as well.
                for _ in short.chars().filter(|letter| matches!(letter, 'o' | 'O')) {
                    arguments.next();
                }
            }
            line => return has_line.then_some(line),
        }
    }
    None
}
