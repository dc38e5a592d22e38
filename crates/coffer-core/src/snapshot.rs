//! The life of a snapshot.
//!
//! ```text
//!           finish           delete
//! Creating ────────► Ready ─────────► Deleting ─► (not on record)
//!    └──────────── delete ───────────────▲
//! ```

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

use crate::life::{Life, Refused};

/// The state of a snapshot.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum SnapshotState {
    Creating,
    Ready,
    Deleting,
}

names!(SnapshotState);

/// What a snapshot is for.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    EnumString,
    IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum SnapshotPurpose {
    /// A client's use.
    #[default]
    Use,
    /// The result of a step of a build. Lists leave it out.
    Layer,
    /// The files of a template. Lists leave it out.
    Template,
}

names!(SnapshotPurpose);

/// A cause of a state change of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotCause {
    /// The host has it completely.
    Finished,
    /// It is to be deleted.
    DeletionBegan,
}

impl Life for SnapshotState {
    type Cause = SnapshotCause;

    const WHAT: &'static str = "snapshot";
    const STATES: &'static [Self] = Self::ALL;
    const CAUSES: &'static [SnapshotCause] = &[SnapshotCause::Finished, SnapshotCause::DeletionBegan];

    fn after(self, cause: SnapshotCause) -> Result<Self, Refused> {
        match (self, cause) {
            (Self::Creating, SnapshotCause::Finished) => Ok(Self::Ready),
            (_, SnapshotCause::DeletionBegan) => Ok(Self::Deleting),
            (Self::Ready | Self::Deleting, SnapshotCause::Finished) => self.refuse("be finished"),
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
    fn a_snapshot_reaches_every_state_and_is_not_saved_from_deletion() {
        laws::every_state_is_reached::<SnapshotState>();
        laws::what_is_over_stays(|state: SnapshotState| state == SnapshotState::Deleting);
        laws::a_cause_told_twice_changes_nothing::<SnapshotState>();
    }
}
