//! Competitions: several agents do the same work in forks of one sandbox, and one wins.
//!
//! ```text
//!         start            fork            all are done         a person decides
//! Queued ───────► Preparing ───► Working ──────────────► Judging ◄─────────────► Waiting
//!                                                           │ the rule decides      │ pick
//!   any of these: the run fails or is cancelled             ▼                       │
//!   └──────► Failed · Cancelled            Decided ◄──── Publishing ◄───────────────┘
//! ```

mod patch;
mod rank;

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

use crate::SandboxId;
use crate::life::{Life, Refused};

pub use patch::{FilePatch, files_of};
pub use rank::{Contender, DiffSize, Placing, best, rank};

/// The state of a competition.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum CompetitionState {
    /// Waits for a slot.
    Queued,
    /// The common sandbox is created, prepared and forked.
    Preparing,
    /// Agents work, or their work is checked.
    Working,
    Judging,
    /// Waits for a person to pick the winner.
    Waiting,
    /// The winner's branch is pushed and its pull request opened.
    Publishing,
    Decided,
    Failed,
    Cancelled,
}

impl CompetitionState {
    /// Whether it can no longer change.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Decided | Self::Failed | Self::Cancelled)
    }
}

/// The state of an entry.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum EntryState {
    Queued,
    /// It has a sandbox.
    Forked,
    Working,
    Checking,
    /// Its work is committed and checked; the checks may have failed.
    Done,
    Failed,
    Cancelled,
}

impl EntryState {
    /// Whether its agent has ended.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled)
    }
}

/// How the winner is chosen.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    EnumString,
    IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Rule {
    /// A person picks.
    #[default]
    Manual,
    /// The first by rank whose checks passed; a person picks if none did.
    Best,
}

names!(CompetitionState, EntryState, Rule);

/// What a competition is about and how it is decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompetitionTerms {
    pub title: String,
    pub prompt: String,
    pub repository: Option<String>,
    /// A sandbox that others prepared: it is forked and otherwise left alone.
    pub source: Option<SandboxId>,
    pub base_branch: Option<String>,
    pub template: Option<String>,
    pub prepare_command: Option<String>,
    pub check_command: Option<String>,
    pub rule: Rule,
    pub budget_nanos: Option<i64>,
    pub decide_within_s: i64,
    pub context_id: Option<String>,
}

/// A cause of a state change of a competition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompetitionCause {
    /// Its run begins.
    Started,
    /// The agents start, or a server continues them.
    Works,
    /// The entries are being ranked; also when the time to pick is over.
    Judges,
    /// A person is asked to pick.
    Asks,
    /// A person picks the winner.
    Picked,
    /// The winner, chosen by the rule or a person, is being published.
    Publishes,
    Ended(CompetitionOutcome),
}

/// How a competition ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompetitionOutcome {
    Decided,
    Failed,
    Cancelled,
}

impl CompetitionCause {
    /// The cause by which the run of a competition enters `state`; `None` for the first state.
    pub const fn of(state: CompetitionState) -> Option<Self> {
        Some(match state {
            CompetitionState::Queued => return None,
            CompetitionState::Preparing => Self::Started,
            CompetitionState::Working => Self::Works,
            CompetitionState::Judging => Self::Judges,
            CompetitionState::Waiting => Self::Asks,
            CompetitionState::Publishing => Self::Publishes,
            CompetitionState::Decided => Self::Ended(CompetitionOutcome::Decided),
            CompetitionState::Failed => Self::Ended(CompetitionOutcome::Failed),
            CompetitionState::Cancelled => Self::Ended(CompetitionOutcome::Cancelled),
        })
    }
}

impl Life for CompetitionState {
    type Cause = CompetitionCause;

    const WHAT: &'static str = "competition";
    const STATES: &'static [Self] = Self::ALL;
    const CAUSES: &'static [CompetitionCause] = &[
        CompetitionCause::Started,
        CompetitionCause::Works,
        CompetitionCause::Judges,
        CompetitionCause::Asks,
        CompetitionCause::Picked,
        CompetitionCause::Publishes,
        CompetitionCause::Ended(CompetitionOutcome::Decided),
        CompetitionCause::Ended(CompetitionOutcome::Failed),
        CompetitionCause::Ended(CompetitionOutcome::Cancelled),
    ];

    /// A step that runs again after a crash reports its state again, so every cause from the run is also
    /// allowed in the state that it leads to.
    fn after(self, cause: CompetitionCause) -> Result<Self, Refused> {
        use CompetitionCause as Cause;
        match (self, cause) {
            (Self::Queued, Cause::Started) => Ok(Self::Preparing),
            (Self::Preparing | Self::Working, Cause::Works) => Ok(Self::Working),
            (Self::Working | Self::Judging | Self::Waiting, Cause::Judges) => Ok(Self::Judging),
            (Self::Judging | Self::Waiting, Cause::Asks) => Ok(Self::Waiting),
            (Self::Waiting, Cause::Picked) | (Self::Judging | Self::Publishing, Cause::Publishes) => {
                Ok(Self::Publishing)
            }
            (state, Cause::Ended(outcome)) if !state.is_over() => Ok(match outcome {
                CompetitionOutcome::Decided => Self::Decided,
                CompetitionOutcome::Failed => Self::Failed,
                CompetitionOutcome::Cancelled => Self::Cancelled,
            }),
            (_, Cause::Started) => self.refuse("be started"),
            (_, Cause::Works) => self.refuse("start its entries"),
            (_, Cause::Judges) => self.refuse("be judged"),
            (_, Cause::Asks) => self.refuse("wait for a person"),
            (_, Cause::Picked) => self.refuse("have a winner picked"),
            (_, Cause::Publishes) => self.refuse("be published"),
            (_, Cause::Ended(_)) => self.refuse("end"),
        }
    }

    fn name(self) -> &'static str {
        self.as_str()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::life::laws;

    #[test]
    fn states_and_rules_are_read_as_they_are_written() {
        for &state in CompetitionState::ALL {
            assert_eq!(CompetitionState::parse(state.as_str()), Some(state));
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
        for &state in EntryState::ALL {
            assert_eq!(EntryState::parse(state.as_str()), Some(state));
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
        for &rule in Rule::ALL {
            assert_eq!(Rule::parse(rule.as_str()), Some(rule));
            assert_eq!(serde_json::to_value(rule).unwrap(), rule.as_str());
        }
    }

    #[test]
    fn a_competition_reaches_every_state_and_ends_once() {
        laws::every_state_is_reached::<CompetitionState>();
        laws::what_is_over_stays(CompetitionState::is_over);
        laws::a_cause_told_twice_changes_nothing::<CompetitionState>();
    }

    #[test]
    fn a_run_enters_a_state_by_its_own_cause_and_no_other() {
        let of_the_run = |cause: &&CompetitionCause| **cause != CompetitionCause::Picked;
        for state in CompetitionState::ALL {
            for cause in CompetitionState::CAUSES.iter().filter(of_the_run) {
                if let Ok(next) = state.after(*cause) {
                    assert_eq!(CompetitionCause::of(next), Some(*cause), "{state:?}");
                }
            }
        }
    }

    #[test]
    fn a_person_picks_while_asked_and_only_what_has_a_winner_is_published() {
        let asked: Vec<_> = CompetitionState::allowing(CompetitionCause::Picked).collect();
        assert_eq!(asked, [CompetitionState::Waiting]);
        let won: Vec<_> = CompetitionState::allowing(CompetitionCause::Publishes).collect();
        assert_eq!(won, [CompetitionState::Judging, CompetitionState::Publishing]);
    }
}
