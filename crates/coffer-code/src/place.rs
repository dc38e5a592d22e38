//! Where things are in the sandbox.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Paths of one installation. Tests have their own.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The Python environment, with Deno and the IPython profile.
    pub(crate) home: PathBuf,
    /// Connection files and sockets of kernels. On a tmpfs: files of sockets on an overlay do not survive a restore.
    pub(crate) run: PathBuf,
    /// Where contexts begin that name no directory.
    pub(crate) work: PathBuf,
    /// Holds the sandbox's id, which changes when the sandbox gets an owner or is forked.
    pub(crate) identity: PathBuf,
    /// The port of agentd.
    pub(crate) agentd: u16,
}

impl Place {
    /// The sandbox's, unless variables say otherwise.
    pub(crate) fn from_environment() -> Self {
        let path =
            |name: &str, usual: &str| PathBuf::from(std::env::var_os(name).unwrap_or_else(|| usual.into()));
        let agentd = std::env::var("COFFER_CODE_AGENTD").ok().and_then(|port| port.parse().ok());
        Self {
            home: path("COFFER_CODE_HOME", "/opt/code"),
            run: path("COFFER_CODE_RUN", "/dev/shm/coffer-code"),
            work: path("COFFER_CODE_WORK", "/home/user"),
            identity: path("COFFER_CODE_IDENTITY", "/run/e2b/.E2B_SANDBOX_ID"),
            agentd: agentd.unwrap_or(49983),
        }
    }

    /// Makes the directory of kernels' files, which nobody else can open.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.run)
    }

    /// Who the sandbox is now; empty outside of one.
    pub(crate) fn identity(&self) -> String {
        std::fs::read_to_string(&self.identity).unwrap_or_default().trim().to_string()
    }

    /// The directory to start a kernel in: the context's if it can be entered.
    pub(crate) fn directory<'a>(&'a self, wanted: &'a str) -> &'a Path {
        [Path::new(wanted), self.work.as_path()]
            .into_iter()
            .find(|path| path.is_absolute() && path.is_dir())
            .unwrap_or(Path::new("/"))
    }
}
