//! The codes with which runs, their steps and the entries of competitions fail.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use strum::{EnumString, IntoStaticStr, VariantArray};

use crate::Code;

/// Why a run or a step failed, or why a person must look at a task. `docs/tasks.md` says what helps.
///
/// A closed list that only grows: codes are stored, and clients decide by them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum StepCode {
    /// The agent ended with an error or ran out of time.
    AgentFailed,
    /// The agent has no definition, or one that is sealed or cannot be run.
    AgentUndefined,
    /// No entry of the competition has anything that could win.
    AllFailed,
    /// The run's code named a step wrongly.
    BadStep,
    /// The branch's name is not one.
    Branch,
    /// The branch has moved between commit and push.
    BranchMoved,
    /// A person or another attempt cancelled the run.
    Cancelled,
    /// The check command failed, or a check of the pull request.
    CheckFailed,
    /// The commit at which work began is not known.
    Commit,
    /// The competition or its entry was deleted.
    CompetitionGone,
    /// The failure left nothing on record.
    Failed,
    /// A sandbox could not be forked for an entry.
    ForkFailed,
    /// The run's input cannot be read.
    InputUnreadable,
    /// What a step left in the journal cannot be read.
    JournalUnreadable,
    /// What a step returned cannot be written to the journal.
    JournalUnwritable,
    /// Another server has the run.
    Lost,
    /// The network settings of the new sandbox are not allowed.
    Network,
    /// The task has no agent, or it was removed.
    NoAgent,
    /// The agent ended without changing anything.
    NoChanges,
    /// The task or the competition has no repository.
    NoRepository,
    /// There is no room for a sandbox, and may be later: everything stays as it is.
    NoRoom,
    /// The winner has nothing to publish.
    NoWinner,
    /// A program did not start in the sandbox.
    NotStarted,
    /// A step returned more than a journal takes.
    OutputTooLarge,
    /// The run's code panicked.
    Panicked,
    /// The command that prepares the sandbox of a competition failed.
    PrepareFailed,
    /// The pull request was closed without being merged.
    PullClosed,
    /// The sandbox ended before the work in it was done.
    SandboxLost,
    /// Servers ended again and again at the same step.
    ServerDied,
    /// A program that was started earlier still runs.
    StillRunning,
    /// The database failed.
    Store,
    /// The task was deleted.
    TaskGone,
    /// The template's name is not one.
    Template,
    /// A step took too long.
    TimedOut,
    /// The run has more steps than it may.
    TooManySteps,
    /// No person picked a winner in time.
    Undecided,
    /// Something was said just as the attempt ended.
    UnheardMessages,
    /// The repository has no such base branch.
    UnknownBase,
    /// There is no such repository.
    UnknownRepository,
}

names!(StepCode);

/// The code of a failure: of its own kind, or of the refusal of a request that a step made.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum FailureCode {
    Step(StepCode),
    Refused(Code),
    /// Written by another version of this program.
    Unknown(String),
}

impl FailureCode {
    /// Reads a code as stored. Every text is one: a row of another version stays readable.
    pub fn read(text: &str) -> Self {
        match (StepCode::parse(text), text.parse()) {
            (Some(code), _) => Self::Step(code),
            (None, Ok(code)) => Self::Refused(code),
            (None, Err(_)) => Self::Unknown(text.to_string()),
        }
    }

    /// The code, as stored and shown.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Step(code) => code.as_str(),
            Self::Refused(code) => code.as_str(),
            Self::Unknown(text) => text,
        }
    }
}

impl From<StepCode> for FailureCode {
    fn from(code: StepCode) -> Self {
        Self::Step(code)
    }
}

impl From<Code> for FailureCode {
    fn from(code: Code) -> Self {
        Self::Refused(code)
    }
}

impl PartialEq<StepCode> for FailureCode {
    fn eq(&self, code: &StepCode) -> bool {
        matches!(self, Self::Step(own) if own == code)
    }
}

impl PartialEq<Code> for FailureCode {
    fn eq(&self, code: &Code) -> bool {
        matches!(self, Self::Refused(own) if own == code)
    }
}

impl fmt::Display for FailureCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for FailureCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for FailureCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self::read(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_read_as_it_is_written() {
        let steps = StepCode::ALL.iter().map(|code| FailureCode::from(*code));
        let refusals = Code::ALL.iter().map(|code| FailureCode::from(*code));
        let unknown = ["", "of_another_version"].map(|text| FailureCode::Unknown(text.into()));
        for code in steps.chain(refusals).chain(unknown) {
            let text = serde_json::to_value(&code).unwrap();
            assert_eq!(text, code.as_str());
            assert_eq!(serde_json::from_value::<FailureCode>(text).unwrap(), code, "two codes have one name");
        }
    }

    #[test]
    fn stored_codes_keep_their_text() {
        // Rows of earlier versions have these, and clients decide by them.
        let known = [
            "agent_failed",
            "agent_undefined",
            "all_failed",
            "bad_step",
            "branch",
            "branch_moved",
            "cancelled",
            "check_failed",
            "commit",
            "competition_gone",
            "failed",
            "fork_failed",
            "input_unreadable",
            "journal_unreadable",
            "journal_unwritable",
            "lost",
            "network",
            "no_agent",
            "no_changes",
            "no_repository",
            "no_room",
            "no_winner",
            "not_started",
            "output_too_large",
            "panicked",
            "prepare_failed",
            "pull_closed",
            "sandbox_lost",
            "server_died",
            "still_running",
            "store",
            "task_gone",
            "template",
            "timed_out",
            "too_many_steps",
            "undecided",
            "unheard_messages",
            "unknown_base",
            "unknown_repository",
        ];
        assert_eq!(StepCode::ALL.iter().map(|code| code.as_str()).collect::<Vec<_>>(), known);
    }
}
