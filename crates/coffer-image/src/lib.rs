//! Finds and downloads OCI and Docker images for template builds.
//!
//! [`Registry`] resolves an [`ImageRef`] to an [`Image`]: its configuration, and layers by digest. [`Blobs`] downloads
//! layers, each once per project. [`archive::import`] reads images from `docker save` and OCI layouts instead. Layers
//! are opaque here: a sandbox unpacks them. See `docs/design/0016-template-builds.md`.
//!
//! A project chooses registry, credentials and archive, so all of them are hostile. Addresses that are not public are
//! refused unless the operator names the host, at every redirect and for token servers too. What a registry sends is
//! bounded in size and checked by digest. No name from an archive or a manifest becomes a path on disk.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

pub mod archive;
mod blobs;
mod config;
mod credentials;
mod digest;
mod error;
mod image;
mod manifest;
mod platform;
mod reference;
mod registry;

pub use blobs::{Blobs, Fetch, Progress, Quota, Swept};
pub use config::ImageConfig;
pub use credentials::{BadCredentials, Credentials};
pub use digest::{BadDigest, Digest};
pub use error::ImageError;
pub use image::{Compression, Image, Layer, ServedBy};
pub use platform::{BadPlatform, Platform};
pub use reference::{BadReference, ImageRef};
pub use registry::{BadMirror, Registry, RegistrySettings};
