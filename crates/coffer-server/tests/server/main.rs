//! The server over HTTP, with a fake engine and a real store: all of it on SQLite, and once more on PostgreSQL.
//!
//! `COFFER_TEST_DATABASE=postgres` chooses one for a single test.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands, helpers included")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests may spawn, sleep and poison locks"
)]

mod agent_setup;
mod agentd;
mod agents;
mod app;
mod artifacts;
mod audit;
mod breaker;
mod bundles;
mod catalogue;
mod code;
mod competitions;
mod deadlines;
mod e2b;
mod e2b_secrets;
mod engine;
mod errors;
mod events;
mod forge;
mod forks;
mod hostile;
mod inside;
mod issues;
mod kinds;
mod lfs;
mod lifecycle;
mod limits;
mod listing;
mod log_search;
mod mcp;
mod models;
mod network;
mod origin;
mod output;
mod packs;
mod peers;
mod policy;
mod races;
mod reconcile;
mod refusals;
mod reviews;
mod rollback;
mod schedules;
mod search;
mod secrets;
mod sessions;
mod shares;
mod sizes;
mod snapshots;
mod sockets;
mod standstill;
mod starting;
mod storage;
mod tasks;
mod template_builds;
mod templates;
mod tenancy;
mod traces;
mod transcripts;
mod triggers;
mod usage;
mod volumes;
mod watching;
mod webhooks;

#[test]
fn on_postgres() {
    coffer_testkit::TestDatabase::run_suite_on_postgres("on_postgres");
}
