//! The table of pools.

use std::time::Duration;

/// A pool that tenants share.
#[derive(Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its name in settings, messages and metrics.
    pub name: &'static str,
    /// What takes a place, for people.
    pub holds: &'static str,
    pub total: usize,
    /// How many places one tenant may hold, at most half.
    pub share: usize,
    /// How long a request waits for a place.
    pub wait: Wait,
    /// The setting of the total; `None` if it follows from something else.
    pub setting: Option<&'static str>,
}

/// How long a request waits for a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// It is refused at once.
    Never,
    UpTo(Duration),
    /// The server's own work, which no client waits for and which must not be dropped.
    UntilFree,
}

impl Wait {
    const fn secs(seconds: u64) -> Self {
        Self::UpTo(Duration::from_secs(seconds))
    }
}

macro_rules! pools {
    ($($(#[$doc:meta])* $constant:ident = $name:literal, $holds:literal, $total:expr, $share:expr, $wait:expr, $setting:expr;)*) => {
        /// Every pool by its name in code.
        pub mod pool {
            use super::{Pool, Wait};
            $($(#[$doc])* pub const $constant: &Pool = &Pool {
                name: $name, holds: $holds, total: $total, share: $share, wait: $wait, setting: $setting,
            };)*
        }

        /// Every pool that tenants share.
        pub const POOLS: &[&Pool] = &[$(pool::$constant),*];
    };
}

pools! {
    /// Each list is held in memory, and sandboxes choose its length.
    FILE_LISTS = "file_lists", "lists of files and processes being read from sandboxes", 16, 8, Wait::secs(10),
        Some("limits.pools.file_lists");
    /// Start requests are read completely if a project has a command policy.
    COMMAND_STARTS = "command_starts", "start requests being checked against a command policy", 128, 64, Wait::secs(10),
        Some("limits.pools.command_starts");
    /// Each may hold as much of its output as an answer may have.
    CODE_CALLS = "code_calls", "code that runs in code interpreters through our own API", 128, 64, Wait::secs(10),
        Some("limits.pools.code_calls");
    /// Each asks a sandbox, which may answer slowly, for its newest output.
    LOG_READS = "log_reads", "log reads that wait for a sandbox's newest output", 16, 8, Wait::secs(10),
        Some("limits.pools.log_reads");
    /// Pages of output being redacted.
    REDACTION = "redaction", "pages of output being redacted and written", 16, 8, Wait::UntilFree,
        Some("limits.pools.redaction");
    /// Segments of the output log.
    LOG_FILES = "log_files", "calls to the files of the output log", 32, 16, Wait::UntilFree,
        Some("limits.pools.log_files");
    EVENT_SOCKETS = "event_sockets", "open event sockets", 8192, 4096, Wait::Never,
        Some("limits.pools.event_sockets");
    /// A session that nobody uses ends after ten minutes.
    MCP_SESSIONS = "mcp_sessions", "open MCP sessions over HTTP", 1024, 256, Wait::Never,
        Some("limits.pools.mcp_sessions");
    ARTIFACT_UPLOADS = "artifact_uploads", "artifacts being uploaded", 64, 8, Wait::secs(10),
        Some("limits.pools.artifact_uploads");
    ARTIFACT_TEXTS = "artifact_texts", "results of runs being saved", 8, 4, Wait::UntilFree,
        Some("limits.pools.artifact_texts");
    /// The node answers 256 requests at a time. The rest is for the server itself.
    HOST_CALLS = "host_calls", "creates, forks, snapshots, pauses and resumes in progress", 192, 96, Wait::secs(60),
        Some("limits.pools.host_calls");
    /// Each has a sandbox, which the project's quotas count.
    BUILDS = "builds", "builds of templates in progress; others wait", 16, 8, Wait::UntilFree,
        Some("limits.pools.builds");
    /// Each has an open file, and a client may send slowly.
    TEMPLATE_UPLOADS = "template_uploads", "files of template builds being uploaded", 64, 16, Wait::secs(10),
        Some("limits.pools.template_uploads");
    /// Destroys and deletes are never refused, but wait for their turn on the node.
    ENDS = "ends", "sandboxes being destroyed and snapshots being deleted on request", 64, 32, Wait::UntilFree,
        Some("limits.pools.ends");
    BACKGROUND_STEPS = "background_steps", "sandboxes being ended or paused at their deadline", 32, 16, Wait::UntilFree,
        Some("limits.pools.background_steps");
    HEALTH_CHECKS = "health_checks", "sandboxes being asked whether they answer", 64, 32, Wait::UntilFree,
        Some("limits.pools.health_checks");
    WEBHOOK_SENDS = "webhook_sends", "deliveries to webhooks that work", 48, 16, Wait::Never,
        Some("limits.pools.webhook_sends");
    WEBHOOK_RETRIES = "webhook_retries", "deliveries to webhooks that failed last time", 16, 8, Wait::Never,
        Some("limits.pools.webhook_retries");
    GIT_TRANSFERS = "git_transfers", "fetches, pushes, LFS transfers, imports and exports", 32, 16, Wait::secs(20),
        Some("limits.pools.git_transfers");
    /// A project's share follows from `forge.git_memory_per_project`; that of all projects is the limit of
    /// their cgroup.
    GIT_MEMORY = "git_memory", "fetches and pushes, each with as much memory as its git may fill", 512, 8, Wait::secs(20), None;
    GIT_CALLS = "git_calls", "diffs, merges and lists of git", 8, 4, Wait::secs(20),
        Some("limits.pools.git_calls");
    /// Each has an open connection to a provider, and may wait for it for minutes.
    MODEL_CALLS = "model_calls", "calls of models in progress", 512, 64, Wait::Never,
        Some("limits.pools.model_calls");
    /// Requests are held in memory until they are sent.
    MODEL_MEMORY = "model_memory", "mebibytes of calls of models that are being read", 512, 128, Wait::Never, None;
    GIT_PASSES = "git_passes", "short-lived passwords for git", 100_000, 50_000, Wait::Never, None;
    /// As many as the egress process has descriptors for, if those are fewer.
    EGRESS_CONNECTIONS = "egress_connections", "connections out of sandboxes", 16_384, 8192, Wait::Never, None;
    /// By project once a request is authenticated or reaches a sandbox.
    CONNECTIONS = "connections", "connections to the server's port that have authenticated or carry a sandbox's traffic", 8192, 4096, Wait::Never,
        Some("limits.pools.connections");
    /// By address: an IPv4 address or an IPv6 /64.
    UNAUTHENTICATED = "unauthenticated", "connections that have not authenticated, by address", 8192, 2048, Wait::Never,
        Some("limits.pools.unauthenticated");
    /// By project, or by address for connections that have not authenticated.
    DRAINS = "drains", "bodies of refused requests being read to their end", 256, 64, Wait::Never, None;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pool_has_a_share_that_leaves_half_to_others() {
        for pool in POOLS {
            assert!(
                pool.share > 0 && pool.share <= pool.total / 2,
                "{}: {} of {}",
                pool.name,
                pool.share,
                pool.total
            );
            let same = POOLS.iter().filter(|other| other.name == pool.name).count();
            assert_eq!(same, 1, "{} is listed once", pool.name);
            let named = pool.setting.is_none_or(|setting| setting == format!("limits.pools.{}", pool.name));
            assert!(named, "{} has a setting of its own name", pool.name);
        }
    }
}
