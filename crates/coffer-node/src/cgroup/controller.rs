//! Cgroup controllers and features.

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Controller {
    Memory,
    Pids,
    Cpu,
    /// Only v2's: v1 charges a write to the process that happens to flush it.
    Io,
    CpuAccount,
    Freezer,
}

impl Controller {
    pub(super) fn from_name(name: &str) -> Option<Self> {
        match name {
            "memory" => Some(Self::Memory),
            "pids" => Some(Self::Pids),
            "cpu" => Some(Self::Cpu),
            "io" => Some(Self::Io),
            "cpuacct" => Some(Self::CpuAccount),
            "freezer" => Some(Self::Freezer),
            _ => None,
        }
    }

    pub(super) const fn v2_name(self) -> Option<&'static str> {
        match self {
            Self::Memory => Some("memory"),
            Self::Pids => Some("pids"),
            Self::Cpu => Some("cpu"),
            Self::Io => Some("io"),
            Self::CpuAccount | Self::Freezer => None,
        }
    }
}

/// Features of v2 directories on this kernel, apart from limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Powers {
    /// A process can be cloned into one.
    pub(super) birth: bool,
    pub(super) freeze: bool,
    pub(super) kill: bool,
}
