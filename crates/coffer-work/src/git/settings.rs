//! An operator's settings of forges.

use coffer_core::settings::{ByteSize, Period};
use coffer_forge::{GitLimits, PrivateHosts};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// With less, git cannot merge larger files.
const LEAST_MEMORY: ByteSize = ByteSize::mib(64);
/// GitHub allows 5000 requests an hour, and three are made for each repository.
const SHORTEST_POLL: Period = Period::secs(10);

/// `[forge]`: forges that projects connect to, and limits of git for local repositories.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ForgeSettings {
    /// Hosts of forges that may be at private addresses or on this machine, such as GitHub Enterprise in a
    /// company's network: `ghe.example.com`, or `ghe.example.com:8443` for only that port. Others must have
    /// public addresses.
    pub private_hosts: Vec<String>,
    /// How often a repository of a connection without webhooks is asked what happened to its issues and pull requests, if
    /// the settings of its project let issues start tasks; at least 10 s.
    pub poll_every: Period,
    /// The largest push, bundle or Git LFS object.
    pub max_push: ByteSize,
    /// The largest local repository, with its Git LFS objects.
    pub max_repository: ByteSize,
    /// Memory of one git process; at least 64 MiB. A push or bundle that needs more to unpack is refused as
    /// `pack_too_large`.
    pub git_memory: ByteSize,
    /// Memory of all fetches and pushes of a project: each counts with `git_memory`, and further ones wait.
    pub git_memory_per_project: ByteSize,
    /// Memory of all git processes of local repositories together; by default a quarter of the machine's, and
    /// at least 512 MiB.
    pub git_memory_total: Option<ByteSize>,
}

impl Default for ForgeSettings {
    fn default() -> Self {
        let limits = GitLimits::default();
        Self {
            private_hosts: Vec::new(),
            poll_every: Period::secs(60),
            max_push: ByteSize::bytes(limits.push),
            max_repository: ByteSize::bytes(limits.repository),
            git_memory: ByteSize::bytes(limits.memory),
            git_memory_per_project: ByteSize::bytes(limits.project_memory),
            git_memory_total: None,
        }
    }
}

impl ForgeSettings {
    /// Fails with the setting and the allowed values.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        self.hosts().map(drop).map_err(|text| {
            let names = "must be names such as `ghe.example.com` or `ghe.example.com:8443`";
            ("forge.private_hosts", format!("{names}; `{text}` is none"))
        })?;
        let least = |size: ByteSize, least: ByteSize, name| {
            if size >= least { Ok(()) } else { Err((name, format!("must be at least {least}"))) }
        };
        if self.poll_every < SHORTEST_POLL {
            return Err(("forge.poll_every", format!("must be at least {SHORTEST_POLL}")));
        }
        least(self.max_push, ByteSize::mib(1), "forge.max_push")?;
        least(self.max_repository, ByteSize::mib(1), "forge.max_repository")?;
        least(self.git_memory, LEAST_MEMORY, "forge.git_memory")?;
        least(self.git_memory_per_project, self.git_memory, "forge.git_memory_per_project")?;
        let total = self.git_memory_total.unwrap_or(self.git_memory);
        least(total, self.git_memory, "forge.git_memory_total")
    }

    pub fn hosts(&self) -> Result<PrivateHosts, String> {
        PrivateHosts::parse(self.private_hosts.iter().map(String::as_str))
    }

    pub fn limits(&self) -> GitLimits {
        GitLimits {
            memory: self.git_memory.as_bytes(),
            project_memory: self.git_memory_per_project.as_bytes(),
            push: self.max_push.as_bytes(),
            repository: self.max_repository.as_bytes(),
            ..GitLimits::default()
        }
    }
}
