//! The store on both of its databases: each body runs on SQLite and on a PostgreSQL that the tests start.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests may spawn, sleep and poison locks"
)]

mod agents;
mod artifacts;
mod databases;
mod durability;
mod executions;
mod fixtures;
mod git;
mod idempotency;
mod issues;
mod keys;
mod limits;
mod lists;
mod lives;
mod models;
mod opening;
mod policy;
mod projects;
mod reviews;
mod runs;
mod schedules;
mod scopes;
mod search;
mod secrets;
mod snapshots;
mod storage;
mod tasks;
mod templates;
mod transcripts;
mod transitions;
mod usage;
mod volumes;
mod webhooks;
mod writers;
