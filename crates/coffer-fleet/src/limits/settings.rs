//! An operator's settings of limits.

use coffer_core::settings::{ByteSize, Period};
use coffer_shares::PoolSettings;
use coffer_store::Quotas;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[limits]`: default quotas of projects, request rates of keys, and how long records are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LimitSettings {
    /// How long a sandbox created by `/api/v1` lives unless its request or its project says otherwise.
    pub sandbox_ttl: Period,
    /// How often old records are deleted.
    pub sweep_every: Period,
    /// While the server's directory has less free space than this, pushes and uploads are refused; 0 turns
    /// this off.
    pub min_free_disk: ByteSize,
    /// The disk limit of a volume whose request names none, as those of E2B's SDKs.
    pub volume_size: ByteSize,
    pub quotas: QuotaSettings,
    pub rates: RateSettings,
    pub pools: PoolSettings,
    pub retention: RetentionSettings,
}

/// `[limits.quotas]`: what each project may use at a time; 0 means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct QuotaSettings {
    /// Running sandboxes. Paused ones count only by their disk.
    pub sandboxes: u32,
    /// Processors of running sandboxes.
    pub cpus: u32,
    /// Memory of running sandboxes.
    pub memory: ByteSize,
    /// Disk of all sandboxes, paused ones included, of snapshots and of volumes.
    pub disk: ByteSize,
    /// Live forks of all sandboxes together.
    pub forks: u32,
    /// Storage of repositories, Git LFS and artifacts together.
    pub storage: ByteSize,
}

/// `[limits.rates]`: how many requests each key may send, on this server; 0 means no limit. A burst is how
/// many may come at once after a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RateSettings {
    /// Requests per second.
    pub requests_per_s: u32,
    /// Requests at once after a pause.
    pub requests_burst: u32,
    /// Requests per second that create sandboxes; they do not count as other requests.
    pub creates_per_s: u32,
    /// Requests at once that create sandboxes, after a pause.
    pub creates_burst: u32,
    /// Wrong keys per second from one address. Keys that were valid before are still accepted from it.
    pub wrong_keys_per_s: u32,
    /// Wrong keys at once after a pause.
    pub wrong_keys_burst: u32,
}

/// `[limits.retention]`: how long records are kept, unless a project says otherwise. `[output]` has the times
/// for output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RetentionSettings {
    /// Ended sandboxes are deleted after this, with their history; those with stored output stay as long as
    /// it. Ended runs, with their steps, and competitions are deleted too; the results of a task's attempts
    /// stay.
    pub records: Period,
    /// Events are deleted after this.
    pub events: Period,
    /// Records of the audit log are deleted after this.
    pub audit: Period,
}

impl Default for LimitSettings {
    fn default() -> Self {
        Self {
            sandbox_ttl: Period::hours(1),
            sweep_every: Period::secs(600),
            min_free_disk: ByteSize::gib(1),
            volume_size: ByteSize::gib(10),
            quotas: QuotaSettings::default(),
            rates: RateSettings::default(),
            pools: PoolSettings::default(),
            retention: RetentionSettings::default(),
        }
    }
}

impl Default for QuotaSettings {
    fn default() -> Self {
        Self {
            sandboxes: 1000,
            cpus: 0,
            memory: ByteSize::bytes(0),
            disk: ByteSize::bytes(0),
            forks: 5,
            storage: ByteSize::gib(50),
        }
    }
}

impl Default for RateSettings {
    fn default() -> Self {
        Self {
            requests_per_s: 1000,
            requests_burst: 5000,
            creates_per_s: 100,
            creates_burst: 1000,
            wrong_keys_per_s: 10,
            wrong_keys_burst: 100,
        }
    }
}

impl Default for RetentionSettings {
    fn default() -> Self {
        Self { records: Period::days(90), events: Period::days(90), audit: Period::days(365) }
    }
}

impl QuotaSettings {
    pub(super) fn in_force(&self) -> Quotas {
        let some = |limit: u64| (limit > 0).then(|| i64::try_from(limit).unwrap_or(i64::MAX));
        Quotas {
            sandboxes: some(self.sandboxes.into()),
            cpus: some(self.cpus.into()),
            memory_mib: some(self.memory.as_mib()),
            disk_mib: some(self.disk.as_mib()),
            forks: some(self.forks.into()),
            runs: None,
            storage_mib: some(self.storage.as_mib()),
        }
    }
}
