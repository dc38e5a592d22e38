//! What tests of several crates share: fresh databases of both kinds. A dev-dependency only.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "tests fail where they stand, and this is a part of them")]

mod database;
mod postgres;

pub use database::TestDatabase;
