//! The server over HTTP, with a fake engine and a real SQLite store.

mod agentd;
mod app;
mod deadlines;
mod engine;
mod lifecycle;
mod listing;
mod races;
mod reconcile;
mod refusals;
mod watching;
