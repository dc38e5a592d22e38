//! Work that agents do, without HTTP: git in sandboxes, tasks and competitions, what follows from events, what is kept.
//!
//! [`git`] clones, commits and pushes in sandboxes; [`workshop`] has the moves of an attempt at a task and of a
//! competition, which `coffer-flow` puts in order. [`reviews`] and [`results`] follow the event log, [`webhooks`] tells
//! others of it, [`artifacts`] keeps files.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

pub mod artifacts;
pub mod git;
pub mod results;
pub mod reviews;
pub mod tasks;
pub mod webhooks;
pub mod workshop;
