//! The proxy's interface to the rest of the server.

use std::fmt;

use async_trait::async_trait;
use coffer_core::command::RefusedCommand;
use coffer_core::{ProjectId, SandboxId};
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
    /// What to check before a command is started in a sandbox; `None` if all are allowed. Asked first, so that
    /// requests to a sandbox without a policy are not read.
    fn guard(&self, sandbox: SandboxId) -> Option<Guard>;

    /// Whether a project permits this program with these arguments. Records nothing: the proxy reports each
    /// refusal, this one or its own, to [`refused`](Self::refused).
    fn permit(&self, project: ProjectId, words: &[String]) -> Result<(), RefusedCommand>;

    /// A client of the sandbox was refused a command.
    async fn refused(&self, sandbox: SandboxId, what: &RefusedCommand);

    /// A client that authenticated by token or signature read data of the sandbox.
    fn read(&self, sandbox: SandboxId, action: &'static str, status: u16);
}

/// A sandbox whose project has a command policy.
#[derive(Debug, Clone)]
pub struct Guard {
    /// The token that the sandbox's clients must present: others see no policy, and cannot fill its log.
    pub access_token: Option<String>,
}
