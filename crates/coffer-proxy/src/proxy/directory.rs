//! The proxy's interface to the rest of the server.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use coffer_core::SandboxId;
use coffer_core::command::{CommandPolicy, RefusedCommand};
use coffer_guest::{Route, Wake};

/// Resolves where each sandbox's traffic goes.
#[async_trait]
pub trait Directory: Send + Sync + fmt::Debug {
    /// Finds where traffic for `sandbox` goes. Any text is allowed as `sandbox`; text that is not an id is
    /// not found.
    async fn route(&self, sandbox: &str, wake: Wake) -> Route;

    /// Running sandboxes with an access token, for signed URLs that name no sandbox.
    fn secured(&self) -> Vec<(SandboxId, String)>;
}

/// Decides which commands may be started. Asked only about requests that could start one.
#[async_trait]
pub trait Gate: Send + Sync + fmt::Debug {
    /// The policy to check before a command is started in a sandbox; `None` if all are allowed.
    fn guard(&self, sandbox: SandboxId) -> Option<Guard>;

    /// A client of the sandbox was refused a command.
    async fn refused(&self, sandbox: SandboxId, what: &RefusedCommand);

    /// A client that authenticated by token or signature read data of the sandbox.
    fn read(&self, sandbox: SandboxId, action: &'static str, status: u16);
}

/// Checks for the commands of a sandbox.
#[derive(Debug, Clone)]
pub struct Guard {
    pub policy: Arc<CommandPolicy>,
    /// The token that the sandbox's clients must present: others see no policy, and cannot fill its log.
    pub access_token: Option<String>,
}
