//! Limits of one sandbox.

use serde::{Deserialize, Serialize};

/// Resource limits of one sandbox. All of them are enforced by the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Processors seen and usable inside.
    pub cpu_count: u32,
    /// Memory with page cache and tmpfs, in MiB.
    pub memory_mib: u64,
    /// Data that may be written on top of the template, in MiB.
    pub disk_mib: u64,
    /// Processes and threads.
    pub max_processes: u32,
}

/// A requested size of a sandbox, instead of the default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeWish {
    pub cpu_count: Option<u32>,
    pub memory_mib: Option<u64>,
}

impl SizeWish {
    /// Whether the default is wanted.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The default limits with the requested values.
    #[must_use]
    pub fn over(self, usual: Limits) -> Limits {
        Limits {
            cpu_count: self.cpu_count.unwrap_or(usual.cpu_count),
            memory_mib: self.memory_mib.unwrap_or(usual.memory_mib),
            ..usual
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { cpu_count: 2, memory_mib: 2048, disk_mib: 10_240, max_processes: 4096 }
    }
}

impl Limits {
    /// The memory limit in bytes.
    pub const fn memory_bytes(&self) -> u64 {
        self.memory_mib * 1024 * 1024
    }

    /// The disk limit in bytes.
    pub const fn disk_bytes(&self) -> u64 {
        self.disk_mib * 1024 * 1024
    }
}
