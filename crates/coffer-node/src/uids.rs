//! Ranges of 65,536 host ids, one for each sandbox, divided among all nodes of the host.
//!
//! Ranges come in blocks of 64. A node that needs one takes a block by writing its data directory's
//! path into the block's file and holding `flock` on it. A node that is gone holds no lock, but its
//! sandboxes may live: its blocks stay its own as long as its journal has entries, so that the next
//! node on that directory finds them. Everything happens under one host-wide lock, briefly.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use coffer_core::sync::Mutex;
use rustix::fs::FlockOperation;

const FIRST: u32 = 0x7000_0000;
const RANGE: u32 = 65_536;
const RANGES_PER_BLOCK: u32 = 64;
const BLOCKS: u32 = 64;

/// Where the blocks of this host are recorded.
pub(crate) const DIRECTORY: &str = "/run/coffer/uids";

#[derive(Debug, thiserror::Error)]
pub(crate) enum UidError {
    #[error("all {} uid ranges of this host are in use", BLOCKS * RANGES_PER_BLOCK)]
    Exhausted,
    #[error("uid range {0:#x} belongs to another node of this host")]
    Foreign(u32),
    #[error("could not record uid ranges in `{}`", .0.display())]
    Record(PathBuf, #[source] io::Error),
}

/// The ranges of one node.
#[derive(Debug)]
pub(crate) struct UidRanges {
    directory: PathBuf,
    /// The node's data directory, which owns the blocks.
    owner: PathBuf,
    blocks: Mutex<BTreeMap<u32, Block>>,
}

#[derive(Debug)]
struct Block {
    /// Holds the lock.
    _file: File,
    /// A bit for each range in use.
    used: u64,
}

impl UidRanges {
    pub(crate) fn open(directory: &Path, owner: &Path) -> Result<Self, UidError> {
        let ranges = Self {
            directory: directory.to_path_buf(),
            owner: owner.to_path_buf(),
            blocks: Mutex::new(BTreeMap::new()),
        };
        fs::create_dir_all(directory).map_err(|error| ranges.record_error(error))?;
        ranges.take_over()?;
        Ok(ranges)
    }

    /// Takes the blocks that an earlier node on this data directory left.
    fn take_over(&self) -> Result<(), UidError> {
        let _lock = self.lock()?;
        let mut blocks = self.blocks.lock();
        for number in 0..BLOCKS {
            let ours = fs::read(self.path(number))
                .is_ok_and(|owner| owner == self.owner.as_os_str().as_encoded_bytes());
            if ours && let Some(file) = self.claim(number)? {
                blocks.insert(number, Block { _file: file, used: 0 });
            }
        }
        Ok(())
    }

    /// Takes the first id of a free range.
    pub(crate) fn take(&self) -> Result<u32, UidError> {
        let mut blocks = self.blocks.lock();
        for (&number, block) in blocks.iter_mut() {
            let free = block.used.trailing_ones();
            if free < RANGES_PER_BLOCK {
                block.used |= 1 << free;
                return Ok(base(number, free));
            }
        }
        let _lock = self.lock()?;
        // Nodes begin at different places, so that after a reboot each finds its old blocks free.
        let start = self
            .owner
            .as_os_str()
            .as_encoded_bytes()
            .iter()
            .fold(7u32, |hash, &byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)));
        for offset in 0..BLOCKS {
            let number = start.wrapping_add(offset) % BLOCKS;
            if blocks.contains_key(&number) {
                continue;
            }
            if let Some(file) = self.claim(number)? {
                blocks.insert(number, Block { _file: file, used: 1 });
                return Ok(base(number, 0));
            }
        }
        Err(UidError::Exhausted)
    }

    /// Takes a range that the journal lists as ours.
    pub(crate) fn take_again(&self, uid_base: u32) -> Result<(), UidError> {
        let (number, range) = place(uid_base).ok_or(UidError::Foreign(uid_base))?;
        let mut blocks = self.blocks.lock();
        if let Some(block) = blocks.get_mut(&number) {
            block.used |= 1 << range;
            return Ok(());
        }
        let _lock = self.lock()?;
        let file = self.claim(number)?.ok_or(UidError::Foreign(uid_base))?;
        blocks.insert(number, Block { _file: file, used: 1 << range });
        Ok(())
    }

    /// Releases a range once nothing with its ids is left.
    pub(crate) fn give_back(&self, uid_base: u32) {
        let Some((number, range)) = place(uid_base) else { return };
        if let Some(block) = self.blocks.lock().get_mut(&number) {
            block.used &= !(1 << range);
        }
    }

    /// Releases all unused blocks, as the last step before the node ends.
    pub(crate) fn close(&self) {
        let Ok(_lock) = self.lock() else { return };
        let mut blocks = self.blocks.lock();
        for (number, _) in blocks.extract_if(.., |_, block| block.used == 0) {
            let _ = fs::remove_file(self.path(number));
        }
    }

    /// Locks a block for this node unless another node has it; the host-wide lock is held.
    fn claim(&self, number: u32) -> Result<Option<File>, UidError> {
        let attempt = || -> io::Result<Option<File>> {
            let mut options = OpenOptions::new();
            let mut file =
                options.read(true).write(true).create(true).truncate(false).open(self.path(number))?;
            if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                return Ok(None);
            }
            let mut owner = Vec::new();
            file.read_to_end(&mut owner)?;
            // Accept any bytes as a path: one node's directory name must not stop another node.
            let owner = Path::new(OsStr::from_bytes(&owner));
            if !owner.as_os_str().is_empty() && owner != self.owner && has_sandboxes(owner) {
                return Ok(None);
            }
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(self.owner.as_os_str().as_encoded_bytes())?;
            Ok(Some(file))
        };
        attempt().map_err(|error| self.record_error(error))
    }

    fn lock(&self) -> Result<File, UidError> {
        let attempt = || -> io::Result<File> {
            let mut options = OpenOptions::new();
            let file = options.write(true).create(true).truncate(false).open(self.directory.join("lock"))?;
            rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
            Ok(file)
        };
        attempt().map_err(|error| self.record_error(error))
    }

    fn path(&self, number: u32) -> PathBuf {
        self.directory.join(format!("block-{number:02}"))
    }

    fn record_error(&self, error: io::Error) -> UidError {
        UidError::Record(self.directory.clone(), error)
    }
}

const fn base(block: u32, range: u32) -> u32 {
    FIRST + (block * RANGES_PER_BLOCK + range) * RANGE
}

fn place(uid_base: u32) -> Option<(u32, u32)> {
    let index = uid_base.checked_sub(FIRST)? / RANGE;
    (index < BLOCKS * RANGES_PER_BLOCK && uid_base.is_multiple_of(RANGE))
        .then_some((index / RANGES_PER_BLOCK, index % RANGES_PER_BLOCK))
}

/// Whether a node's journal has entries, whose ranges must not be given to others.
fn has_sandboxes(data_dir: &Path) -> bool {
    crate::journal::directory_of(data_dir).read_dir().is_ok_and(|mut entries| entries.next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn nodes_never_share_a_range() {
        let host = tempfile::tempdir().unwrap();
        let uids = host.path().join("uids");
        let one = UidRanges::open(&uids, &host.path().join("one")).unwrap();
        let two = UidRanges::open(&uids, &host.path().join("two")).unwrap();
        let mut seen = HashSet::new();
        for _ in 0..100 {
            assert!(seen.insert(one.take().unwrap()));
            assert!(seen.insert(two.take().unwrap()));
        }
        let last = *seen.iter().max().unwrap();
        assert!(last.checked_add(RANGE).is_some_and(|end| end <= 0x8000_0000));
    }

    #[test]
    fn a_node_with_an_odd_name_stops_no_other() {
        let host = tempfile::tempdir().unwrap();
        let uids = host.path().join("uids");
        let odd = host.path().join(OsStr::from_bytes(b"\xff"));
        let held = UidRanges::open(&uids, &odd).unwrap();
        let first = held.take().unwrap();
        drop(held);
        let other = UidRanges::open(&uids, &host.path().join("other")).unwrap();
        other.take_again(first).unwrap();
    }

    #[test]
    fn a_range_comes_back_and_the_host_can_run_out() {
        let host = tempfile::tempdir().unwrap();
        let uids = UidRanges::open(&host.path().join("uids"), &host.path().join("data")).unwrap();
        let all: HashSet<_> = (0..4096).map(|_| uids.take().unwrap()).collect();
        assert_eq!(all.len(), 4096);
        assert!(matches!(uids.take(), Err(UidError::Exhausted)));
        uids.give_back(FIRST + 77 * RANGE);
        assert_eq!(uids.take().unwrap(), FIRST + 77 * RANGE);
    }

    #[test]
    fn blocks_outlive_their_node_while_its_journal_has_entries() {
        let host = tempfile::tempdir().unwrap();
        let (directory, data) = (host.path().join("uids"), host.path().join("data"));
        let journal = crate::journal::directory_of(&data);
        fs::create_dir_all(&journal).unwrap();
        fs::write(journal.join("x.json"), "{}").unwrap();
        let held = UidRanges::open(&directory, &data).unwrap().take().unwrap();

        let other = UidRanges::open(&directory, &host.path().join("other")).unwrap();
        assert!(matches!(other.take_again(held), Err(UidError::Foreign(_))));
        let back = UidRanges::open(&directory, &data).unwrap();
        back.take_again(held).unwrap();
        assert_ne!(back.take().unwrap(), held);
        drop(back);

        fs::remove_file(journal.join("x.json")).unwrap();
        other.take_again(held).unwrap();
    }

    #[test]
    fn closing_removes_unused_blocks() {
        let host = tempfile::tempdir().unwrap();
        let uids = UidRanges::open(&host.path().join("uids"), &host.path().join("data")).unwrap();
        let held = uids.take().unwrap();
        uids.close();
        let blocks = || fs::read_dir(host.path().join("uids")).unwrap().count() - 1;
        assert_eq!(blocks(), 1);
        uids.give_back(held);
        uids.close();
        assert_eq!(blocks(), 0);
    }
}
