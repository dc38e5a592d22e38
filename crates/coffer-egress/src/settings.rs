//! Limits of egress.

use std::time::Duration;

use coffer_wire::egress::MOST_DESCRIPTORS;

/// Sizes and times. Each exists because a sandbox would exceed it.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Sandboxes at a time; each takes six descriptors.
    pub sandboxes: usize,
    /// Connections of one sandbox at a time.
    pub connections: usize,
    /// Connections of all sandboxes at a time; each takes two descriptors.
    pub connections_in_all: usize,
    /// Questions of one sandbox at a time.
    pub questions: usize,
    /// Refusals kept for each sandbox.
    pub refusals: usize,
    /// How long to wait for the first bytes of a connection whose name matters, before only its address
    /// decides: protocols in which the server speaks first wait this long.
    pub first_byte: Duration,
    /// How long its name may take to arrive.
    pub hello: Duration,
    /// How long a name may take to be found.
    pub look_up: Duration,
    /// How long one address may take to answer.
    pub dial: Duration,
    /// How long an open connection may be silent.
    pub idle: Duration,
    /// The same, once one side has closed.
    pub half_closed: Duration,
    /// The longest time that a DNS answer is cached.
    pub longest_ttl: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            sandboxes: 16 * 1024,
            connections: 256,
            connections_in_all: 16 * 1024,
            questions: 100,
            refusals: 1000,
            first_byte: Duration::from_secs(1),
            hello: Duration::from_secs(5),
            look_up: Duration::from_secs(8),
            dial: Duration::from_secs(10),
            idle: Duration::from_secs(3600),
            half_closed: Duration::from_secs(300),
            longest_ttl: Duration::from_secs(60),
        }
    }
}

impl Settings {
    /// The default limits, lowered to this process's limit of open files: half of them are for
    /// listeners, which every sandbox needs; three eighths for connections; the rest for DNS and others.
    #[must_use]
    pub fn within_open_files(files: usize) -> Self {
        let usual = Self::default();
        Self {
            sandboxes: usual.sandboxes.min(files / 2 / MOST_DESCRIPTORS),
            connections_in_all: usual.connections_in_all.min(files / 16 * 3),
            ..usual
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_fit_into_the_open_files() {
        let few = Settings::within_open_files(4096);
        assert!(few.sandboxes * MOST_DESCRIPTORS + few.connections_in_all * 2 <= 4096 * 7 / 8);
        assert!(few.sandboxes > 0 && few.connections_in_all >= few.connections);
        let many = Settings::within_open_files(1 << 20);
        assert_eq!(many.connections_in_all, Settings::default().connections_in_all);
    }
}
