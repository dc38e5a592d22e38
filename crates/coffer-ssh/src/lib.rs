//! The server's side of SSH (RFC 4250 to 4254) on one stream: the pipe between `ssh` and its `ProxyCommand`.
//!
//! [`serve`] greets the client, lets in the one key that it is given, and calls a [`Host`] for each session and forwarded
//! connection with a [`Channel`]: bytes both ways within SSH's windows, sizes of the terminal, signals, an exit status.
//!
//! One algorithm for each purpose, all of them from `ring` and all in OpenSSH since 2014: Curve25519, Ed25519,
//! ChaCha20-Poly1305. The stream never leaves the machine, so there is nothing to negotiate for. A client that has none
//! of them gets an error with their names. `docs/design/0022-ssh.md` says why this is not a crate of others.
//!
//! What the client sends is bounded: packets, windows, channels, names and variables.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

mod auth;
mod channel;
mod connection;
mod error;
mod exchange;
mod keys;
mod message;
mod packet;
mod session;
mod text;

pub use channel::{Channel, End, Event, Gone, Stream};
pub use connection::{Host, Start, Target, Terminal, Tunnel, serve};
pub use error::Error;
pub use keys::{KeyError, KeyPair, PublicKey};
