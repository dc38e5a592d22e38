//! What both kinds of unpacking share: counts, names, and the contents of files.

use std::io::{Read, Write as _};

use coffer_wire::agentd::Unpacked;

use super::archive::Archive;
use super::fault::{Fault, Writing as _};
use super::names::Names;
use super::tree::{Attributes, Spot, dress};

/// Bytes of a file that are written at once.
const WRITTEN_AT_ONCE: usize = 128 << 10;

/// What was done so far, for the answer and for a refusal.
pub(super) struct Progress {
    pub(super) unpacked: Unpacked,
    pub(super) names: Names,
    buffer: Vec<u8>,
}

impl Default for Progress {
    fn default() -> Self {
        Self { unpacked: Unpacked::default(), names: Names::default(), buffer: vec![0; WRITTEN_AT_ONCE] }
    }
}

impl Progress {
    /// Writes the current file of the archive to a place where nothing is.
    pub(super) fn write_file(
        &mut self,
        archive: &mut Archive<impl Read>,
        spot: &Spot,
        attributes: &Attributes<'_>,
        name: &[u8],
    ) -> Result<(), Fault> {
        let mut file = spot.create().writing(name)?;
        loop {
            let length = archive.read(&mut self.buffer)?;
            if length == 0 {
                break;
            }
            file.write_all(&self.buffer[..length]).writing(name)?;
            self.unpacked.bytes += length as u64;
        }
        self.unpacked.skipped_xattrs += dress(&file, attributes).writing(name)?;
        Ok(())
    }
}
