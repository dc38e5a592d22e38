//! What an operator says of forges.

use coffer_core::settings::ByteSize;
use coffer_forge::{GitLimits, PrivateHosts};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Less, and git cannot merge files of some size.
const LEAST_MEMORY: ByteSize = ByteSize::mib(64);

/// `[forge]`: forges that projects connect to, and what git may use for local repositories.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ForgeSettings {
    /// Hosts of forges that may be at private addresses or on this machine (`ghe.example.com`, or with a port that is meant
    /// alone, `ghe.example.com:8443`), such as GitHub Enterprise in a company's network. Others must have public ones.
    pub private_hosts: Vec<String>,
    /// The largest push, bundle or Git LFS object.
    pub max_push: ByteSize,
    /// The largest local repository, with its Git LFS objects.
    pub max_repository: ByteSize,
    /// Memory that one git process may fill; 64 MiB at least. A push or bundle that needs more to unpack is refused as
    /// `pack_too_large`.
    pub git_memory: ByteSize,
    /// Memory of all fetches and pushes of a project: each counts with `git_memory`, and more of them wait.
    pub git_memory_per_project: ByteSize,
    /// Memory of all git processes of local repositories together; a quarter of the machine's, and at least
    /// 512 MiB, by default.
    pub git_memory_total: Option<ByteSize>,
}

impl Default for ForgeSettings {
    fn default() -> Self {
        let limits = GitLimits::default();
        Self {
            private_hosts: Vec::new(),
            max_push: ByteSize::bytes(limits.push),
            max_repository: ByteSize::bytes(limits.repository),
            git_memory: ByteSize::bytes(limits.memory),
            git_memory_per_project: ByteSize::bytes(limits.project_memory),
            git_memory_total: None,
        }
    }
}

impl ForgeSettings {
    /// Fails with the setting and what is allowed.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        self.hosts().map(drop).map_err(|text| {
            let names = "must be names such as `ghe.example.com` or `ghe.example.com:8443`";
            ("forge.private_hosts", format!("{names}; `{text}` is none"))
        })?;
        let least = |size: ByteSize, least: ByteSize, name| {
            if size >= least { Ok(()) } else { Err((name, format!("must be at least {least}"))) }
        };
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
