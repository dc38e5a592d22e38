//! Durable runs and their steps.

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

/// Of an error message, what is kept.
const LONGEST_MESSAGE: usize = 4096;

/// How a run stands.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum RunState {
    /// Waits for a slot.
    Queued,
    /// Has begun; a runner acts for it, or will soon.
    Running,
    /// Waits for a time or a signal.
    Parked,
    Done,
    Failed,
    Cancelled,
    /// Every runner that takes it up dies: a person must look.
    Stuck,
}

impl RunState {
    /// Whether nothing will happen to it any more.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled | Self::Stuck)
    }
}

/// How a step stands.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum StepState {
    UnderWay,
    Done,
    Failed,
    Undone,
    UndoFailed,
}

/// Why what a run did is being undone.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Unwinding {
    Cancelled,
    Failed,
}

names!(RunState, StepState, Unwinding);

/// Why a run, or one try of a step, failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFailure {
    /// For programs.
    pub code: String,
    /// For people.
    pub message: String,
    /// The step that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// Steps whose undo failed too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_undone: Vec<String>,
}

impl RunFailure {
    /// A failure with its message cut to what is kept. NUL is replaced: PostgreSQL has none in a text.
    pub fn new(code: impl Into<String>, message: impl AsRef<str>) -> Self {
        let message = message.as_ref();
        let message = message[..message.floor_char_boundary(LONGEST_MESSAGE)].replace('\0', "\u{fffd}");
        Self { code: code.into(), message, step: None, not_undone: Vec::new() }
    }
}
