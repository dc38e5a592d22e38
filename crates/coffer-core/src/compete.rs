//! Competitions: several agents do the same in forks of one sandbox, and one of them wins.

mod patch;
mod rank;

use serde::{Deserialize, Serialize};

pub use patch::{FilePatch, files_of};
pub use rank::{Contender, DiffSize, Placing, best, rank};

/// How a competition stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompetitionState {
    /// Waits for a slot.
    Queued,
    /// What all begin with is made, once, and forked.
    Preparing,
    /// Agents are at work, or their work is checked.
    Working,
    Judging,
    /// A person is to pick the winner.
    Waiting,
    /// The winner's branch is pushed and its pull request opened.
    Publishing,
    Decided,
    Failed,
    Cancelled,
}

impl CompetitionState {
    pub const ALL: [Self; 9] = [
        Self::Queued,
        Self::Preparing,
        Self::Working,
        Self::Judging,
        Self::Waiting,
        Self::Publishing,
        Self::Decided,
        Self::Failed,
        Self::Cancelled,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Preparing => "preparing",
            Self::Working => "working",
            Self::Judging => "judging",
            Self::Waiting => "waiting",
            Self::Publishing => "publishing",
            Self::Decided => "decided",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The state of that name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }

    /// Whether nothing will happen to it any more.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Decided | Self::Failed | Self::Cancelled)
    }
}

/// How one of those who compete stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryState {
    Queued,
    /// It has a sandbox.
    Forked,
    Working,
    Checking,
    /// Its work is committed and checked; whether the checks passed is another question.
    Done,
    Failed,
    Cancelled,
}

impl EntryState {
    pub const ALL: [Self; 7] = [
        Self::Queued,
        Self::Forked,
        Self::Working,
        Self::Checking,
        Self::Done,
        Self::Failed,
        Self::Cancelled,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Forked => "forked",
            Self::Working => "working",
            Self::Checking => "checking",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The state of that name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }

    /// Whether its agent is through, one way or the other.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled)
    }
}

/// How the winner is found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// A person picks.
    #[default]
    Manual,
    /// The first by rank whose checks passed; a person picks where none did.
    Best,
}

impl Rule {
    pub const ALL: [Self; 2] = [Self::Manual, Self::Best];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Manual => "manual",
            Self::Best => "best",
        }
    }

    /// The rule of that name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| rule.as_str() == text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_and_rules_are_read_as_they_are_written() {
        for state in CompetitionState::ALL {
            assert_eq!(CompetitionState::parse(state.as_str()), Some(state));
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
        for state in EntryState::ALL {
            assert_eq!(EntryState::parse(state.as_str()), Some(state));
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
        for rule in Rule::ALL {
            assert_eq!(Rule::parse(rule.as_str()), Some(rule));
            assert_eq!(serde_json::to_value(rule).unwrap(), rule.as_str());
        }
    }
}
