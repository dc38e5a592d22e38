//! Bounds.

use std::time::Duration;

/// How much and how long. Each bound is there because a sandbox will try without it.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Connections of one sandbox at a time.
    pub connections: usize,
    /// Connections of all sandboxes at a time; each takes two descriptors.
    pub connections_in_all: usize,
    /// Questions of one sandbox at a time.
    pub questions: usize,
    /// Refusals that are kept for each sandbox.
    pub refusals: usize,
    /// How long a connection whose name matters may be silent, before its address alone decides: protocols in
    /// which the server speaks first wait this long.
    pub first_byte: Duration,
    /// How long its name may take to come.
    pub hello: Duration,
    /// How long a name may take to be found.
    pub look_up: Duration,
    /// How long one address may take to answer.
    pub dial: Duration,
    /// How long an open connection may be silent.
    pub idle: Duration,
    /// The same, once one side has said all it had to say.
    pub half_closed: Duration,
    /// The longest that an answer for a name may be kept.
    pub longest_ttl: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
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
