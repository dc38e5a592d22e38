//! A pool promises more than it has: to each sandbox its limit, of which most use little. When it gets
//! full, sandboxes that hold much cannot grow, and what is left is for small and new ones.
//!
//! What holds one back is the limit on its exclusive bytes, which nothing else uses: its own limit, on
//! referenced bytes, stays as it was, and whoever looks next, also another node, sees who is held.

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{FLOOR, Pool, btrfs};

const GIB: u64 = 1024 * 1024 * 1024;
/// How often a pool with room is looked at, and one that fills.
const CALM: Duration = Duration::from_millis(250);
const WATCHFUL: Duration = Duration::from_millis(10);
/// What can be written between two looks, by all together.
const BETWEEN_LOOKS: u64 = GIB / 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Levels {
    /// Less free than this: who holds much is held back.
    low: u64,
    /// More free than this: all may grow again.
    enough: u64,
    /// Holds much.
    much: u64,
}

impl Levels {
    /// An eighth of the pool is kept for those that hold less than a 64th of it.
    fn of(size: u64) -> Self {
        // Above the floor below which no sandbox is made, where the pool is not smaller than that.
        let low = (size / 8).clamp(FLOOR + BETWEEN_LOOKS, 8 * GIB).min(size / 2);
        Self { low, enough: low + low / 4, much: size / 64 }
    }
}

impl Pool {
    /// Holds large sandboxes back where little room is left, or lets them go. Says when to look again.
    pub(crate) fn relieve(&self) -> io::Result<Duration> {
        let (Some(groups), Some(size)) = (&self.quota_groups, self.size_bytes()) else {
            return Ok(CALM * 240);
        };
        let levels = Levels::of(size);
        let free = self.free_bytes_now(groups)?;
        if free < levels.low {
            if !self.tight.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "the pool has {} MiB left: sandboxes with more than {} MiB cannot grow",
                    free >> 20,
                    levels.much >> 20
                );
            }
            for group in btrfs::groups(groups)?.filter(|group| !group.held && group.exclusive > levels.much) {
                unless_gone(btrfs::hold(&self.uppers, group.id, group.exclusive))?;
            }
        } else if free > levels.enough && self.tight.swap(false, Ordering::Relaxed) {
            for group in btrfs::groups(groups)?.filter(|group| group.held) {
                unless_gone(btrfs::let_go(&self.uppers, group.id))?;
            }
        }
        Ok(if free < levels.low * 2 { WATCHFUL } else { CALM })
    }

    /// Without what is promised to data that is not on disk yet, which `statvfs` does not know of.
    fn free_bytes_now(&self, groups: &Path) -> io::Result<u64> {
        let stat = rustix::fs::fstatvfs(&self.uppers)?;
        let mut free = stat.f_bavail.saturating_mul(stat.f_frsize);
        for promised in ["bytes_may_use", "bytes_reserved"] {
            let text = std::fs::read_to_string(groups.with_file_name("allocation/data").join(promised))?;
            free = free.saturating_sub(text.trim().parse().unwrap_or(0));
        }
        Ok(free)
    }
}

/// A sandbox that is destroyed meanwhile needs nothing.
fn unless_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTCONN)) => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_leave_room_above_the_floor() {
        assert_eq!(Levels::of(GIB / 4).low, GIB / 8);
        for gib in [1, 2, 16, 64, 4096] {
            let levels = Levels::of(gib * GIB);
            assert!(levels.low > FLOOR && levels.enough > levels.low, "{levels:?}");
            assert!(levels.much * 8 <= levels.low.max(gib * GIB / 8), "{levels:?}");
        }
        let expected = Levels { low: 8 * GIB, enough: 10 * GIB, much: GIB };
        assert_eq!(Levels::of(64 * GIB), expected);
    }
}
