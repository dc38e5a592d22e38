//! Tasks and their states.
//!
//! ```text
//!                       start              done             merge
//! Backlog · Todo · … ─────────► InProgress ─────► InReview ───────► Done
//!             ▲                  │  ▲   │
//!             └──── cancelled ───┘  └───┘ the attempt failed: a person must look
//! ```
//!
//! An attempt may begin, a person may move a task, and its pull request may be merged in every state; people
//! move unwanted tasks to `Cancelled`. Only the end of the current attempt depends on the state.

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

use crate::life::{Life, Refused};
use crate::{FailureCode, RepositoryId};

/// The column of the board that a task is in.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum TaskState {
    Backlog,
    Todo,
    InProgress,
    InReview,
    Done,
    Cancelled,
}

/// The issue that a task is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TaskIssue {
    /// The repository that has it.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub repository_id: RepositoryId,
    pub number: i64,
    /// Its page, or for a local one its path in the API.
    pub url: String,
    /// Who wrote it, as the forge names them.
    pub author: String,
    pub assignees: Vec<String>,
}

impl TaskIssue {
    /// What the open tasks of one issue have in common.
    pub fn key(&self) -> String {
        format!("{}#{}", self.repository_id, self.number)
    }
}

/// The priority of a task; the first is the most urgent.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    EnumString,
    IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Priority {
    Urgent,
    High,
    #[default]
    Medium,
    Low,
}

names!(TaskState, Priority);

impl Priority {
    /// Its order among others: lower comes first.
    pub const fn rank(self) -> i64 {
        match self {
            Self::Urgent => 0,
            Self::High => 1,
            Self::Medium => 2,
            Self::Low => 3,
        }
    }
}

/// Why a person must look at a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attention {
    /// The code of the failure, for programs.
    pub code: FailureCode,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

/// A cause of a state change of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskCause {
    /// A person moves it to a column, which is refused while an attempt is in progress.
    Moved(TaskState),
    /// An attempt begins.
    Started,
    /// The current attempt has ended.
    AttemptDone,
    AttemptCancelled,
    AttemptFailed,
    /// Its pull request was merged.
    Merged,
    Cancelled,
}

impl Life for TaskState {
    type Cause = TaskCause;

    const WHAT: &'static str = "task";
    const STATES: &'static [Self] = Self::ALL;
    const CAUSES: &'static [TaskCause] = &[
        TaskCause::Moved(Self::Backlog),
        TaskCause::Moved(Self::Todo),
        TaskCause::Moved(Self::InProgress),
        TaskCause::Moved(Self::InReview),
        TaskCause::Moved(Self::Done),
        TaskCause::Moved(Self::Cancelled),
        TaskCause::Started,
        TaskCause::AttemptDone,
        TaskCause::AttemptCancelled,
        TaskCause::AttemptFailed,
        TaskCause::Merged,
        TaskCause::Cancelled,
    ];

    fn after(self, cause: TaskCause) -> Result<Self, Refused> {
        match (self, cause) {
            (_, TaskCause::Moved(to)) => Ok(to),
            (_, TaskCause::Started) => Ok(Self::InProgress),
            (_, TaskCause::Merged) => Ok(Self::Done),
            (_, TaskCause::Cancelled) => Ok(Self::Cancelled),
            (Self::InProgress, TaskCause::AttemptDone) => Ok(Self::InReview),
            (Self::InProgress, TaskCause::AttemptCancelled) => Ok(Self::Todo),
            // It stays, and a person must look.
            (Self::InProgress, TaskCause::AttemptFailed) => Ok(Self::InProgress),
            (_, TaskCause::AttemptDone | TaskCause::AttemptCancelled | TaskCause::AttemptFailed) => {
                self.refuse("be moved by the end of an attempt")
            }
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
    fn a_task_reaches_every_column_and_leaves_every_one() {
        laws::every_state_is_reached::<TaskState>();
        laws::what_is_over_stays(|_: TaskState| false);
        laws::a_cause_told_twice_changes_nothing::<TaskState>();
    }

    #[test]
    fn the_end_of_an_attempt_moves_only_what_is_in_progress() {
        for cause in [TaskCause::AttemptDone, TaskCause::AttemptCancelled, TaskCause::AttemptFailed] {
            assert_eq!(TaskState::allowing(cause).collect::<Vec<_>>(), [TaskState::InProgress]);
        }
    }
}
