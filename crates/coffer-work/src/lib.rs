//! Agents' work, without HTTP: git in sandboxes, tasks and competitions, followers of events, artifacts.
//!
//! [`git`] clones, commits and pushes in sandboxes; [`workshop`] has the steps of an attempt at a task and of
//! a competition, which `coffer-flow` executes in order. [`reviews`] and [`results`] follow the event log,
//! [`webhooks`] sends it to receivers, [`artifacts`] stores files.
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
pub mod issues;
pub mod models;
pub mod results;
pub mod reviews;
pub mod schedules;
mod spans;
pub mod tasks;
pub mod triggers;
pub mod webhooks;
pub mod workshop;
