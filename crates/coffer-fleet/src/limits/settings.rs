//! What an operator sets about limits.

use coffer_core::settings::{ByteSize, Period};
use coffer_shares::PoolSettings;
use coffer_store::Quotas;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[limits]`: what projects may use unless an operator gave them quotas of their own, how fast keys may ask,
/// and how long what is over is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LimitSettings {
    /// How long a sandbox made by `/api/v1` lives unless its request or its project says otherwise.
    pub sandbox_ttl: Period,
    /// How often old records are looked for.
    pub sweep_every: Period,
    /// While the server's directory has less free than this, pushes and uploads are refused; 0 is no floor.
    pub min_free_disk: ByteSize,
    pub quotas: QuotaSettings,
    pub rates: RateSettings,
    pub pools: PoolSettings,
    pub retention: RetentionSettings,
}

/// `[limits.quotas]`: what each project may use at a time; 0 is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct QuotaSettings {
    /// Sandboxes that run. Paused ones count only by their disk.
    pub sandboxes: u32,
    /// Processors of sandboxes that run.
    pub cpus: u32,
    /// Memory of sandboxes that run.
    pub memory: ByteSize,
    /// Disk of all sandboxes, paused ones included.
    pub disk: ByteSize,
    /// Live forks of all sandboxes together.
    pub forks: u32,
    /// What repositories, Git LFS and artifacts keep together.
    pub storage: ByteSize,
}

/// `[limits.rates]`: how fast each key may ask, on this server; 0 is as fast as it likes. A burst is what may
/// come at once after a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RateSettings {
    /// Requests a second.
    pub requests_per_s: u32,
    /// Requests at once after a pause.
    pub requests_burst: u32,
    /// Requests that make sandboxes; they do not count as others.
    pub creates_per_s: u32,
    /// Of those, at once after a pause.
    pub creates_burst: u32,
    /// Wrong keys from one address. Keys that were good once are not turned away with them.
    pub wrong_keys_per_s: u32,
    /// Wrong keys at once after a pause.
    pub wrong_keys_burst: u32,
}

/// `[limits.retention]`: how long what is over is kept, unless a project says otherwise. How long output is
/// kept is in `[output]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RetentionSettings {
    /// Sandboxes that have ended are forgotten after this, with their history; those whose output is kept
    /// stay as long as it. So are runs, with their steps, and competitions; what a task's attempts came to stays.
    pub records: Period,
    /// Events are removed after this.
    pub events: Period,
    /// The audit log is removed after this.
    pub audit: Period,
}

impl Default for LimitSettings {
    fn default() -> Self {
        Self {
            sandbox_ttl: Period::hours(1),
            sweep_every: Period::secs(600),
            min_free_disk: ByteSize::gib(1),
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
