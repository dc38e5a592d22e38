//! A sandbox, as the output collector sees it.

use std::path::PathBuf;
use std::sync::Arc;

use coffer_core::{AgentId, ProjectId, SandboxId};
use coffer_guest::Activity;
use tokio_util::sync::CancellationToken;

use super::{Follow, Hidden};

/// A sandbox whose output is collected.
pub trait Subject: Send + Sync + 'static {
    fn id(&self) -> SandboxId;
    fn project(&self) -> ProjectId;
    /// The agent that owns it.
    fn agent(&self) -> Option<AgentId>;
    fn activity(&self) -> &Activity;
    /// The state of following its journal.
    fn follow(&self) -> &Follow;
    /// What it must not show, in addition to the secrets of its project.
    fn hidden(&self) -> &Hidden;
    /// The socket of its agentd and the token that ends its run, while it runs undisturbed.
    fn run(&self) -> Option<(PathBuf, CancellationToken)>;
    /// The socket of its agentd, also while a step that ends its run is in progress.
    fn last_socket(&self) -> Option<PathBuf>;
}

impl<S: Subject> Subject for Arc<S> {
    fn id(&self) -> SandboxId {
        (**self).id()
    }

    fn project(&self) -> ProjectId {
        (**self).project()
    }

    fn agent(&self) -> Option<AgentId> {
        (**self).agent()
    }

    fn activity(&self) -> &Activity {
        (**self).activity()
    }

    fn follow(&self) -> &Follow {
        (**self).follow()
    }

    fn hidden(&self) -> &Hidden {
        (**self).hidden()
    }

    fn run(&self) -> Option<(PathBuf, CancellationToken)> {
        (**self).run()
    }

    fn last_socket(&self) -> Option<PathBuf> {
        (**self).last_socket()
    }
}
