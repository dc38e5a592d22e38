//! The codes with which runs, their steps and the entries of competitions fail.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use strum::{EnumMessage, EnumString, IntoStaticStr, VariantArray};

use crate::Code;

/// Why a run or a step failed, or why a person must look at a task.
///
/// A closed list that only grows: codes are stored, and clients decide by them. The table in `docs/tasks.md` is
/// written from the doc comments and from the messages, which say what helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EnumMessage, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum StepCode {
    /// The agent ended with an error or ran out of time.
    #[strum(message = "read its output (`execution_id`), start again")]
    AgentFailed,
    /// The agent's program is not in its sandbox.
    #[strum(
        message = "give the agent a template that has it; the message names one, and the line that installs it"
    )]
    AgentMissing,
    /// The agent has no definition, or one that is sealed or cannot be run.
    #[strum(message = "write the agent's definition again, or correct what the message names")]
    AgentUndefined,
    /// No entry of the competition has anything that could win.
    #[strum(message = "read why each entry failed, then start a new competition")]
    AllFailed,
    /// The run's code named a step wrongly.
    #[strum(message = "a bug: report it with the server's log")]
    BadStep,
    /// The branch's name is not one.
    #[strum(message = "change the branch in the task or the competition")]
    Branch,
    /// The branch has moved between commit and push.
    #[strum(message = "start again: the next attempt continues from what is on the branch")]
    BranchMoved,
    /// A budget is spent: the agent has stopped, and the attempt waits for a person.
    #[strum(message = "raise the budget, finish or stop: `coffer task answer`")]
    BudgetWanted,
    /// A person or another attempt cancelled the run.
    #[strum(message = "nothing; start again if it was a mistake")]
    Cancelled,
    /// The check command failed, or a check of the pull request.
    #[strum(message = "look at the branch, write what is wrong, start again")]
    CheckFailed,
    /// The commit at which work began is not known.
    #[strum(message = "start again; the message has the value on record")]
    Commit,
    /// The competition or its entry was deleted.
    #[strum(message = "nothing: what was deleted is not continued")]
    CompetitionGone,
    /// The failure left nothing on record.
    #[strum(message = "read the server's log of that time, start again")]
    Failed,
    /// A sandbox could not be forked for an entry.
    #[strum(message = "as the message says; often there was no room for the fork")]
    ForkFailed,
    /// The run's input cannot be read.
    #[strum(message = "start again; a run of a newer version of the server needs that version")]
    InputUnreadable,
    /// A person interrupted the agent, and the attempt waits for what they say.
    #[strum(message = "send a message, or go on, finish or stop: `coffer task answer`")]
    Interrupted,
    /// What a step left in the journal cannot be read.
    #[strum(message = "start again; a run of a newer version of the server needs that version")]
    JournalUnreadable,
    /// What a step returned cannot be written to the journal.
    #[strum(message = "a bug: report it with the server's log")]
    JournalUnwritable,
    /// Another server has the run.
    #[strum(message = "nothing: the other server continues the run")]
    Lost,
    /// The provider of models refuses the agent's key.
    #[strum(message = "set the secret that the message names to a valid key, start again")]
    ModelKeyRefused,
    /// The provider of models is overloaded, limits the rate of calls, or does not answer.
    #[strum(message = "start again later; what the provider answered is in the task's transcript")]
    ModelUnavailable,
    /// The network settings of the new sandbox are not allowed.
    #[strum(message = "change the network settings as the message says")]
    Network,
    /// The task has no agent, or it was removed.
    #[strum(message = "give the task an agent, start again")]
    NoAgent,
    /// The agent ended without changing anything.
    #[strum(message = "add a message, start again")]
    NoChanges,
    /// The task or the competition has no repository.
    #[strum(message = "give it a repository, start again")]
    NoRepository,
    /// There is no room for a sandbox, and may be later: everything stays as it is.
    #[strum(message = "free room or ask for a larger quota, then start again")]
    NoRoom,
    /// The winner has nothing to publish.
    #[strum(message = "start a new competition")]
    NoWinner,
    /// A program did not start in the sandbox.
    #[strum(message = "use a template that has the program, or correct `command`")]
    NotStarted,
    /// A step returned more than a journal takes.
    #[strum(message = "a bug: report it with the server's log")]
    OutputTooLarge,
    /// The run's code panicked.
    #[strum(message = "a bug: report it with the server's log, then start again")]
    Panicked,
    /// The competition waits for a person who picks the winner.
    #[strum(message = "pick the winner")]
    PickWanted,
    /// The command that prepares the sandbox of a competition failed.
    #[strum(message = "read the command's output, correct it, start a new competition")]
    PrepareFailed,
    /// The pull request was closed without being merged.
    #[strum(message = "reopen the pull request, or start again for a new one")]
    PullClosed,
    /// The sandbox ended before the work in it was done.
    #[strum(
        message = "start again; its sandbox ran out of memory, was destroyed by hand or reached its longest lifetime"
    )]
    SandboxLost,
    /// Servers ended again and again at the same step.
    #[strum(message = "look at the step, then start again")]
    ServerDied,
    /// The set-up of the repository failed: `.coffer/setup.sh` or a `devcontainer.json`.
    #[strum(
        message = "read the end of its output in the transcript, correct the file on the base branch, start again"
    )]
    SetupFailed,
    /// A program that was started earlier still runs.
    #[strum(message = "wait, or end the program, then start again")]
    StillRunning,
    /// A person stopped the attempt; its work is on the branch.
    #[strum(message = "start again to continue from there")]
    Stopped,
    /// The database failed.
    #[strum(message = "an operator looks at the database; then start again")]
    Store,
    /// The task was deleted.
    #[strum(message = "nothing: what was deleted is not continued")]
    TaskGone,
    /// The template's name is not one.
    #[strum(message = "change the template in the agent's definition")]
    Template,
    /// The template of the agent could not be built.
    #[strum(message = "as the message says; `coffer template build NAME` shows the log, then start again")]
    TemplateFailed,
    /// A step took too long.
    #[strum(message = "as the message says; `step` says which step it was")]
    TimedOut,
    /// The run has more steps than it may.
    #[strum(message = "start again")]
    TooManySteps,
    /// No person picked a winner in time.
    #[strum(message = "start a new competition, and pick within its time")]
    Undecided,
    /// Something was said just as the attempt ended.
    #[strum(message = "start again")]
    UnheardMessages,
    /// The repository has no such base branch.
    #[strum(message = "change the base branch, start again")]
    UnknownBase,
    /// There is no such repository.
    #[strum(message = "change the repository, start again")]
    UnknownRepository,
}

names!(StepCode);

impl StepCode {
    /// One line for people.
    pub fn meaning(self) -> &'static str {
        self.get_documentation().unwrap_or_default()
    }

    /// What a person can do about it.
    pub fn remedy(self) -> &'static str {
        self.get_message().unwrap_or_default()
    }
}

/// The code of a failure: of its own kind, or of the refusal of a request that a step made.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum FailureCode {
    Step(StepCode),
    Refused(Code),
    /// Written by another version of this program.
    Unknown(String),
}

impl FailureCode {
    /// Reads a code as stored. Accepts every text, so that a row of another version stays readable.
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

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tasks.md");
    const BEGIN: &str =
        "<!-- codes: written by `COFFER_UPDATE=1 cargo test -p coffer-core --lib codes` -->\n";
    const END: &str = "<!-- end of codes -->";

    #[test]
    fn the_page_of_tasks_lists_all_codes_of_steps() {
        let row = |code: &StepCode| {
            let (meaning, remedy) = (code.meaning(), code.remedy());
            assert!(meaning.ends_with('.'), "{code:?} needs one sentence in its doc comment");
            assert!(!remedy.is_empty(), "{code:?} needs a message that says what helps");
            assert!(!format!("{meaning}{remedy}").contains('|'), "{code:?} would break the table");
            format!("| `{}` | {} | {remedy} |\n", code.as_str(), meaning.trim_end_matches('.'))
        };
        let rows: String = StepCode::ALL.iter().map(row).collect();
        let table = format!("\n| code | what happened | what helps |\n|---|---|---|\n{rows}\n");
        let page = std::fs::read_to_string(PAGE).unwrap();
        let (before, rest) = page.split_once(BEGIN).expect("the page marks where the list begins");
        let (_, after) = rest.split_once(END).expect("the page marks where the list ends");
        let expected = [before, BEGIN, &table, END, after].concat();
        if std::env::var_os("COFFER_UPDATE").is_some() {
            std::fs::write(PAGE, &expected).unwrap();
        }
        let page = std::fs::read_to_string(PAGE).unwrap();
        let stale = "docs/tasks.md is out of date: COFFER_UPDATE=1 cargo test -p coffer-core --lib codes";
        assert!(page == expected, "{stale}");
    }

    #[test]
    fn stored_codes_keep_their_text() {
        // Rows of earlier versions have these, and clients decide by them.
        let known = [
            "agent_failed",
            "agent_missing",
            "agent_undefined",
            "all_failed",
            "bad_step",
            "branch",
            "branch_moved",
            "budget_wanted",
            "cancelled",
            "check_failed",
            "commit",
            "competition_gone",
            "failed",
            "fork_failed",
            "input_unreadable",
            "interrupted",
            "journal_unreadable",
            "journal_unwritable",
            "lost",
            "model_key_refused",
            "model_unavailable",
            "network",
            "no_agent",
            "no_changes",
            "no_repository",
            "no_room",
            "no_winner",
            "not_started",
            "output_too_large",
            "panicked",
            "pick_wanted",
            "prepare_failed",
            "pull_closed",
            "sandbox_lost",
            "server_died",
            "setup_failed",
            "still_running",
            "stopped",
            "store",
            "task_gone",
            "template",
            "template_failed",
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
