//! Names: what a sandbox may ask, and how its questions are answered.

mod cache;
mod message;
mod resolver;
mod responder;

pub(crate) use cache::Cache;
pub use message::Family;
pub use resolver::{Found, LookupError, Resolver, Upstream, nameservers};
pub(crate) use responder::{serve_tcp, serve_udp};
