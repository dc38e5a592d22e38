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
    pub disk_mib: Option<u64>,
}

/// The largest size that can be requested. The smallest is the same everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LargestSize {
    pub cpu_count: u32,
    pub memory_mib: u64,
    pub disk_mib: u64,
}

impl LargestSize {
    /// More than any machine has: for a host that does not report what it has.
    pub const ANY: Self = Self { cpu_count: 1024, memory_mib: 16 << 20, disk_mib: 1 << 30 };
}

/// A requested size is out of bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{field} {}", self.why())]
pub struct BadSize {
    /// As the API calls it.
    pub field: &'static str,
    pub value: u64,
    pub least: u64,
    pub most: u64,
}

impl BadSize {
    /// What is wrong with the field.
    pub fn why(&self) -> String {
        format!("is {} and must be between {} and {}", self.value, self.least, self.most)
    }
}

/// The smallest memory and disk that a sandbox can run with, as in the settings.
const LEAST_MEMORY_MIB: u64 = 64;
const LEAST_DISK_MIB: u64 = 16;

impl SizeWish {
    /// Checks that each requested value is within bounds.
    pub fn check(&self, largest: &LargestSize) -> Result<(), BadSize> {
        let each = [
            ("cpu_count", self.cpu_count.map(u64::from), 1, u64::from(largest.cpu_count)),
            ("memory_mib", self.memory_mib, LEAST_MEMORY_MIB, largest.memory_mib),
            ("disk_mib", self.disk_mib, LEAST_DISK_MIB, largest.disk_mib),
        ];
        for (field, value, least, most) in each {
            if let Some(value) = value
                && !(least..=most).contains(&value)
            {
                return Err(BadSize { field, value, least, most });
            }
        }
        Ok(())
    }

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
            disk_mib: self.disk_mib.unwrap_or(usual.disk_mib),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_checked_field_by_field_and_both_bounds_are_allowed() {
        let largest = LargestSize { cpu_count: 4, memory_mib: 1024, disk_mib: 2048 };
        let of = |cpu_count, memory_mib, disk_mib| SizeWish { cpu_count, memory_mib, disk_mib };
        for good in [
            SizeWish::default(),
            of(Some(1), Some(64), Some(16)),
            of(Some(4), Some(1024), Some(2048)),
            of(None, None, Some(100)),
        ] {
            assert_eq!(good.check(&largest), Ok(()), "{good:?}");
        }
        for (bad, said) in [
            (of(Some(0), None, None), "cpu_count is 0 and must be between 1 and 4"),
            (of(Some(5), None, None), "cpu_count is 5 and must be between 1 and 4"),
            (of(Some(1), Some(63), None), "memory_mib is 63 and must be between 64 and 1024"),
            (
                of(None, Some(u64::MAX), None),
                "memory_mib is 18446744073709551615 and must be between 64 and 1024",
            ),
            (of(None, None, Some(15)), "disk_mib is 15 and must be between 16 and 2048"),
            (of(None, None, Some(2049)), "disk_mib is 2049 and must be between 16 and 2048"),
        ] {
            assert_eq!(bad.check(&largest).unwrap_err().to_string(), said);
        }
    }

    #[test]
    fn a_size_replaces_only_what_it_names() {
        let usual = Limits::default();
        let wish = SizeWish { disk_mib: Some(64), ..SizeWish::default() };
        assert_eq!(wish.over(usual), Limits { disk_mib: 64, ..usual });
        assert!(!wish.is_none() && SizeWish::default().is_none());
    }
}
