//! State that handlers share.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::settings::Period;
use coffer_core::{LifetimePolicy, Limits, Millis, ProjectId};
use coffer_fleet::audit::AuditLog;
use coffer_fleet::code::Code;
use coffer_fleet::commands::Commands;
use coffer_fleet::events::Events;
use coffer_fleet::exec::Exec;
use coffer_fleet::limits::Limiter;
use coffer_fleet::output::Output;
use coffer_fleet::{Fleet, HostFailures};
use coffer_shares::Shares;
use coffer_store::Store;
use coffer_telemetry::Telemetry;
use coffer_work::tasks::Tasks;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[session]`: how long people stay signed in to the web UI.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SessionSettings {
    /// A session ends this long after it began.
    pub lifetime: Period,
    /// A session ends when it is not used for this long.
    pub idle: Period,
}

impl Default for SessionSettings {
    fn default() -> Self {
        const DAY_S: u64 = 24 * 3600;
        Self { lifetime: Duration::from_secs(30 * DAY_S).into(), idle: Duration::from_secs(7 * DAY_S).into() }
    }
}

impl SessionSettings {
    /// Checks the settings; an error names the key and what it must be.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        let range = Duration::from_secs(5 * 60)..=Duration::from_secs(400 * 24 * 3600);
        for (key, period) in [("session.lifetime", self.lifetime), ("session.idle", self.idle)] {
            if !range.contains(&Duration::from(period)) {
                return Err((key, "must be between `5m` and `400d`"));
            }
        }
        Ok(())
    }
}

/// State that handlers share.
#[derive(Debug)]
pub struct App {
    pub fleet: Arc<Fleet>,
    pub builds: Arc<coffer_build::Builds>,
    /// Recent failures of the host, for operators.
    pub host_failures: HostFailures,
    pub store: Store,
    pub policy: LifetimePolicy,
    pub limits: Limits,
    /// The disk limit of a volume whose request names none.
    pub volume_mib: u64,
    pub limiter: Arc<Limiter>,
    pub domain: Option<String>,
    pub default_template: String,
    pub started_ms: Millis,
    pub audit: AuditLog,
    pub events: Events,
    /// Pool for reading journals, whose length sandboxes choose.
    pub journals: Shares<ProjectId>,
    /// Pool for lists of files and processes, whose length sandboxes choose.
    pub listings: Shares<ProjectId>,
    /// Pool for WebSockets.
    pub sockets: Shares<ProjectId>,
    /// Tools for models, with the sessions of their clients.
    pub mcp: coffer_mcp::http::Service,
    /// Pool for sessions of MCP clients.
    pub mcp_sessions: Shares<ProjectId>,
    pub commands: Arc<Commands>,
    pub exec: Exec,
    pub code: Code,
    pub telemetry: Arc<Telemetry>,
    pub output: Arc<Output>,
    pub forges: Arc<coffer_forge::Forges>,
    pub tasks: Arc<Tasks>,
    pub git: Arc<coffer_work::git::Git>,
    /// Agents in sandboxes, for tests of them.
    pub bench: Arc<coffer_work::workshop::Workbench>,
    pub models: Arc<coffer_work::models::Models>,
    /// How many runs may hold a slot, over all projects.
    pub most_runs: u32,
    pub webhooks: Arc<coffer_work::webhooks::Webhooks>,
    pub artifacts: Arc<coffer_work::artifacts::Artifacts>,
    /// How long people stay signed in.
    pub sessions: SessionSettings,
}
