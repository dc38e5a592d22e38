//! A pool is overcommitted: each sandbox has its limit, of which most use little. When the pool gets full,
//! large sandboxes cannot grow, and the remaining room is for small and new ones.
//!
//! A large sandbox is held by the limit on its exclusive bytes, which has no other use: its own limit, on
//! referenced bytes, stays unchanged, and the next check, even by another node, sees which sandboxes are
//! held.

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{FLOOR, Pool, btrfs};

const GIB: u64 = 1024 * 1024 * 1024;
/// How often to check a pool with room, and one that fills up.
const CALM: Duration = Duration::from_millis(250);
const WATCHFUL: Duration = Duration::from_millis(10);
/// Bytes that all sandboxes together can write between two checks.
const BETWEEN_LOOKS: u64 = GIB / 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Levels {
    /// With less free than this, large sandboxes are held.
    low: u64,
    /// More free than this: all may grow again.
    enough: u64,
    /// Holds much.
    much: u64,
}

impl Levels {
    /// An eighth of the pool is kept for those that hold less than a 64th of it.
    fn of(size: u64) -> Self {
        // Above the floor below which no sandbox is created, unless the pool is smaller than that.
        let low = (size / 8).clamp(FLOOR + BETWEEN_LOOKS, 8 * GIB).min(size / 2);
        Self { low, enough: low + low / 4, much: size / 64 }
    }
}

impl Pool {
    /// Holds large sandboxes if little room is left, or releases them. Returns when to check again.
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

    /// Free bytes less what is reserved for data that is not on disk yet, which `statvfs` does not count.
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

/// Ignores the error for a sandbox that was destroyed meanwhile.
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
