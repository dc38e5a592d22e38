//! The service of a template: started when the sandbox boots, before its creator gets an answer.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use coffer_core::StartCommand;
use coffer_wire::agentd::Init;
use coffer_wire::envd::process::{ProcessConfig, StartRequest};
use rustix::process::WaitStatus;
use tokio::time::Instant;

use super::Processes;
use crate::agent::account;

/// How long a create waits for the service. It runs on in any case.
const READY_WITHIN: Duration = Duration::from_secs(15);
/// Between two tries of the ready command.
const READY_AGAIN: Duration = Duration::from_millis(100);

/// The tag of the service's process.
const TAG: &str = "start_command";

impl Processes {
    /// Starts the service and waits until its ready command succeeds, within bounds. A service that cannot be
    /// started leaves a sandbox without it: the journal has its command and its end.
    pub(crate) async fn begin_service(self: &Arc<Self>, service: &StartCommand, init: &Init) {
        if let Some(command) = &service.command {
            let _unstarted = self.shell(command, init, None);
        }
        let Some(ready) = &service.ready else { return };
        let deadline = Instant::now() + READY_WITHIN;
        while Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(process) = self.shell(ready, init, Some(left)) else { return };
            if process.exit().await.and_then(WaitStatus::exit_status) == Some(0) {
                return;
            }
            tokio::time::sleep(READY_AGAIN).await;
        }
    }

    /// Starts a shell line as the default user.
    fn shell(
        self: &Arc<Self>,
        line: &str,
        init: &Init,
        lifetime: Option<Duration>,
    ) -> Option<Arc<super::Process>> {
        let account = account(None, init).ok()?;
        let shell = ["/bin/bash", "/bin/sh"].into_iter().find(|shell| Path::new(shell).exists())?;
        let config = ProcessConfig {
            cmd: shell.to_string(),
            args: vec!["-l".to_string(), "-c".to_string(), line.to_string()],
            ..ProcessConfig::default()
        };
        let request = StartRequest {
            process: Some(config),
            tag: Some(TAG.to_string()),
            stdin: Some(false),
            ..StartRequest::default()
        };
        self.start(request, &account, init, lifetime).ok()
    }
}
