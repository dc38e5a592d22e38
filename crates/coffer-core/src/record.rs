//! Names for what is on record: executions, artifacts, budgets.

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

/// Who started an execution.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", const_into_str)]
pub enum ExecutionSource {
    /// A client of the sandbox itself, as E2B's SDKs are.
    E2b,
    /// Our own API.
    Api,
}

/// Where an execution is.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum ExecutionState {
    Running,
    /// It ended, and how is known.
    Exited,
    /// It never started.
    Failed,
    /// Its sandbox ended with it, or before its end was heard of.
    Lost,
}

/// What an artifact is.
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

/// What a budget is for.
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

/// What is done to running sandboxes when a budget is spent.
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
