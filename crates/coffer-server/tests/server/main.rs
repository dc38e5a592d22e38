//! The server over HTTP, with a fake engine and a real SQLite store.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands, helpers included")]

mod agentd;
mod app;
mod deadlines;
mod engine;
mod events;
mod hostile;
mod lifecycle;
mod listing;
mod network;
mod races;
mod reconcile;
mod refusals;
mod tenancy;
mod watching;
