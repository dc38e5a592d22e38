//! What is asked of the store of layers.

use crate::credentials::Credentials;
use crate::image::{Image, Layer};

/// Told the bytes that are there and those that there will be.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Send + Sync);

/// Decides whether a project may have more bytes.
#[async_trait::async_trait]
pub trait Quota: Send + Sync {
    /// Sets bytes aside before any is written, or says why not. Called at most once for a fetch or an import, and not if
    /// nothing has to be written. If that fails later, the caller gives them back.
    async fn reserve(&self, bytes: u64) -> Result<(), String>;
}

/// A layer to fetch.
#[derive(Clone, Copy)]
pub struct Fetch<'a> {
    /// The name of the project's directory.
    pub project: &'a str,
    pub image: &'a Image,
    pub layer: &'a Layer,
    pub credentials: Option<&'a Credentials>,
    pub quota: &'a dyn Quota,
    pub progress: Progress<'a>,
}

/// What a sweep deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    pub blobs: u64,
    pub partials: u64,
    /// Of the blobs.
    pub bytes: u64,
}

impl std::fmt::Debug for Fetch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fetch({} for {})", self.layer.digest, self.project)
    }
}
