//! The shapes of our own API (`/api/v1`): what the server answers and what clients read.
//!
//! Nothing but serde and the API's description: the server, the command line, tests and the UI's generated types share
//! them.
#![forbid(unsafe_code)]

mod error;
mod event;

pub use error::ErrorShape;
pub use event::Event;
