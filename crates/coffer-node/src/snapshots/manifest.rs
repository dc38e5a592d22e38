//! A snapshot's manifest: a line with a checksum, then JSON.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use coffer_wire::node::SnapshotInfo;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use coffer_template::OverlaySpec;

/// A larger file is not a manifest: a few hundred layers fit.
const LONGEST: u64 = 1024 * 1024;

/// Everything that a sandbox needs to start from a snapshot, except its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) info: SnapshotInfo,
    /// Host name of the source.
    pub(crate) hostname: String,
    /// The layers below the files.
    pub(crate) overlays: Vec<OverlaySpec>,
    /// The base that the ids in the files are stored relative to.
    pub(crate) stored_uid_base: u32,
}

impl Manifest {
    /// Writes it atomically: after a crash of the host it is complete or missing.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let body = serde_json::to_vec(self)?;
        let draft = path.with_extension("new");
        let mut file = fs::File::create(&draft)?;
        writeln!(file, "{}", hex::encode(Sha256::digest(&body)))?;
        file.write_all(&body)?;
        file.sync_all()?;
        fs::rename(&draft, path)?;
        match path.parent() {
            Some(directory) => fs::File::open(directory)?.sync_all(),
            None => Ok(()),
        }
    }

    /// Reads one back. Fails if it was changed.
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        if fs::metadata(path)?.len() > LONGEST {
            return Err(damaged("it is too long"));
        }
        let text = fs::read(path)?;
        let split =
            text.iter().position(|&byte| byte == b'\n').ok_or_else(|| damaged("it has no checksum"))?;
        let (checksum, body) = (&text[..split], &text[split + 1..]);
        if checksum != hex::encode(Sha256::digest(body)).as_bytes() {
            return Err(damaged("its checksum does not match"));
        }
        Ok(serde_json::from_slice(body)?)
    }
}

fn damaged(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
