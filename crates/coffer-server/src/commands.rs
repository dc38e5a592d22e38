//! Whether a project lets a command be started: policies, kept in memory, and what becomes of refusals.
//!
//! A change by this server counts from its answer on; one by another server on the same records within
//! [`LOOK`]. When the records do not answer, what was known stays in force.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use coffer_core::command::{CommandPolicy, Judgement};
use coffer_core::{AuditId, ProjectId, SandboxId};
use coffer_store::{AuditRecord, Store, StoreError, VersionedPolicy};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::audit::AuditLog;
use crate::clock::now_ms;
use crate::fleet::{Fleet, Record};
use crate::output::Output;
use crate::routing::{Gate, Guard, RefusedCommand};

/// How old news of other servers may be.
const LOOK: Duration = Duration::from_secs(2);

/// Of a command, in an event.
const LONGEST_TOLD: usize = 256;

/// Refusals that are told of for each sandbox without a token, in so long: anybody can ask it for commands.
const MOST_TOLD: u32 = 30;
const TOLD_IN: Duration = Duration::from_secs(10);
/// Sandboxes of which that is counted.
const MOST_COUNTED: usize = 4096;

/// The policies of all projects that have one.
#[derive(Debug)]
pub(crate) struct Commands {
    store: Store,
    output: Arc<Output>,
    policies: RwLock<HashMap<ProjectId, Known>>,
}

#[derive(Debug, Clone)]
struct Known {
    policy: Arc<CommandPolicy>,
    version: i64,
}

impl Commands {
    /// Reads all policies, and follows what others change until `stop`.
    pub(crate) async fn start(
        store: Store,
        output: Arc<Output>,
        stop: CancellationToken,
    ) -> Result<Arc<Self>, StoreError> {
        let commands = Arc::new(Self { store, output, policies: RwLock::default() });
        let version = commands.refresh().await?;
        tokio::spawn(commands.clone().follow(version, stop));
        Ok(commands)
    }

    async fn follow(self: Arc<Self>, mut version: i64, stop: CancellationToken) {
        let operator = self.store.operator();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
            let refreshed = match self.store.command_policies_version(&operator).await {
                Ok(newest) if newest == version => continue,
                Ok(_) => self.refresh().await,
                Err(error) => Err(error),
            };
            match refreshed {
                Ok(newest) => version = newest,
                Err(StoreError::Closed) => return,
                Err(error) => tracing::warn!("command policies are not read anew for a moment: {error}"),
            }
        }
    }

    async fn refresh(&self) -> Result<i64, StoreError> {
        let operator = self.store.operator();
        // Asked before: a change in between is then read twice, and not missed.
        let version = self.store.command_policies_version(&operator).await?;
        for (project, policy) in self.store.command_policies(&operator).await? {
            self.learn(project, policy);
        }
        Ok(version)
    }

    /// Takes over a policy, unless a newer one is known.
    pub(crate) fn learn(&self, project: ProjectId, new: VersionedPolicy) {
        let mut policies = self.policies.write().unwrap_or_else(PoisonError::into_inner);
        if policies.get(&project).is_none_or(|known| known.version < new.version) {
            policies.insert(project, Known { policy: Arc::new(new.policy), version: new.version });
        }
    }

    /// What a project asks of its commands; none where it lets all of them pass.
    pub(crate) fn policy(&self, project: ProjectId) -> Option<Arc<CommandPolicy>> {
        let policies = self.policies.read().unwrap_or_else(PoisonError::into_inner);
        policies.get(&project).map(|known| known.policy.clone()).filter(|policy| !policy.is_empty())
    }

    /// Whether a command may be started in a sandbox; a refusal is an event when this returns.
    pub(crate) async fn permit(&self, record: &Record, words: &[String]) -> Result<(), RefusedCommand> {
        let Some(policy) = self.policy(record.project) else { return Ok(()) };
        let judgement: Judgement = policy.judge(words);
        let Some(refused) = policy.refusal(&judgement) else { return Ok(()) };
        let refused =
            RefusedCommand { words: words.to_vec(), why: refused.to_string(), rule: refused.rule() };
        self.tell(record, &refused, "api").await;
        Err(refused)
    }

    async fn tell(&self, record: &Record, refused: &RefusedCommand, source: &str) {
        let command = self.output.patterns_in(record).redact(&refused.words.join(" "));
        let command: String = command.chars().take(LONGEST_TOLD).collect();
        let told =
            json!({ "command": command, "reason": refused.why, "rule": refused.rule, "source": source });
        let operator = self.store.operator();
        let recorded =
            self.store.record_event_of(&operator, record.id, "command.refused", told, now_ms()).await;
        if let Err(error) = recorded {
            tracing::error!(sandbox.id = %record.id, "a refused command is in no event: {error}");
        }
        tracing::info!(sandbox.id = %record.id, project.id = %record.project, "refused a command: {}", refused.why);
    }
}

/// Stands before the commands that come by way of the proxy.
#[derive(Debug)]
pub(crate) struct Gatekeeper {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) commands: Arc<Commands>,
    pub(crate) audit: AuditLog,
    pub(crate) told: Mutex<HashMap<SandboxId, (Instant, u32)>>,
}

impl Gatekeeper {
    /// Whether there is room for one more refusal of an open sandbox.
    fn may_tell(&self, sandbox: SandboxId) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
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
        let policy = self.commands.policy(record.project)?;
        let token = record.live().row.access_token.as_ref().map(|token| token.reveal().to_string());
        Some(Guard { policy, access_token: token })
    }

    async fn refused(&self, sandbox: SandboxId, what: &RefusedCommand) {
        let Some(record) = self.fleet.any(sandbox) else { return };
        let open = record.live().row.access_token.is_none();
        if open && !self.may_tell(sandbox) {
            return;
        }
        self.commands.tell(&record, what, "e2b").await;
        let id = AuditId::generate();
        self.audit
            .write(AuditRecord {
                id,
                project: Some(record.project),
                // Whoever has the sandbox's token; no key is shown there.
                actor: format!("token:{sandbox}"),
                action: "POST /process.Process/Start".to_string(),
                subject: Some(sandbox.to_string()),
                status: 403,
                code: Some("command_refused".to_string()),
                request_id: id.to_string(),
                at_ms: now_ms(),
            })
            .await;
    }

    fn read(&self, sandbox: SandboxId, action: &'static str, status: u16) {
        let Some(record) = self.fleet.any(sandbox) else { return };
        let open = record.live().row.access_token.is_none();
        // Anybody could fill the log with reads of one that takes no token.
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
