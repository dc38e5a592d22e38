//! DNS for sandboxes: which names they may ask for, and the answers.

mod cache;
mod message;
mod resolver;
mod responder;

pub(crate) use cache::Cache;
pub use message::Family;
#[cfg(any(test, fuzzing))]
pub use message::fuzz_dns;
pub use resolver::{Found, LookupError, Resolver, Upstream, nameservers};
pub(crate) use responder::{serve_tcp, serve_udp};
