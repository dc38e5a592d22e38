//! Enums of recorded things: executions, artifacts, budgets.

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

/// The origin of an execution.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", const_into_str)]
pub enum ExecutionSource {
    /// A client of the sandbox itself, such as E2B's SDKs.
    E2b,
    /// Our own API.
    Api,
}

/// The state of an execution.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum ExecutionState {
    Running,
    /// It ended with a known result.
    Exited,
    /// It never started.
    Failed,
    /// Its sandbox ended before its result was known.
    Lost,
}

/// The kind of an artifact.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum ArtifactKind {
    File,
    Diff,
    Link,
    Report,
    Finding,
    Log,
}

/// The period of a budget.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum BudgetPeriod {
    /// Each day, in UTC.
    Day,
    /// Each month, in UTC.
    Month,
    /// All time.
    Total,
}

/// The action on running sandboxes when a budget is spent.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum BudgetAction {
    Pause,
    End,
}

names!(ExecutionSource, ExecutionState, ArtifactKind, BudgetPeriod, BudgetAction);
