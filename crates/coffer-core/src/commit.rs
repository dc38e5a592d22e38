//! Conventional commits: parses messages, and checks a project's rules.
//!
//! `type(scope)!: description`, a blank line, a body, a blank line, footers (`Token: value`, `Token #value`,
//! `BREAKING CHANGE: value`). See conventionalcommits.org, version 1.0.0.

mod compose;

use std::fmt;

use serde::{Deserialize, Serialize};

/// The default types of a project.
pub const USUAL_TYPES: [&str; 11] =
    ["feat", "fix", "chore", "docs", "style", "refactor", "test", "build", "ci", "perf", "revert"];

const LONGEST_MESSAGE: usize = 64 * 1024;
const LONGEST_WORD: usize = 64;
const MOST_WORDS: usize = 256;
const USUAL_SUBJECT: usize = 72;

/// A project's rules for commit messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CommitPolicy {
    /// Whether messages must be conventional.
    pub conventional: bool,
    pub types: Vec<String>,
    /// The allowed scopes; any if empty.
    pub scopes: Vec<String>,
    pub require_scope: bool,
    /// The longest first line, in characters.
    pub longest_subject: usize,
}

impl Default for CommitPolicy {
    fn default() -> Self {
        Self {
            conventional: true,
            types: USUAL_TYPES.map(str::to_string).to_vec(),
            scopes: Vec::new(),
            require_scope: false,
            longest_subject: USUAL_SUBJECT,
        }
    }
}

/// A parsed message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConventionalCommit {
    pub kind: String,
    pub scope: Option<String>,
    /// Marked by `!` or by a footer.
    pub breaking: bool,
    pub description: String,
    pub body: Option<String>,
    /// Tokens and values, in order.
    pub footers: Vec<(String, String)>,
}

/// Why a message is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadCommit {
    #[error("the message is empty")]
    Empty,
    #[error("the message is longer than {LONGEST_MESSAGE} bytes")]
    TooLong,
    #[error("the message contains a control character")]
    Control,
    #[error("`{0}` is not `type(scope): description`, such as `fix(api): answer 404 for unknown ids`")]
    Form(String),
    #[error("`{kind}` is not one of the types of this project: {}", allowed.join(", "))]
    Type { kind: String, allowed: Vec<String> },
    #[error("`{scope}` is not one of the scopes of this project: {}", allowed.join(", "))]
    Scope { scope: String, allowed: Vec<String> },
    #[error("this project requires a scope: `type(scope): description`")]
    NoScope,
    #[error("the first line has {length} characters, and {most} are allowed")]
    LongSubject { length: usize, most: usize },
    #[error("a blank line must follow the first")]
    NoBlankLine,
}

/// Why a policy is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadCommitPolicy {
    #[error(
        "types and scopes are at most {MOST_WORDS} words of lower-case letters, digits, `-`, `_`, `.` and `/`"
    )]
    Words,
    #[error("conventional messages need at least one type")]
    NoTypes,
    #[error("the longest first line is between 20 and 500 characters")]
    Subject,
}

impl CommitPolicy {
    /// Checks the policy.
    pub fn check(&self) -> Result<(), BadCommitPolicy> {
        let word = |word: &String| (1..=LONGEST_WORD).contains(&word.len()) && word.chars().all(is_scope);
        let words = |words: &[String]| words.len() <= MOST_WORDS && words.iter().all(word);
        if !words(&self.types) || !words(&self.scopes) {
            return Err(BadCommitPolicy::Words);
        }
        if self.conventional && self.types.is_empty() {
            return Err(BadCommitPolicy::NoTypes);
        }
        if !(20..=500).contains(&self.longest_subject) {
            return Err(BadCommitPolicy::Subject);
        }
        Ok(())
    }

    /// Checks a message; returns it parsed, or `None` if messages need not be conventional.
    pub fn judge(&self, message: &str) -> Result<Option<ConventionalCommit>, BadCommit> {
        if message.trim().is_empty() {
            return Err(BadCommit::Empty);
        }
        if message.len() > LONGEST_MESSAGE {
            return Err(BadCommit::TooLong);
        }
        if message.chars().any(|c| c.is_control() && !"\n\t".contains(c)) {
            return Err(BadCommit::Control);
        }
        if !self.conventional {
            return Ok(None);
        }
        let commit = ConventionalCommit::parse(message)?;
        if !self.types.iter().any(|kind| kind.eq_ignore_ascii_case(&commit.kind)) {
            return Err(BadCommit::Type { kind: commit.kind, allowed: self.types.clone() });
        }
        match &commit.scope {
            None if self.require_scope => return Err(BadCommit::NoScope),
            Some(scope) if !self.scopes.is_empty() && !self.scopes.contains(scope) => {
                return Err(BadCommit::Scope { scope: scope.clone(), allowed: self.scopes.clone() });
            }
            _ => {}
        }
        let length = message.lines().next().unwrap_or_default().chars().count();
        if length > self.longest_subject {
            return Err(BadCommit::LongSubject { length, most: self.longest_subject });
        }
        Ok(Some(commit))
    }
}

impl ConventionalCommit {
    /// Parses a message. The policy decides whether its type and scope are allowed.
    pub fn parse(message: &str) -> Result<Self, BadCommit> {
        let mut lines = message.trim_end().lines();
        let subject = lines.next().unwrap_or_default();
        let form = || BadCommit::Form(subject.chars().take(100).collect());
        let (head, description) = subject.split_once(": ").ok_or_else(form)?;
        let (head, marked) = head.strip_suffix('!').map_or((head, false), |head| (head, true));
        let (kind, scope) = match head.split_once('(') {
            Some((kind, scope)) => (kind, Some(scope.strip_suffix(')').ok_or_else(form)?)),
            None => (head, None),
        };
        let is_word = |word: &str, fits: fn(char) -> bool| {
            (1..=LONGEST_WORD).contains(&word.len()) && word.chars().all(fits)
        };
        let kind_fits = is_word(kind, |c| c.is_ascii_alphanumeric() || c == '-');
        if !kind_fits || !scope.is_none_or(|scope| is_word(scope, is_scope)) || description.trim().is_empty()
        {
            return Err(form());
        }
        match lines.next() {
            None => {}
            Some(line) if line.trim().is_empty() => {}
            Some(_) => return Err(BadCommit::NoBlankLine),
        }
        let rest: Vec<&str> = lines.collect();
        let (body, footers) = split(&rest);
        let breaking = marked || footers.iter().any(|(token, _)| is_breaking(token));
        Ok(Self {
            kind: kind.to_string(),
            scope: scope.map(str::to_string),
            breaking,
            description: description.trim().to_string(),
            body,
            footers,
        })
    }
}

impl fmt::Display for ConventionalCommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        if let Some(scope) = &self.scope {
            write!(f, "({scope})")?;
        }
        let told = self.footers.iter().any(|(token, _)| is_breaking(token));
        let mark = if self.breaking && !told { "!" } else { "" };
        write!(f, "{mark}: {}", self.description)?;
        if let Some(body) = &self.body {
            write!(f, "\n\n{body}")?;
        }
        for (at, (token, value)) in self.footers.iter().enumerate() {
            write!(f, "{}{token}: {value}", if at == 0 { "\n\n" } else { "\n" })?;
        }
        Ok(())
    }
}

const fn is_scope(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/')
}

fn is_breaking(token: &str) -> bool {
    matches!(token, "BREAKING CHANGE" | "BREAKING-CHANGE")
}

/// The body, and the footers of the last paragraph if it begins with one.
fn split(lines: &[&str]) -> (Option<String>, Vec<(String, String)>) {
    let start = lines.iter().rposition(|line| line.trim().is_empty()).map_or(0, |blank| blank + 1);
    let mut footers: Vec<(String, String)> = Vec::new();
    if lines.get(start).is_some_and(|line| footer(line).is_some()) {
        for line in &lines[start..] {
            match (footer(line), footers.last_mut()) {
                (Some((token, value)), _) => footers.push((token.to_string(), value.to_string())),
                // A value continues until the next token.
                (None, Some((_, value))) => {
                    value.push('\n');
                    value.push_str(line);
                }
                (None, None) => {}
            }
        }
    }
    let body = if footers.is_empty() { lines } else { &lines[..start] };
    let body = body.join("\n").trim().to_string();
    (Some(body).filter(|body| !body.is_empty()), footers)
}

fn footer(line: &str) -> Option<(&str, &str)> {
    let (token, value) = match (line.split_once(": "), line.split_once(" #")) {
        (Some(colon), Some(hash)) => {
            if colon.0.len() <= hash.0.len() {
                colon
            } else {
                hash
            }
        }
        (colon, hash) => colon.or(hash)?,
    };
    let is_token = (1..=LONGEST_WORD).contains(&token.len())
        && token.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    (is_breaking(token) || is_token).then_some((token, value.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(message: &str) -> ConventionalCommit {
        ConventionalCommit::parse(message).unwrap()
    }

    #[test]
    fn every_usual_type_is_read_with_scope_and_mark() {
        let policy = CommitPolicy::default();
        for kind in USUAL_TYPES {
            for (scope, mark) in [("", ""), ("(api)", ""), ("", "!"), ("(core/net_2.x-y)", "!")] {
                let message = format!("{kind}{scope}{mark}: do a thing");
                let commit = policy.judge(&message).unwrap().unwrap();
                assert_eq!((commit.kind.as_str(), commit.breaking), (kind, mark == "!"), "{message}");
                assert_eq!(commit.scope.is_some(), !scope.is_empty());
                assert_eq!(commit.to_string(), message);
            }
        }
    }

    #[test]
    fn bodies_and_footers_are_told_apart() {
        let message = "feat(api)!: send\n\nFirst: this is text.\n\nMore text\nof two lines.\n\nReviewed-by: Z\n\
                       BREAKING CHANGE: all of it\n  goes on\nRefs #123\n";
        let commit = read(message);
        let body = "First: this is text.\n\nMore text\nof two lines.";
        assert_eq!(commit.body.as_deref(), Some(body));
        let footers: Vec<_> = commit.footers.iter().map(|(t, v)| (t.as_str(), v.as_str())).collect();
        assert_eq!(
            footers,
            [("Reviewed-by", "Z"), ("BREAKING CHANGE", "all of it\n  goes on"), ("Refs", "123")]
        );
        assert!(read("fix: a\n\nBREAKING-CHANGE: b").breaking);
        assert!(!read("fix: a\n\nSee: b").breaking && read("fix: a\n\nb c d").footers.is_empty());
        assert_eq!(read("fix: a\n\nplain body").body.as_deref(), Some("plain body"));
    }

    #[test]
    fn what_is_not_conventional_says_why() {
        let policy = CommitPolicy::default();
        let judge = |message: &str| policy.judge(message).unwrap_err();
        for form in [
            "add a thing",
            "feat:no space",
            "feat : x",
            ": x",
            "feat(): x",
            "feat(a: x",
            "feat(a b): x",
            "feat: ",
            "feat!!: x",
        ] {
            assert!(matches!(judge(form), BadCommit::Form(_)), "{form}");
        }
        assert!(matches!(judge("feature: x"), BadCommit::Type { .. }));
        assert_eq!(judge("fix: x\nbody"), BadCommit::NoBlankLine);
        assert_eq!(judge(" \n"), BadCommit::Empty);
        assert_eq!(judge("fix: \u{1b}[31mx"), BadCommit::Control);
        assert_eq!(
            judge(&format!("fix: {}", "x".repeat(68))),
            BadCommit::LongSubject { length: 73, most: 72 }
        );
        assert_eq!(judge(&"x".repeat(LONGEST_MESSAGE + 1)), BadCommit::TooLong);
        assert!(judge("feature: x").to_string().contains("feat, fix"));
    }

    #[test]
    fn a_project_has_its_own_rules() {
        let strict = CommitPolicy {
            types: vec!["feat".into(), "deps".into()],
            scopes: vec!["api".into()],
            require_scope: true,
            ..CommitPolicy::default()
        };
        assert_eq!(strict.check(), Ok(()));
        assert!(strict.judge("deps(api): x").is_ok());
        assert_eq!(strict.judge("feat: x"), Err(BadCommit::NoScope));
        assert!(matches!(strict.judge("feat(web): x"), Err(BadCommit::Scope { .. })));
        assert!(matches!(strict.judge("fix(api): x"), Err(BadCommit::Type { .. })));
        let free = CommitPolicy { conventional: false, ..CommitPolicy::default() };
        assert_eq!(free.judge("whatever"), Ok(None));
        assert_eq!(free.judge(""), Err(BadCommit::Empty));
        let none = CommitPolicy { types: vec![], ..CommitPolicy::default() };
        assert_eq!(none.check(), Err(BadCommitPolicy::NoTypes));
        let odd = CommitPolicy { scopes: vec!["a b".into()], ..CommitPolicy::default() };
        assert_eq!(odd.check(), Err(BadCommitPolicy::Words));
        assert!(serde_json::from_str::<CommitPolicy>(r#"{"typos": []}"#).is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = CommitPolicy::default().judge(&text);
        }

        #[test]
        fn what_is_read_is_written_as_it_was(
            kind in proptest::sample::select(USUAL_TYPES.to_vec()),
            scope in proptest::option::of("[a-z]{1,8}"),
            breaking: bool,
            description in "[a-z]{1,20}",
            body in proptest::option::of("[a-z ]{0,20}[a-z]"),
        ) {
            let commit = ConventionalCommit {
                kind: kind.to_string(),
                scope,
                breaking,
                description,
                body: body.map(|body| body.trim().to_string()),
                footers: Vec::new(),
            };
            prop_assert_eq!(ConventionalCommit::parse(&commit.to_string()), Ok(commit));
        }
    }
}
