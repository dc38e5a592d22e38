//! Implements the proxy's traits with the fleet.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use coffer_core::clock::now_ms;
use coffer_core::command::{self, RefusedCommand};
use coffer_core::sync::Mutex;
use coffer_core::{AuditId, Code, ExecutionSource, ProjectId, SandboxId};
use coffer_fleet::Fleet;
use coffer_fleet::audit::AuditLog;
use coffer_fleet::commands::Commands;
use coffer_guest::{Route, Wake};
use coffer_proxy::{Directory, Gate, Guard};
use coffer_store::AuditRecord;

/// Most recorded refusals of a sandbox without a token, in this time: any client can cause them.
const MOST_TOLD: u32 = 30;
const TOLD_IN: Duration = Duration::from_secs(10);
/// Most sandboxes for which they are counted.
const MOST_COUNTED: usize = 4096;

/// The sandboxes as targets of traffic.
#[derive(Debug)]
pub(crate) struct Sandboxes(pub(crate) Arc<Fleet>);

#[async_trait]
impl Directory for Sandboxes {
    async fn route(&self, sandbox: &str, wake: Wake) -> Route {
        self.0.route(sandbox, wake).await
    }

    fn secured(&self) -> Vec<(SandboxId, String)> {
        self.0.secured()
    }
}

/// Checks commands that come through the proxy.
#[derive(Debug)]
pub(crate) struct Gatekeeper {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) commands: Arc<Commands>,
    pub(crate) audit: AuditLog,
    pub(crate) told: Mutex<HashMap<SandboxId, (Instant, u32)>>,
}

impl Gatekeeper {
    /// Whether one more refusal of an open sandbox may be recorded.
    fn may_tell(&self, sandbox: SandboxId) -> bool {
        let mut told = self.told.lock();
        if told.len() >= MOST_COUNTED {
            told.retain(|_, (since, _)| since.elapsed() < TOLD_IN);
        }
        let (since, count) = told.entry(sandbox).or_insert_with(|| (Instant::now(), 0));
        if since.elapsed() >= TOLD_IN {
            (*since, *count) = (Instant::now(), 0);
        }
        *count += 1;
        *count <= MOST_TOLD
    }
}

#[async_trait]
impl Gate for Gatekeeper {
    fn guard(&self, sandbox: SandboxId) -> Option<Guard> {
        let record = self.fleet.any(sandbox)?;
        if !self.commands.restricts(record.project) {
            return None;
        }
        let token = record.live().row.access_token.as_ref().map(|token| token.reveal().to_string());
        Some(Guard { access_token: token })
    }

    fn permit(&self, project: ProjectId, words: &[String]) -> Result<(), RefusedCommand> {
        self.commands.check(project, words)
    }

    async fn refused(&self, sandbox: SandboxId, what: &RefusedCommand) {
        let Some(record) = self.fleet.any(sandbox) else { return };
        let open = record.live().row.access_token.is_none();
        if open && !self.may_tell(sandbox) {
            return;
        }
        self.commands.tell(&record, what, ExecutionSource::E2b).await;
        let is_code = what.words.first().is_some_and(|word| command::is_code(word));
        let id = AuditId::generate();
        self.audit
            .write(AuditRecord {
                id,
                project: Some(record.project),
                // A client with the sandbox's token; it sends no key.
                actor: format!("token:{sandbox}"),
                action: if is_code { "POST /execute" } else { "POST /process.Process/Start" }.to_string(),
                subject: Some(sandbox.to_string()),
                status: 403,
                code: Some(Code::CommandRefused.to_string()),
                request_id: id.to_string(),
                at_ms: now_ms(),
            })
            .await;
    }

    fn read(&self, sandbox: SandboxId, action: &'static str, status: u16) {
        let Some(record) = self.fleet.any(sandbox) else { return };
        let open = record.live().row.access_token.is_none();
        // Any client could fill the log with reads of a sandbox without a token.
        if open && !self.may_tell(sandbox) {
            return;
        }
        let id = AuditId::generate();
        self.audit.write_read(AuditRecord {
            id,
            project: Some(record.project),
            actor: format!("token:{sandbox}"),
            action: action.to_string(),
            subject: Some(sandbox.to_string()),
            status,
            code: None,
            request_id: id.to_string(),
            at_ms: now_ms(),
        });
    }
}
