//! Calls of models: grants to make them, their reservations and records, and projects' rules for them.
//!
//! What a call can cost at most is reserved before it is sent, under the lock of the project's row, and settled
//! with the real figure when it has ended. So concurrent calls cannot pass a limit together, and a call whose
//! server died is settled with what was reserved.

mod calls;
mod grants;
mod policy;
mod reserve;
mod settle;

pub use calls::{ModelBodies, ModelCallFilter, ModelCallRow};
pub use grants::{GrantRow, GrantTotals, ModelKey, NewGrant};
pub use policy::VersionedModelPolicy;
pub use reserve::{ModelLimit, NewCall, Periods, Reserved, Worth};
pub use settle::{CallOutcome, Settled};
