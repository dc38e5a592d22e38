//! The port: accepts connections, tells sandbox traffic from the API, and carries traffic to sandboxes.
//!
//! The proxy asks a [`Directory`] where traffic for a sandbox goes and a [`Gate`] which commands may be
//! started; of projects it knows only which project's share traffic counts against, and nothing of states or
//! the engine. What a request may do to its client's connection is in [`Client`], which the port puts into
//! every request's extensions.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

mod connection;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod port;
mod proxy;
mod secure;
mod trusted;

pub use connection::{Client, Seats};
pub use port::{Attribution, Entrances, Front, Secure, serve};
pub use proxy::{
    Directory, Gate, Guard, KEY_PROTOCOL, PLAIN_COOKIE, Proxy, SECURE_COOKIE, SESSION_HEADER,
    SESSION_PROTOCOL, allow_preflight,
};
pub use secure::{BadCertificate, Certificate, CertificateText, Certificates};
pub use trusted::TrustedProxies;
