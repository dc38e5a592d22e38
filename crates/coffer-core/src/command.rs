//! Which commands a project lets be started through its API.
//!
//! A policy is an ordered list of rules and a default. A command is its words; the first rule whose pattern
//! fits decides, and where none does, the default. A line that is given to a shell (`bash -c`) is taken apart
//! into the commands in it, and is refused when one of them is. What cannot be told, such as a command whose
//! name is a variable, is refused: whoever writes a policy wants to know what runs.
//!
//! This guards what is asked of the API. It is no wall: an allowed program may start any other.

mod pattern;
mod shell;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

pub use pattern::{BadPattern, Pattern};
pub use shell::Unclear;

/// Rules in one policy.
const MOST_RULES: usize = 100;
const LONGEST_NOTE: usize = 500;

/// Shells that are given a line to run by `-c`, and whose grammar is the one that is read here.
const SHELLS: [&str; 4] = ["sh", "bash", "dash", "ash"];

/// Shells within lines of shells.
const DEEPEST_SHELL: usize = 4;

/// What happens to a command.
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

/// A command that was not started.
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
    /// For whoever is refused by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What may be started in a project's sandboxes. The empty one lets everything pass.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CommandPolicy {
    /// For commands that no rule fits.
    pub default: Effect,
    /// The first that fits decides.
    pub rules: Vec<Rule>,
}

/// A policy that cannot be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPolicy {
    #[error("a policy may have at most {MOST_RULES} rules")]
    TooManyRules,
    #[error("the note of rule {0} is longer than {LONGEST_NOTE} characters")]
    LongNote(usize),
}

/// What a policy makes of everything in a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// Each command that was found, in order; the one that is refused is the last.
    pub commands: Vec<Judged>,
    /// Why the rest could not be told, if so.
    pub unclear: Option<Unclear>,
}

/// What becomes of one command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    pub words: Vec<String>,
    pub effect: Effect,
    /// The place of the rule that decided, from 0; none where the default did.
    pub rule: Option<usize>,
}

/// Why a command is not started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    ByRule { rule: usize, note: Option<String> },
    ByDefault,
    Unclear(Unclear),
}

impl Refused {
    /// The place of the rule that refused it, from 0.
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
    /// Whether it lets everything pass, so that nobody needs to look.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.default == Effect::Allow
    }

    /// Says what is wrong with it.
    pub fn check(&self) -> Result<(), BadPolicy> {
        if self.rules.len() > MOST_RULES {
            return Err(BadPolicy::TooManyRules);
        }
        let long = |rule: &Rule| rule.note.as_ref().is_some_and(|note| note.chars().count() > LONGEST_NOTE);
        self.rules.iter().position(long).map_or(Ok(()), |rule| Err(BadPolicy::LongNote(rule)))
    }

    /// Looks at a program with its arguments.
    pub fn judge(&self, words: &[String]) -> Judgement {
        let mut judgement = Judgement { commands: Vec::new(), unclear: None };
        // An empty policy forbids nothing, whatever it is.
        if !self.is_empty() {
            judgement.unclear = self.look(words, &mut judgement.commands, DEEPEST_SHELL).err();
        }
        judgement
    }

    /// Stops at the first that is refused.
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

    fn decide(&self, words: Vec<String>) -> Judged {
        let rule = self.rules.iter().position(|rule| rule.pattern.fits(&words));
        let effect = rule.map_or(self.default, |rule| self.rules[rule].effect);
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

    /// Why what was judged is not started, if so.
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

/// The line that a shell is given by `-c`, where the words start one that way.
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
            // Anything else that begins so is a mistake, and looked at as a line.
            short
                if short.len() > 1
                    && short.starts_with(['-', '+'])
                    && short[1..].bytes().all(|byte| byte.is_ascii_alphabetic()) =>
            {
                has_line |= short.starts_with('-') && short.contains('c');
                // Each of these takes a name of an option with it.
                for _ in short.chars().filter(|letter| matches!(letter, 'o' | 'O')) {
                    arguments.next();
                }
            }
            line => return has_line.then_some(line),
        }
    }
    None
}
