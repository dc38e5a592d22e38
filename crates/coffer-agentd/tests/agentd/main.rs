//! agentd as its clients use it: the built binary, over its socket.
#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests may spawn, sleep and poison locks"
)]

mod control;
mod files;
mod process;
mod resume;
mod support;
mod unpack;
mod watch;
