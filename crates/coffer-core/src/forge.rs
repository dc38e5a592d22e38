//! Types of forges: names of repositories, branches and commits, and states.
//!
//! Names come from clients and become arguments of git, so each has a grammar that is narrower than git's:
//! none begins with `-`, contains `..`, or has a control character.

mod address;
pub mod records;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use address::{BadAddress, ForgeAddress};

/// The text is not a name of that kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadName(&'static str);

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $why:literal, $fits:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = BadName;

            fn from_str(text: &str) -> Result<Self, BadName> {
                let fits: fn(&str) -> bool = $fits;
                if fits(text) { Ok(Self(text.to_string())) } else { Err(BadName($why)) }
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadName;

            fn try_from(text: String) -> Result<Self, BadName> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

name! {
    /// The name of a repository in its project. Never the text of an id, so that lookups by either are
    /// unambiguous.
    RepositoryName,
    "the name of a repository is 1 to 64 letters, digits, `_`, `-` and `.`, begins with a letter or digit, \
     does not end in `.git` or `.lock`, has no `..`, and is no id",
    is_repository
}

name! {
    /// A branch, without `refs/heads/`.
    BranchName,
    "a branch is 1 to 200 bytes of text that git allows in a ref, and does not begin with `-`",
    is_branch
}

name! {
    /// The hash of a commit: 40 or 64 hexadecimal digits.
    CommitId,
    "a commit is 40 or 64 hexadecimal digits",
    |text| matches!(text.len(), 40 | 64) && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

name! {
    /// The context of a status, such as `ci/test`.
    StatusContext,
    "the context of a status is 1 to 100 characters on one line",
    |text| (1..=100).contains(&text.chars().count()) && text.trim() == text && !text.chars().any(char::is_control)
}

fn is_repository(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
    let lower = text.to_ascii_lowercase();
    (1..=64).contains(&text.len())
        && text.bytes().all(fits)
        && text.as_bytes()[0].is_ascii_alphanumeric()
        && !text.contains("..")
        && !text.ends_with('.')
        && ![".git", ".lock"].iter().any(|end| lower.ends_with(end))
        && text.parse::<crate::ProjectId>().is_err()
}

fn is_branch(text: &str) -> bool {
    let bad = |c: char| c.is_control() || c.is_whitespace() || "~^:?*[\\\"".contains(c) || is_invisible(c);
    let part = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock");
    (1..=200).contains(&text.len())
        && !text.chars().any(bad)
        && text.split('/').all(part)
        && !text.starts_with('-')
        && !text.ends_with('.')
        && !text.contains("..")
        && !text.contains("@{")
        && !matches!(text, "@" | "HEAD")
}

/// Invisible characters, or those that change the direction of writing: a branch could look like another.
const fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

impl BranchName {
    /// Its full name.
    pub fn full(&self) -> String {
        format!("refs/heads/{}", self.0)
    }
}

impl CommitId {
    /// Whether it is the all-zero id, which git writes for no commit.
    pub fn is_zero(&self) -> bool {
        self.0.bytes().all(|b| b == b'0')
    }
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $word)] $variant),+
        }

        impl $name {
            /// Its name.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl FromStr for $name {
            type Err = BadName;

            fn from_str(text: &str) -> Result<Self, BadName> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(BadName(concat!("must be one of: ", $("`", $word, "` "),+))),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

words! {
    /// The kind of forge of a repository.
    ForgeKind {
        /// This server.
        Local = "local",
        GitHub = "github",
        /// Any git server over HTTPS. Pull requests are records of this server.
        Git = "git",
    }
}

words! {
    /// The state of a pull request.
    PullState {
        Open = "open",
        Closed = "closed",
        Merged = "merged",
    }
}

words! {
    /// The state of an issue.
    IssueState {
        Open = "open",
        Closed = "closed",
    }
}

words! {
    /// How a pull request is merged.
    MergeMethod {
        /// With a merge commit of two parents.
        Merge = "merge",
        /// As one commit.
        Squash = "squash",
        /// Each of its commits, on top of the base.
        Rebase = "rebase",
    }
}

words! {
    /// Whether a pull request can be merged now.
    MergeState {
        /// Nothing is in the way.
        Clean = "clean",
        /// Head and base change the same lines.
        Conflict = "conflict",
        /// The protection of the base refuses it for now, or it is a draft.
        Blocked = "blocked",
        /// It is closed or merged.
        Closed = "closed",
        /// The forge does not know yet.
        Unknown = "unknown",
    }
}

words! {
    /// The result of a check for a commit.
    StatusState {
        Pending = "pending",
        Success = "success",
        Failure = "failure",
        Error = "error",
    }
}

words! {
    /// The verdict of a review.
    Verdict {
        Approve = "approve",
        RequestChanges = "request_changes",
        Comment = "comment",
    }
}

words! {
    /// The side of a diff.
    DiffSide {
        /// The old version.
        Left = "left",
        /// The new version.
        Right = "right",
    }
}

/// Changes to a pull request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PullChange {
    pub title: Option<String>,
    pub body: Option<String>,
    pub base: Option<BranchName>,
    pub draft: Option<bool>,
    /// Closes or reopens it.
    pub open: Option<bool>,
}

/// Selects pull requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PullFilter {
    pub state: Option<PullState>,
    pub head: Option<BranchName>,
    pub base: Option<BranchName>,
}

/// The protection rules of a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProtectionRules {
    /// Whether it changes only by merged pull requests.
    pub require_pull: bool,
    /// How many approvals a pull request needs, without a later request for changes by the same reviewer.
    pub approvals: u32,
    /// Whether all statuses of the head must be successes, with at least one.
    pub require_statuses: bool,
}

impl Default for ProtectionRules {
    fn default() -> Self {
        Self { require_pull: true, approvals: 0, require_statuses: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn repositories_have_plain_names() {
        for good in ["app", "a", "My.App-1_x", "2048", &"x".repeat(64)] {
            assert!(good.parse::<RepositoryName>().is_ok(), "{good}");
        }
        let id = crate::ProjectId::generate().to_string();
        for bad in [
            "", ".", "..", "../x", "a/b", "-u", ".a", "a..b", "a.git", "A.GIT", "a.lock", "a.", "a b", "ä",
            "a\0", &id,
        ] {
            assert!(bad.parse::<RepositoryName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn branches_are_what_git_allows_and_no_option() {
        for good in ["main", "task-1", "feature/ä", "v1.0", "a/b/c", "a@b"] {
            assert!(good.parse::<BranchName>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "-x",
            "--upload-pack=x",
            "a..b",
            "../a",
            "a/../b",
            ".a",
            "a/.b",
            "a.lock",
            "a.lock/b",
            "a/",
            "/a",
            "a//b",
            "a b",
            "a\tb",
            "a\nb",
            "a~1",
            "a^",
            "a:b",
            "a?",
            "a*",
            "a[",
            "a\\b",
            "a@{1}",
            "@",
            "HEAD",
            "a.",
            "a\u{202e}b",
            &"x".repeat(201),
        ] {
            assert!(bad.parse::<BranchName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn words_read_back() {
        for method in [MergeMethod::Merge, MergeMethod::Squash, MergeMethod::Rebase] {
            assert_eq!(method.as_str().parse(), Ok(method));
            assert_eq!(serde_json::to_value(method).unwrap(), method.as_str());
        }
        let why = "x".parse::<PullState>().unwrap_err().to_string();
        assert!(why.contains("`open`"), "{why}");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = (text.parse::<RepositoryName>(), text.parse::<BranchName>(), text.parse::<CommitId>());
        }
    }
}
