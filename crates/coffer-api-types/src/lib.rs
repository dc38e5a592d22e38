//! The shapes of our own API (`/api/v1`): requests, responses and query strings, one module per subject.
//!
//! The server, clients, tests and the UI's generated types share them. They hold data and no rules: the server checks
//! requests and fills in responses. Every shape can be written and read. Requests refuse unknown fields, so that a typo
//! is an error; responses ignore them, so that an old client reads a new server.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

pub mod agents;
pub mod artifacts;
pub mod attempts;
pub mod audit;
pub mod budgets;
pub mod code;
pub mod competitions;
pub mod connections;
mod error;
pub mod events;
pub mod exec;
pub mod executions;
mod fields;
pub mod files;
pub mod forks;
pub mod git;
pub mod host;
pub mod keys;
pub mod limits;
pub mod logs;
pub mod models;
pub mod network;
pub mod page;
pub mod people;
pub mod policy;
pub mod projects;
pub mod pulls;
pub mod queue;
pub mod repositories;
pub mod sandboxes;
pub mod schedules;
pub mod search;
pub mod secrets;
pub mod session;
pub mod snapshots;
pub mod tasks;
pub mod templates;
pub mod transcripts;
pub mod usage;
pub mod volumes;
pub mod webhooks;

pub use error::ErrorShape;
pub use events::Event;
pub use page::{Page, PageQuery};
