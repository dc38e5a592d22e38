//! Shared test code of several crates. A dev-dependency only.
//!
//! - [`TestDatabase`]: a fresh database of either kind.
//! - [`engine`]: an engine without a kernel; [`agentd`], [`guest`] and [`interpreter`] are what answers in its sandboxes.
//! - [`github`]: a GitHub that holds every request to the published description and has real git behind it.
//! - [`engine_contract`]: what every engine has to do, as tests that run on any.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "tests fail where they stand, and this is a part of them")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests may spawn, sleep and poison locks"
)]

pub mod agentd;
mod database;
pub mod engine;
pub mod engine_contract;
pub mod github;
pub mod guest;
pub mod interpreter;
mod postgres;

pub use database::TestDatabase;
