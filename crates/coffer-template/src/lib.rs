//! Templates: the root file systems of sandboxes.
//!
//! A [`TemplateStore`] keeps them on disk, shared by every data directory of a host:
//!
//! ```text
//! <dir>/<name>/<build>/manifest.json   what the build is (see `manifest`)
//! <dir>/<name>/<build>/rootfs/         its files
//! <dir>/<name>/.lock                   held by `flock` while a build runs
//! <dir>/<name>/.building-*             a build in progress, or what a killed one left
//! <dir>/<name>/build.log               what the last build's tools said
//! <dir>/.nodes/                        whose sandboxes may use a build (see `prune`)
//! ```
//!
//! A build appears by one rename, complete or not at all, is never changed afterwards, and is deleted when
//! there are newer ones and no sandbox uses it, so readers take no lock. Two templates come with the program:
//! `base`, bootstrapped from the distribution's packages, and `host`, the machine's own `/usr` under a root
//! that we write.
//!
//! Nodes read the store, the command line builds into it. This crate knows neither: the caller that opens the
//! store passes a function that lists the layers in use by the sandboxes of a data directory ([`LayersOf`]).
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

mod base;
mod bootstrap;
mod error;
mod finish;
mod host;
mod host_frame;
mod host_root;
mod manifest;
mod node;
mod progress;
mod prune;
mod scratch;
mod sources;
mod store;
mod tree;

use std::collections::BTreeMap;
use std::path::PathBuf;

use coffer_wire::node::TemplateInfo;
use serde::{Deserialize, Serialize};

pub use base::{BaseOptions, Recipe};
pub use error::BuildError;
pub use node::NpmSource;
pub use progress::{Phase, Progress};
pub use sources::SourcesError;
pub use store::{LayersOf, TemplateStore};

/// The name of the template that is bootstrapped from packages.
pub const BASE: &str = "base";
/// The name of the template made of the host's own `/usr`.
pub const HOST: &str = "host";
/// The name of the empty template.
pub const SCRATCH: &str = "scratch";
/// The host's directory that it shows.
pub const HOST_FILES: &str = "/usr";

/// One finished build of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pub info: TemplateInfo,
    /// The one for `/` first; later ones are mounted inside it.
    pub overlays: Vec<OverlaySpec>,
    /// Notes for people: versions, missing parts.
    pub notes: Vec<String>,
    pub created_ms: i64,
    /// The disk usage of its own files; the host's `/usr` is not counted.
    pub size_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverlaySpec {
    /// Where it is mounted inside the sandbox, absolute.
    pub target: PathBuf,
    /// Read-only layers, topmost first.
    pub layers: Vec<LayerSpec>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerSpec {
    pub path: PathBuf,
    /// The offset of stored ids in this layer; 0 if they are as inside.
    pub uid_base: u32,
    /// The host's own files, of which a sandbox sees only those that any user of the host may read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub public_only: bool,
}

impl LayerSpec {
    /// A layer for sandboxes, with ids as inside.
    pub fn own(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), uid_base: 0, public_only: false }
    }

    /// A directory of the host's own.
    pub fn of_the_host(path: impl Into<PathBuf>) -> Self {
        Self { public_only: true, ..Self::own(path) }
    }
}

/// The environment of every process: text is UTF-8.
fn environment() -> BTreeMap<String, String> {
    BTreeMap::from([("LANG".to_string(), "C.UTF-8".to_string())])
}
