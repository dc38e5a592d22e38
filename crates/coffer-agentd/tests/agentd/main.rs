//! agentd as its clients meet it: the built binary, over its socket.
#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

mod control;
mod files;
mod process;
mod resume;
mod support;
mod watch;
