//! Maps our own code into memory before the first request.
//!
//! A page of a program is mapped when it is first touched, by a page fault; on a virtual machine a fault
//! costs more than most of what we do with the page. The first request would pay for all of them.

use rustix::mm::Advice;

/// Maps the parts of our program's file that the kernel has in memory. All sandboxes share them, so this
/// costs page table entries and no memory. A failure only makes us slower.
pub(crate) fn settle() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    for (start, length) in maps.lines().filter_map(own_code) {
        // SAFETY: reading a mapping in advance changes nothing that it holds; the kernel checks the range.
        let _old_kernel = unsafe {
            rustix::mm::madvise(
                std::ptr::with_exposed_provenance_mut(start),
                length,
                Advice::LinuxPopulateRead,
            )
        };
    }
}

/// Start and length of a read-only mapping of a file: `start-end perms offset device inode path`.
fn own_code(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?;
    let inode = fields.nth(2)?;
    let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    let is_ours = permissions.starts_with("r") && !permissions.contains('w') && inode != "0";
    is_ours.then(|| (start, end - start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_read_from_a_file_counts() {
        let code = "7f1000-7f3000 r-xp 00001000 fe:00 1234      /usr/bin/agentd";
        assert_eq!(own_code(code), Some((0x7f_1000, 0x2000)));
        for other in [
            "7f1000-7f3000 rw-p 00001000 fe:00 1234      /usr/bin/agentd",
            "7f1000-7f3000 r-xp 00000000 00:00 0         [vdso]",
            "7f1000-7f3000 ---p 00001000 fe:00 1234      /usr/bin/agentd",
            "",
            "no map",
        ] {
            assert_eq!(own_code(other), None, "{other}");
        }
        settle();
    }
}
