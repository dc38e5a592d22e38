//! The life of a delivery of an event to a webhook.
//!
//! ```text
//!  a try fails
//!    ┌───┐      taken
//!    │   ▼ ────────────► Delivered
//!   Waiting ◄── redeliver ──┤
//!        └─────────────► Failed
//!          given up
//! ```

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

use crate::life::{Life, Refused};

/// The state of a delivery.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum DeliveryState {
    Waiting,
    Delivered,
    Failed,
}

names!(DeliveryState);

/// A cause of a state change of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryCause {
    /// The receiver accepted it.
    Delivered,
    /// A try failed, and another follows.
    TryFailed,
    /// The last try failed, the receiver is gone, or the webhook was disabled.
    GivenUp,
    /// A person requests it again.
    Redelivered,
}

impl Life for DeliveryState {
    type Cause = DeliveryCause;

    const WHAT: &'static str = "delivery";
    const STATES: &'static [Self] = Self::ALL;
    const CAUSES: &'static [DeliveryCause] = &[
        DeliveryCause::Delivered,
        DeliveryCause::TryFailed,
        DeliveryCause::GivenUp,
        DeliveryCause::Redelivered,
    ];

    fn after(self, cause: DeliveryCause) -> Result<Self, Refused> {
        match (self, cause) {
            (_, DeliveryCause::Redelivered) | (Self::Waiting, DeliveryCause::TryFailed) => Ok(Self::Waiting),
            (Self::Waiting, DeliveryCause::Delivered) => Ok(Self::Delivered),
            (Self::Waiting, DeliveryCause::GivenUp) => Ok(Self::Failed),
            (Self::Delivered | Self::Failed, DeliveryCause::Delivered) => self.refuse("be delivered"),
            (Self::Delivered | Self::Failed, DeliveryCause::TryFailed | DeliveryCause::GivenUp) => {
                self.refuse("fail")
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
    fn a_delivery_reaches_every_state_and_every_end_can_be_sent_again() {
        laws::every_state_is_reached::<DeliveryState>();
        laws::what_is_over_stays(|_: DeliveryState| false);
        laws::a_cause_told_twice_changes_nothing::<DeliveryState>();
    }

    #[test]
    fn only_a_person_sends_again_what_has_ended() {
        for state in [DeliveryState::Delivered, DeliveryState::Failed] {
            for cause in DeliveryState::CAUSES.iter().filter(|cause| **cause != DeliveryCause::Redelivered) {
                assert!(state.after(*cause).is_err(), "{state:?} {cause:?}");
            }
        }
    }
}
