//! An image that was found: what it consists of and where it came from.

use crate::config::ImageConfig;
use crate::digest::Digest;
use crate::platform::Platform;
use crate::reference::ImageRef;

/// An image for one platform.
#[derive(Debug, Clone)]
pub struct Image {
    /// The name it was found by. Images of archives have one if the archive does.
    pub reference: Option<ImageRef>,
    /// The digest of its manifest; for `docker save`, which has none, that of its configuration.
    pub digest: Digest,
    /// The digest of the index that lists it for several platforms, if there is one.
    pub index: Option<Digest>,
    pub platform: Platform,
    pub config: ImageConfig,
    /// In the order in which they are unpacked.
    pub layers: Vec<Layer>,
    pub served_by: ServedBy,
    /// Mirrors that were tried before, each with the reason why it did not serve the image. For the build's log.
    pub skipped: Vec<String>,
}

/// One layer: a tar archive that nothing in this crate opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// Of the bytes as they are stored and downloaded.
    pub digest: Digest,
    pub size: u64,
    pub compression: Compression,
    /// The digest of the archive without compression, as the configuration claims it: check it while unpacking.
    pub diff_id: Digest,
}

/// The compression of a layer, by its media type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
    Zstd,
}

/// Where an image's manifest came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServedBy {
    /// The registry in the image's name.
    Registry(String),
    /// A mirror of the operator.
    Mirror(String),
    Archive,
}

impl Image {
    /// The bytes of all layers, as downloaded.
    pub fn size(&self) -> u64 {
        self.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.size))
    }
}

impl std::fmt::Display for ServedBy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Registry(host) => write!(f, "{host}"),
            Self::Mirror(host) => write!(f, "mirror {host}"),
            Self::Archive => f.write_str("an archive"),
        }
    }
}
