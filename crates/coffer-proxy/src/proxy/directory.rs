//! What the proxy asks of the rest of the server.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use coffer_core::SandboxId;
use coffer_core::command::{CommandPolicy, RefusedCommand};
use coffer_guest::{Route, Wake};

/// Knows where each sandbox's traffic goes.
#[async_trait]
pub trait Directory: Send + Sync + fmt::Debug {
    /// Finds where traffic for `sandbox` goes. Any text is fine as `sandbox`; what is not an id is
    /// not found.
    async fn route(&self, sandbox: &str, wake: Wake) -> Route;

    /// Running sandboxes with an access token, for signed URLs that name no sandbox.
    fn secured(&self) -> Vec<(SandboxId, String)>;
}

/// Knows which commands may be started. Asked only about requests that could start one.
#[async_trait]
pub trait Gate: Send + Sync + fmt::Debug {
    /// What to ask before a command is started in a sandbox; none where everything may be.
    fn guard(&self, sandbox: SandboxId) -> Option<Guard>;

    /// A client of the sandbox was refused a command.
    async fn refused(&self, sandbox: SandboxId, what: &RefusedCommand);

    /// A client of the sandbox, whom its token or a signature let in, read what is kept in it.
    fn read(&self, sandbox: SandboxId, action: &'static str, status: u16);
}

/// What stands before the commands of a sandbox.
#[derive(Debug, Clone)]
pub struct Guard {
    pub policy: Arc<CommandPolicy>,
    /// What the sandbox's clients must show: nobody else is told of the policy, or fills its log.
    pub access_token: Option<String>,
}
