//! What the readers find.

use coffer_core::network::HostName;

/// Most bytes that are read to find a name.
pub const MOST_BYTES: usize = 32 * 1024;

/// The state of reading a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sniffed {
    /// At least `at_least` bytes in all are needed.
    Unfinished { at_least: usize },
    /// The connection is TLS or HTTP for that name.
    Name(HostName),
    /// It has no reliable name.
    Nameless,
}
