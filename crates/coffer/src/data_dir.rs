//! Layout of an installation's data directory.
//!
//! ```text
//! DIR/lock         held by `up` for its life
//! DIR/env          what clients need, mode 0600
//! DIR/sign-in      a link that signs a browser in, once, mode 0600
//! DIR/installation identifies this installation among others on the same database
//! DIR/server-uid   the uid that the server runs as, where there is no user `coffer`
//! DIR/egress-uid   the same for egress, and the user `coffer-egress`
//! DIR/authority.pem, DIR/authority-key.pem   the authority that sandboxes trust; the key is root's alone
//! DIR/node/        root's: pool, journal
//! DIR/server/      the server's: SQLite, the master key
//! /run/coffer/<8 hex>/   sockets (a path in DIR may be too long for one)
//! ```

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};

const SIGN_IN: &str = "sign-in";

/// An existing or new data directory.
#[derive(Debug, Clone)]
pub(crate) struct DataDir {
    root: PathBuf,
}

/// Proof that no other `coffer up` uses the directory.
#[derive(Debug)]
pub(crate) struct Held {
    _lock: File,
}

impl DataDir {
    /// Creates the directory if it is missing.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        make_dir(path, 0o755)?;
        let root = path.canonicalize().with_context(|| format!("could not resolve `{}`", path.display()))?;
        Ok(Self { root })
    }

    /// Locks the directory for this process.
    pub(crate) fn hold(&self) -> anyhow::Result<Held> {
        let path = self.root.join("lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let lock = lock.with_context(|| format!("could not open `{}`", path.display()))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            crate::printer::hint(
                format!("another coffer uses the data directory `{}`", self.root.display()),
                "stop it, or give this one a directory of its own with --data-dir",
            )
        })?;
        Ok(Held { _lock: lock })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn node(&self) -> PathBuf {
        self.root.join("node")
    }

    pub(crate) fn server(&self) -> PathBuf {
        self.root.join("server")
    }

    pub(crate) fn env_file(&self) -> PathBuf {
        self.root.join("env")
    }

    pub(crate) fn server_uid_file(&self) -> PathBuf {
        self.root.join("server-uid")
    }

    /// The certificate of this installation's authority.
    pub(crate) fn authority_file(&self) -> PathBuf {
        self.root.join("authority.pem")
    }

    pub(crate) fn authority_key_file(&self) -> PathBuf {
        self.root.join("authority-key.pem")
    }

    pub(crate) fn egress_uid_file(&self) -> PathBuf {
        self.root.join("egress-uid")
    }

    /// Identifies this installation among others on the same database; created by the first start.
    pub(crate) fn installation(&self) -> anyhow::Result<String> {
        let path = self.root.join("installation");
        if let Ok(text) = std::fs::read_to_string(&path)
            && !text.trim().is_empty()
        {
            return Ok(text.trim().to_string());
        }
        let name = coffer_core::SandboxId::generate().to_string();
        self.write_secret(&path, &format!("{name}\n"))?;
        Ok(name)
    }

    /// The short directory of this installation's sockets.
    pub(crate) fn run_dir(&self) -> PathBuf {
        let digest = Sha256::digest(self.root.as_os_str().as_encoded_bytes());
        Path::new("/run/coffer").join(hex::encode(&digest[..4]))
    }

    /// The API key that an earlier start wrote.
    pub(crate) fn known_key(&self) -> Option<String> {
        let text = std::fs::read_to_string(self.env_file()).ok()?;
        let value = text.lines().find_map(|line| line.strip_prefix("E2B_API_KEY="))?;
        (!value.is_empty()).then(|| value.to_string())
    }

    /// The operator's key that an earlier start wrote.
    pub(crate) fn known_operator_key(&self) -> Option<String> {
        let text = std::fs::read_to_string(self.operator_key_file()).ok()?;
        let key = text.trim();
        (!key.is_empty()).then(|| key.to_string())
    }

    pub(crate) fn operator_key_file(&self) -> PathBuf {
        self.root.join("operator-key")
    }

    pub(crate) fn write_operator_key(&self, key: &str) -> anyhow::Result<()> {
        self.write_secret(&self.operator_key_file(), &format!("{key}\n"))
    }

    pub(crate) fn sign_in_file(&self) -> PathBuf {
        self.root.join(SIGN_IN)
    }

    /// Writes `DIR/sign-in`.
    pub(crate) fn write_sign_in(&self, link: &str) -> anyhow::Result<()> {
        self.write_secret(&self.sign_in_file(), link)
    }

    /// Removes the link of an earlier start.
    pub(crate) fn remove_sign_in(&self) {
        let _ = std::fs::remove_file(self.sign_in_file());
    }

    /// Writes `DIR/env`.
    pub(crate) fn write_env(&self, text: &str) -> anyhow::Result<()> {
        self.write_secret(&self.env_file(), text)
    }

    /// Writes a file that only its owner can read, atomically.
    pub(crate) fn write_secret(&self, path: &Path, text: &str) -> anyhow::Result<()> {
        let new = path.with_extension("new");
        let write = || -> std::io::Result<()> {
            let mut file =
                OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
            // The mode above is for new files only.
            file.set_permissions(Permissions::from_mode(0o600))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&new, path)
        };
        write().with_context(|| format!("could not write `{}`", path.display()))
    }

    /// Removes the files of an `--ephemeral` installation.
    pub(crate) fn remove_all(&self) {
        for directory in [self.node(), self.server(), self.run_dir()] {
            if let Err(error) = std::fs::remove_dir_all(&directory)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                tracing::warn!("could not remove {}: {error}", directory.display());
            }
        }
        for file in [
            "env",
            SIGN_IN,
            "operator-key",
            "installation",
            "authority.pem",
            "authority-key.pem",
            "server-uid",
            "egress-uid",
            "lock",
        ] {
            let _ = std::fs::remove_file(self.root.join(file));
        }
        // Only if it contains none of the user's files.
        let _ = std::fs::remove_dir(&self.root);
    }
}

/// Creates a directory and its parents, and gives the last one this mode.
pub(crate) fn make_dir(path: &Path, mode: u32) -> anyhow::Result<()> {
    let make = || -> std::io::Result<()> {
        if !path.is_dir() {
            DirBuilder::new().recursive(true).mode(0o755).create(path)?;
            std::fs::set_permissions(path, Permissions::from_mode(mode))?;
        }
        Ok(())
    };
    make().with_context(|| format!("could not create the directory `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_held_once() {
        let temp = tempfile::tempdir().unwrap();
        let dir = DataDir::open(&temp.path().join("deep/er")).unwrap();
        let held = dir.hold().unwrap();
        assert!(dir.hold().unwrap_err().to_string().contains("another coffer uses"));
        drop(held);
        dir.hold().unwrap();
    }

    #[test]
    fn the_env_file_is_private_and_remembers_the_key() {
        let temp = tempfile::tempdir().unwrap();
        let dir = DataDir::open(temp.path()).unwrap();
        assert_eq!(dir.known_key(), None);
        std::fs::write(dir.env_file(), "E2B_API_KEY=old\n").unwrap();
        dir.write_env("E2B_API_URL=http://127.0.0.1:1\nE2B_API_KEY=e2b_1\n").unwrap();
        assert_eq!(dir.known_key().as_deref(), Some("e2b_1"));
        let mode = std::fs::metadata(dir.env_file()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn an_installation_keeps_its_name() {
        let temp = tempfile::tempdir().unwrap();
        let name = DataDir::open(temp.path()).unwrap().installation().unwrap();
        assert_eq!(DataDir::open(temp.path()).unwrap().installation().unwrap(), name);
        let other = tempfile::tempdir().unwrap();
        assert_ne!(DataDir::open(other.path()).unwrap().installation().unwrap(), name);
    }

    #[test]
    fn sockets_fit_however_deep_the_directory_is() {
        let temp = tempfile::tempdir().unwrap();
        let dir = DataDir::open(&temp.path().join("x".repeat(200))).unwrap();
        assert!(dir.run_dir().join("s").join("a".repeat(32)).as_os_str().len() < 107);
    }
}
