//! Runs code in sandboxes, permitted by policy and recorded.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coffer_core::{ExecutionId, ExecutionSource, KeyId, Millis, ProjectId, command};
use coffer_guest::Wake;
use coffer_guest::interpreter::{Context, Execute, Interpreter};
use coffer_shares::{PoolSettings, Shares, pool};
use coffer_store::{CodeOf, ExecutionState, NewExecution};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::call::{Following, Step};
use super::{CodeError, CodeSettings, Language};
use crate::exec::{Exec, ExecError, reach};
use crate::fleet::Record;
use crate::output::CodeEnd;
use coffer_core::clock::now_ms;

/// Steps that wait for the caller. A caller that is too slow delays only its own code's output.
const STEPS: usize = 4;

/// Where code runs.
#[derive(Debug, Clone)]
pub enum Place {
    /// In the default context of a language.
    Language(Language),
    Context(String),
}

/// Code to run.
#[derive(Debug)]
pub struct CodeOrder {
    pub code: String,
    pub place: Place,
    pub env: BTreeMap<String, String>,
    pub timeout: Duration,
    /// Most bytes of output and results for the caller.
    pub most: usize,
}

/// Code that runs. Dropping it interrupts the code.
#[derive(Debug)]
pub struct Call {
    pub id: ExecutionId,
    pub language: String,
    /// The context, if the order named one.
    pub context: Option<String>,
    pub started_ms: Millis,
    steps: mpsc::Receiver<Step>,
}

impl Call {
    /// What happens next; the last is [`Step::Ended`] or [`Step::Failed`].
    pub async fn next(&mut self) -> Option<Step> {
        self.steps.recv().await
    }
}

/// The service.
#[derive(Debug, Clone)]
pub struct Code {
    exec: Exec,
    pub settings: CodeSettings,
    calls: Shares<ProjectId>,
}

impl Code {
    pub fn new(exec: Exec, settings: CodeSettings, pools: &PoolSettings) -> Self {
        Self { exec, settings, calls: pools.shares(pool::CODE_CALLS) }
    }

    async fn interpreter(&self, record: &Arc<Record>, wake: Wake) -> Result<Interpreter, CodeError> {
        Ok(Interpreter::new(reach(&self.exec.fleet, record, wake).await?))
    }

    /// Starts code, and returns once the interpreter took it. What it does is recorded until its end, whoever waits.
    pub async fn run(
        &self,
        record: &Arc<Record>,
        order: CodeOrder,
        actor: Option<KeyId>,
    ) -> Result<Call, CodeError> {
        let room = self.calls.take(record.project).await?;
        let interpreter = self.interpreter(record, Wake::ByPolicy).await?;
        // Asked first, so that nothing is recorded for a sandbox without an interpreter.
        let contexts = interpreter.contexts().await?;
        let (language, context) = match &order.place {
            Place::Language(language) => (language.name().to_string(), None),
            Place::Context(id) => {
                let found = contexts.into_iter().find(|context| context.id == *id);
                let found = found.ok_or_else(|| CodeError::NoContext(id.chars().take(64).collect()))?;
                (found.language.chars().take(32).collect(), Some(found.id))
            }
        };
        let permitted = self.exec.commands.permit(record, &command::code(&language)).await;
        permitted.map_err(ExecError::Refused)?;
        let (steps, receiver) = mpsc::channel(STEPS);
        let (id, started_ms, started) = (ExecutionId::generate(), now_ms(), Instant::now());
        let new = NewExecution {
            id,
            actor,
            command: order.code.clone(),
            cwd: None,
            user: None,
            source: ExecutionSource::Api,
            code: Some(CodeOf { language: language.clone(), context: context.clone() }),
        };
        let most_kept = usize::try_from(self.settings.most_kept.as_bytes()).unwrap_or(usize::MAX);
        let longest = usize::try_from(self.settings.most_output.as_bytes()).unwrap_or(usize::MAX);
        let (output, record, named) = (self.exec.output.clone(), record.clone(), context.clone());
        let (told, start) = tokio::sync::oneshot::channel();
        // In a task of its own: code that is recorded as running must run, and its end must be recorded.
        self.exec.fleet.spawn_step(async move {
            let log = match output.begin_code(&record, new, most_kept).await {
                Ok(log) => log,
                Err(error) => {
                    let _gone = told.send(Err(CodeError::Exec(error.into())));
                    return;
                }
            };
            let language = match order.place {
                Place::Language(language) => Some(language.name()),
                Place::Context(_) => None,
            };
            let request =
                Execute { code: &order.code, language, context_id: named.as_deref(), env_vars: &order.env };
            match interpreter.execute(&request, longest).await {
                Ok(lines) => {
                    let _gone = told.send(Ok(()));
                    let until = started + order.timeout;
                    Following::new(lines, log, steps, order.most, order.timeout).follow(started, until).await;
                }
                Err(error) => {
                    let (state, status) = (ExecutionState::Failed, error.to_string());
                    log.end(CodeEnd { state, exit_code: None, status, execution_count: None }).await;
                    let _gone = told.send(Err(error.into()));
                }
            }
            drop(room);
        });
        start.await.unwrap_or(Err(CodeError::Exec(ExecError::Broken)))?;
        Ok(Call { id, language, context, started_ms, steps: receiver })
    }

    /// The contexts of a sandbox.
    pub async fn contexts(&self, record: &Arc<Record>, wake: Wake) -> Result<Vec<Context>, CodeError> {
        Ok(self.interpreter(record, wake).await?.contexts().await?)
    }

    pub async fn create_context(
        &self,
        record: &Arc<Record>,
        language: Language,
        cwd: Option<&str>,
    ) -> Result<Context, CodeError> {
        let _room = self.calls.take(record.project).await?;
        Ok(self.interpreter(record, Wake::ByPolicy).await?.create(language.name(), cwd).await?)
    }

    pub async fn restart_context(&self, record: &Arc<Record>, context: &str) -> Result<(), CodeError> {
        let _room = self.calls.take(record.project).await?;
        Ok(self.interpreter(record, Wake::ByPolicy).await?.restart(context).await?)
    }

    pub async fn remove_context(&self, record: &Arc<Record>, context: &str) -> Result<(), CodeError> {
        Ok(self.interpreter(record, Wake::ByPolicy).await?.remove(context).await?)
    }
}
