//! The only way out of a sandbox.
//!
//! A sandbox's network namespace has no link to anywhere. The node redirects all of its connections to
//! listeners that it opened inside and passed to egress, with a policy. Egress dials for the sandbox what the
//! policy allows, answers its DNS questions, counts bytes, and records what it refused and why.
//!
//! Egress runs without privilege and has no state that matters: after a crash the node passes the same
//! listeners to the next egress. `docs/design/0002-egress.md` has the whole picture.
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
pub mod control;
mod dns;
mod egress;
mod forbidden;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod gate;
mod inject;
mod mirror;
mod refusal;
mod relay;
mod sandbox;
mod settings;
pub mod sniff;
mod socket;
mod socks;

pub use dns::{Family, Found, LookupError, Resolver, Upstream, nameservers};
pub use egress::{Descriptors, Egress, Listeners, NoSuchSandbox, NotAdded, Seams};
pub use inject::{Authority, AuthorityText, BadAuthority};
pub use settings::Settings;
pub use socket::{Dialer, HostDialer, OriginalDestination, Redirected};
