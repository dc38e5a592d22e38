//! Sandboxes: each has one task that owns it; all other code holds a [`Handle`](crate::registry::Handle) and
//! sends requests.
//!
//! [`life`] has the states, their diagram, and what each request means in each.
//!
//! From the bottom up: [`prepare`] has what every start needs, [`provision`] chooses a sandbox's resources,
//! [`boot`] and [`restore`] start one, [`start`] chooses between them, [`create`] and [`claim`] create new
//! ones. [`owner`] holds the state of one sandbox, the files with an `impl Owner` change it, and [`task`]
//! calls them for each request in turn.

mod boot;
mod claim;
mod clearing;
mod create;
mod end;
mod freeze;
mod hibernation;
mod keeper;
mod life;
mod live_snapshot;
mod meter;
mod owner;
mod policy;
mod prepare;
mod provision;
mod rehearsal;
mod relisten;
mod remains;
mod restart;
mod restore;
mod rollback;
mod snapshot;
mod start;
mod task;

pub(crate) use clearing::{clear_processes, clear_run};
pub(crate) use keeper::{delete_snapshot, keep};
pub(crate) use meter::sample_all;
pub(crate) use owner::State;
pub(crate) use remains::{Record, Remains};
pub(crate) use task::{adopt, create};
