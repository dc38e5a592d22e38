//! The life of a volume.
//!
//! ```text
//!           finish           delete
//! Creating ────────► Ready ─────────► Deleting ─► (not on record)
//!    └──────────── delete ───────────────▲
//! ```

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

use crate::life::{Life, Refused};

/// The state of a volume.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum VolumeState {
    /// Its host may not have it yet.
    Creating,
    Ready,
    /// Its host may have deleted it already.
    Deleting,
}

names!(VolumeState);

/// A cause of a state change of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeCause {
    /// The host has it.
    Finished,
    /// It is to be deleted.
    DeletionBegan,
}

impl Life for VolumeState {
    type Cause = VolumeCause;

    const WHAT: &'static str = "volume";
    const STATES: &'static [Self] = Self::ALL;
    const CAUSES: &'static [VolumeCause] = &[VolumeCause::Finished, VolumeCause::DeletionBegan];

    fn after(self, cause: VolumeCause) -> Result<Self, Refused> {
        match (self, cause) {
            (Self::Creating, VolumeCause::Finished) => Ok(Self::Ready),
            (_, VolumeCause::DeletionBegan) => Ok(Self::Deleting),
            (Self::Ready | Self::Deleting, VolumeCause::Finished) => self.refuse("be finished"),
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
    fn a_volume_reaches_every_state_and_is_not_saved_from_deletion() {
        laws::every_state_is_reached::<VolumeState>();
        laws::what_is_over_stays(|state: VolumeState| state == VolumeState::Deleting);
        laws::a_cause_told_twice_changes_nothing::<VolumeState>();
    }
}
