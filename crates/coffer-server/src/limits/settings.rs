//! What an operator sets about limits.

use coffer_core::settings::{ByteSize, Period};
use coffer_shares::{Pool, Shares, pool};
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

/// `[limits.pools]`: how much of each kind of work is done at a time, for all projects together. What one project may
/// hold of it changes with it, see [limits.md](limits.md#shares). At least 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PoolSettings {
    /// Lists of files and processes being read from sandboxes.
    pub file_lists: usize,
    /// Start requests being checked against a command policy.
    pub command_starts: usize,
    /// Log reads that wait for a sandbox's newest output.
    pub log_reads: usize,
    /// Pages of output being redacted and written.
    pub redaction: usize,
    /// Calls to the files of the output log.
    pub log_files: usize,
    /// Open event sockets.
    pub event_sockets: usize,
    /// Artifacts being uploaded.
    pub artifact_uploads: usize,
    /// Results of runs being saved.
    pub artifact_texts: usize,
    /// Creates, forks, snapshots, pauses and resumes under way.
    pub host_calls: usize,
    /// Sandboxes being destroyed and snapshots being deleted on request.
    pub ends: usize,
    /// Sandboxes being ended or paused at their deadline.
    pub background_steps: usize,
    /// Sandboxes being asked whether they answer.
    pub health_checks: usize,
    /// Deliveries to webhooks that work.
    pub webhook_sends: usize,
    /// Deliveries to webhooks that failed last time.
    pub webhook_retries: usize,
    /// Fetches, pushes, LFS transfers, imports and exports.
    pub git_transfers: usize,
    /// Diffs, merges and lists of git.
    pub git_calls: usize,
    /// Connections that have authenticated or carry a sandbox's traffic.
    pub connections: usize,
    /// Connections that have not authenticated; an address has at most a quarter.
    pub unauthenticated: usize,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            file_lists: pool::FILE_LISTS.total,
            command_starts: pool::COMMAND_STARTS.total,
            log_reads: pool::LOG_READS.total,
            redaction: pool::REDACTION.total,
            log_files: pool::LOG_FILES.total,
            event_sockets: pool::EVENT_SOCKETS.total,
            artifact_uploads: pool::ARTIFACT_UPLOADS.total,
            artifact_texts: pool::ARTIFACT_TEXTS.total,
            host_calls: pool::HOST_CALLS.total,
            ends: pool::ENDS.total,
            background_steps: pool::BACKGROUND_STEPS.total,
            health_checks: pool::HEALTH_CHECKS.total,
            webhook_sends: pool::WEBHOOK_SENDS.total,
            webhook_retries: pool::WEBHOOK_RETRIES.total,
            git_transfers: pool::GIT_TRANSFERS.total,
            git_calls: pool::GIT_CALLS.total,
            connections: pool::CONNECTIONS.total,
            unauthenticated: pool::UNAUTHENTICATED.total,
        }
    }
}

impl PoolSettings {
    /// How many places a pool has.
    pub(crate) fn of(&self, wanted: &Pool) -> usize {
        match wanted.name {
            "file_lists" => self.file_lists,
            "command_starts" => self.command_starts,
            "log_reads" => self.log_reads,
            "redaction" => self.redaction,
            "log_files" => self.log_files,
            "event_sockets" => self.event_sockets,
            "artifact_uploads" => self.artifact_uploads,
            "artifact_texts" => self.artifact_texts,
            "host_calls" => self.host_calls,
            "ends" => self.ends,
            "background_steps" => self.background_steps,
            "health_checks" => self.health_checks,
            "webhook_sends" => self.webhook_sends,
            "webhook_retries" => self.webhook_retries,
            "git_transfers" => self.git_transfers,
            "git_calls" => self.git_calls,
            "connections" => self.connections,
            "unauthenticated" => self.unauthenticated,
            _ => wanted.total,
        }
    }

    /// A pool of the table as it is set.
    pub(crate) fn shares<K: Copy + Eq + std::hash::Hash>(&self, pool: &'static Pool) -> Shares<K> {
        Shares::with_total(pool, self.of(pool))
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pool_that_names_a_setting_has_it() {
        let shown = serde_json::to_value(PoolSettings::default()).unwrap();
        let named: Vec<_> = coffer_shares::POOLS.iter().filter(|pool| pool.setting.is_some()).collect();
        for pool in &named {
            assert_eq!(shown[pool.name], pool.total, "limits.pools.{}", pool.name);
            let mut changed = shown.clone();
            changed[pool.name] = 1234.into();
            let settings: PoolSettings = serde_json::from_value(changed).unwrap();
            assert_eq!(settings.of(pool), 1234, "limits.pools.{}", pool.name);
        }
        assert_eq!(shown.as_object().unwrap().len(), named.len(), "and no other");
    }
}
