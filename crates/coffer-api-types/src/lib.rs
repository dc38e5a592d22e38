//! The shapes of our own API (`/api/v1`): requests, responses and query strings, one module per subject.
//!
//! The server, clients, tests and the UI's generated types share them. They hold data and no rules: the server checks
//! requests and fills in responses. Every shape can be written and read. Requests refuse unknown fields, so that a typo
//! is an error; responses ignore them, so that an old client reads a new server.
#![forbid(unsafe_code)]

pub mod audit;
pub mod budgets;
mod error;
pub mod events;
pub mod host;
pub mod keys;
pub mod page;
pub mod projects;
pub mod queue;
pub mod session;
pub mod templates;
pub mod usage;

pub use error::ErrorShape;
pub use events::Event;
pub use page::{Page, PageQuery};
