//! What an attempt at a task asks a person while it waits.
//!
//! ```text
//! the agent works ──► Budget, Interrupted ──► Raise, GoOn ──► the agent works
//!                                        └──► Finish, Unanswered ──► a draft pull request
//!                                        └──► Stop ──► a branch
//! ```

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

use crate::StepCode;

/// Why an attempt waits for a person.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Question {
    /// The budget of the task is spent.
    Budget,
    /// The budget of the project or of the sandbox is spent, which the task cannot raise.
    OtherBudget,
    /// A person stopped the agent's turn.
    Interrupted,
}

/// What a person answers.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Answer {
    /// The task gets another budget, and the agent goes on.
    Raise,
    /// The agent goes on, with what was said meanwhile.
    GoOn,
    /// What is there becomes a draft of a pull request.
    Finish,
    /// What is there is pushed to the branch, and the attempt ends.
    Stop,
    /// Nobody answered in time: as if to finish.
    Unanswered,
}

names!(Question, Answer);

impl Question {
    /// The code that the task needs attention with.
    pub const fn attention(self) -> StepCode {
        match self {
            Self::Budget | Self::OtherBudget => StepCode::BudgetWanted,
            Self::Interrupted => StepCode::Interrupted,
        }
    }

    /// Whether a person can answer so.
    pub const fn takes(self, answer: Answer) -> bool {
        match answer {
            Answer::Raise => matches!(self, Self::Budget),
            Answer::GoOn => matches!(self, Self::OtherBudget | Self::Interrupted),
            Answer::Finish | Answer::Stop => true,
            Answer::Unanswered => false,
        }
    }

    /// The answers that a person can give.
    pub fn answers(self) -> impl Iterator<Item = Answer> {
        Answer::ALL.iter().copied().filter(move |answer| self.takes(*answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_question_can_be_answered_in_three_ways() {
        for question in Question::ALL {
            let answers: Vec<_> = question.answers().collect();
            assert_eq!(answers.len(), 3, "{question:?}");
            assert!(answers.ends_with(&[Answer::Finish, Answer::Stop]));
        }
    }
}
