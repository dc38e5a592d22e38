//! The client of registries, against a real one and against fakes that do what a real one does not.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands, helpers included")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests may spawn, sleep and poison locks"
)]

mod blobs;
mod errors;
mod fake;
mod fixture;
mod mirrors;
mod real;
mod walls;
