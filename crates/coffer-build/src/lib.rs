//! Builds templates: runs steps in a sandbox and keeps its snapshots.
//!
//! A template is a snapshot, and so is the result of every step ([design
//! 0016](../../../docs/design/0016-template-builds.md)). The cache of steps is also the journal of a build: one that
//! a crash interrupted begins again from its longest cached prefix.
//!
//! ```text
//! Builds ─► run ─► source     what the build starts from
//!             ├──► image      pulls and unpacks what the source names
//!             ├──► key        which steps are cached
//!             ├──► workplace  the sandbox: commands, files, snapshots
//!             └──► log        what the client sees
//! catalogue ◄── stock          templates that come with the program: definitions, and what of them is built
//!          ◄── smoke          tries them out
//!          ◄── wanted         has them built for agents
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

mod builds;
mod catalogue;
pub mod dockerfile;
mod error;
mod files;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod image;
mod key;
mod log;
mod names;
mod room;
mod run;
mod secrets;
mod smoke;
mod source;
mod step;
mod stock;
mod sweep;
mod wanted;
mod workplace;

pub use builds::{BuildOptions, BuildSettings, Builds, Images, RegistrySettings, Submission, Upload};
pub use catalogue::{CatalogueSettings, Definition, EmbeddedFile, definition, definitions};
pub use error::BuildError;
pub use files::DiskRoom;
pub use names::ImageNames;
pub use step::{BadPlan, is_hash};
pub use stock::{CatalogueEntry, CatalogueState};
pub use wanted::Readiness;
