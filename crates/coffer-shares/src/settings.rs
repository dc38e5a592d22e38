//! An operator's settings of pools, and the tenant of an address.

use std::net::{IpAddr, Ipv6Addr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Pool, Shares, pool};

/// `[limits.pools]`: how many operations of each kind run at a time, for all projects together. A project's
/// share changes with it, see [limits.md](limits.md#shares). At least 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PoolSettings {
    /// Lists of files and processes being read from sandboxes.
    pub file_lists: usize,
    /// Start requests being checked against a command policy.
    pub command_starts: usize,
    /// Code that runs in code interpreters through our own API.
    pub code_calls: usize,
    /// Log reads that wait for a sandbox's newest output.
    pub log_reads: usize,
    /// Pages of output being redacted and written.
    pub redaction: usize,
    /// Calls to the files of the output log.
    pub log_files: usize,
    /// Open event sockets.
    pub event_sockets: usize,
    /// Open MCP sessions over HTTP.
    pub mcp_sessions: usize,
    /// Artifacts being uploaded.
    pub artifact_uploads: usize,
    /// Results of runs being saved.
    pub artifact_texts: usize,
    /// Creates, forks, snapshots, pauses and resumes in progress.
    pub host_calls: usize,
    /// Builds of templates in progress; others wait.
    pub builds: usize,
    /// Files of template builds being uploaded.
    pub template_uploads: usize,
    /// Sandboxes being destroyed and snapshots being deleted on request.
    pub ends: usize,
    /// Sandboxes being ended or paused at their deadline.
    pub background_steps: usize,
    /// Sandboxes being asked whether they answer.
    pub health_checks: usize,
    /// Deliveries to working webhooks.
    pub webhook_sends: usize,
    /// Deliveries to failing webhooks.
    pub webhook_retries: usize,
    /// Fetches, pushes, LFS transfers, imports and exports.
    pub git_transfers: usize,
    /// Diffs, merges and lists of git.
    pub git_calls: usize,
    /// Calls of models in progress.
    pub model_calls: usize,
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
            code_calls: pool::CODE_CALLS.total,
            log_reads: pool::LOG_READS.total,
            redaction: pool::REDACTION.total,
            log_files: pool::LOG_FILES.total,
            event_sockets: pool::EVENT_SOCKETS.total,
            mcp_sessions: pool::MCP_SESSIONS.total,
            artifact_uploads: pool::ARTIFACT_UPLOADS.total,
            artifact_texts: pool::ARTIFACT_TEXTS.total,
            host_calls: pool::HOST_CALLS.total,
            builds: pool::BUILDS.total,
            template_uploads: pool::TEMPLATE_UPLOADS.total,
            ends: pool::ENDS.total,
            background_steps: pool::BACKGROUND_STEPS.total,
            health_checks: pool::HEALTH_CHECKS.total,
            webhook_sends: pool::WEBHOOK_SENDS.total,
            webhook_retries: pool::WEBHOOK_RETRIES.total,
            git_transfers: pool::GIT_TRANSFERS.total,
            git_calls: pool::GIT_CALLS.total,
            model_calls: pool::MODEL_CALLS.total,
            connections: pool::CONNECTIONS.total,
            unauthenticated: pool::UNAUTHENTICATED.total,
        }
    }
}

impl PoolSettings {
    /// How many places a pool has.
    pub fn of(&self, wanted: &Pool) -> usize {
        match wanted.name {
            "file_lists" => self.file_lists,
            "command_starts" => self.command_starts,
            "code_calls" => self.code_calls,
            "log_reads" => self.log_reads,
            "redaction" => self.redaction,
            "log_files" => self.log_files,
            "event_sockets" => self.event_sockets,
            "mcp_sessions" => self.mcp_sessions,
            "artifact_uploads" => self.artifact_uploads,
            "artifact_texts" => self.artifact_texts,
            "host_calls" => self.host_calls,
            "builds" => self.builds,
            "template_uploads" => self.template_uploads,
            "ends" => self.ends,
            "background_steps" => self.background_steps,
            "health_checks" => self.health_checks,
            "webhook_sends" => self.webhook_sends,
            "webhook_retries" => self.webhook_retries,
            "git_transfers" => self.git_transfers,
            "git_calls" => self.git_calls,
            "model_calls" => self.model_calls,
            "connections" => self.connections,
            "unauthenticated" => self.unauthenticated,
            _ => wanted.total,
        }
    }

    /// A pool of the table with its configured total.
    pub fn shares<K: Copy + Eq + std::hash::Hash>(&self, pool: &'static Pool) -> Shares<K> {
        Shares::with_total(pool, self.of(pool))
    }
}

/// The network of one tenant: an IPv4 address, or 64 bits of IPv6.
pub fn network_of(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(peer) => peer.into(),
        IpAddr::V6(peer) => Ipv6Addr::from_bits(peer.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pool_that_names_a_setting_has_it() {
        let shown = serde_json::to_value(PoolSettings::default()).unwrap();
        let named: Vec<_> = crate::POOLS.iter().filter(|pool| pool.setting.is_some()).collect();
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
