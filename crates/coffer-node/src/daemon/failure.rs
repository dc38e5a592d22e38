//! Why a node could not start.

use std::io;
use std::path::{Path, PathBuf};

use crate::features::Unusable;

/// Why a node could not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeFailure {
    #[error("another node uses the data directory `{}`", .0.display())]
    InUse(PathBuf),
    #[error("could not {doing} `{}`", .path.display())]
    Directory { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("the runtime directory `{}` is too long for the paths of sockets in it", .0.display())]
    RunDirTooLong(PathBuf),
    #[error("could not open the pool")]
    Pool(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("could not allocate uid ranges")]
    Uids(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("could not read the host's processors and control groups")]
    Host(#[source] io::Error),
    #[error(transparent)]
    Unusable(Unusable),
}

pub(super) fn doing(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> NodeFailure {
    move |source| NodeFailure::Directory { doing, path: path.to_path_buf(), source }
}
