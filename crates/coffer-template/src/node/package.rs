//! What is downloaded.

/// An archive of the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Package {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    pub(super) sha512: &'static str,
}
