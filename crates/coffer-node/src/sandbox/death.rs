//! Why a sandbox died.

use coffer_wire::node::DeathCause;

use super::process::Exit;

/// The cause, from how the first process ended and how often the kernel ran out of memory for it.
pub(super) fn cause(exit: Option<Exit>, out_of_memory_kills: u64) -> DeathCause {
    match exit {
        Some(Exit::Signal(libc::SIGKILL)) | None if out_of_memory_kills > 0 => DeathCause::OutOfMemory,
        Some(Exit::Signal(signal)) => DeathCause::Signal { signal },
        Some(Exit::Code(code)) => DeathCause::Exit { code },
        None => DeathCause::Unseen,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_blamed_only_for_kills() {
        let cases = [
            (Some(Exit::Signal(9)), 1, DeathCause::OutOfMemory),
            (Some(Exit::Signal(9)), 0, DeathCause::Signal { signal: 9 }),
            (Some(Exit::Signal(11)), 1, DeathCause::Signal { signal: 11 }),
            (Some(Exit::Code(3)), 1, DeathCause::Exit { code: 3 }),
            (None, 0, DeathCause::Unseen),
            (None, 2, DeathCause::OutOfMemory),
        ];
        for (exit, kills, expected) in cases {
            assert_eq!(cause(exit, kills), expected);
        }
    }
}
