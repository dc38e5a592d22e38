//! Turns failures into step errors, and retries while an obstacle may pass.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coffer_core::{Code, FailureCode, ProjectId, Refusal, SandboxState, StepCode};
use coffer_flow::StepError;
use tracing::Instrument as _;

use super::{Station, Workbench};
use crate::git::{Git, GitError, Session};
use coffer_fleet::output::Patterns;
use coffer_fleet::{Record, describe};

/// How long to retry an operation whose obstacle may pass by itself: a part of the installation is
/// unreachable, another git process holds a lock.
const PATIENCE: Duration = Duration::from_secs(60);
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long to wait for programs that an earlier server started.
const LEFT_OVER: Duration = Duration::from_secs(240);
const LOOK: Duration = Duration::from_millis(300);
const LONGEST_TOLD: usize = 2000;

/// The step error for a failure in `sandbox`.
fn step_error(error: &GitError, sandbox: &str, patterns: &Patterns) -> StepError {
    let Refusal { code, message, hint, .. } = error.explain(sandbox);
    let message = hint.map_or_else(|| message.clone(), |hint| format!("{message} ({hint})"));
    let code: FailureCode = match error {
        GitError::NoBase { .. } => StepCode::UnknownBase.into(),
        GitError::NoRepository(_) => StepCode::UnknownRepository.into(),
        _ => code.into(),
    };
    StepError { code, message: redacted(patterns, &message), transient: error.is_transient() }
}

/// Redacts a text and shortens it.
pub(super) fn redacted(patterns: &Patterns, text: &str) -> String {
    let mut text = patterns.redact(text);
    text.truncate(text.floor_char_boundary(LONGEST_TOLD));
    text
}

impl Workbench {
    /// The step error for a refusal without a sandbox.
    pub(super) fn trouble(&self, project: ProjectId, error: impl Into<GitError>) -> StepError {
        step_error(&error.into(), "new", &self.exec.output.patterns(project))
    }

    /// The step error for a refusal in a sandbox. It may contain anything that was printed there, so it is
    /// redacted.
    pub(super) fn trouble_at(&self, at: &Station, error: impl Into<GitError>) -> StepError {
        step_error(&error.into(), &at.sandbox.to_string(), &self.patterns_at(at))
    }

    /// The redaction patterns of a sandbox.
    pub(super) fn patterns_at(&self, at: &Station) -> Arc<Patterns> {
        match self.fleet.find(&at.scope, at.sandbox) {
            Some(record) => self.exec.output.patterns_in(&record),
            None => self.exec.output.patterns(at.scope.project()),
        }
    }

    /// The sandbox, if it is live and on this host.
    pub(super) async fn record(&self, at: &Station) -> Result<Arc<Record>, StepError> {
        if let Some(record) = self.fleet.find(&at.scope, at.sandbox) {
            return Ok(record);
        }
        let row = self.store.sandbox(&at.scope, at.sandbox).await?;
        let why = match row.map(|row| (row.state, row.installation)) {
            Some((state, installation)) if state.is_live() => {
                let holder = installation.unwrap_or_else(|| "another".into());
                let message = format!("sandbox {} is on the host of installation '{holder}'", at.sandbox);
                return Err(StepError::transient(Code::OtherInstallation, message));
            }
            Some((SandboxState::Error { fault }, _)) => describe(&fault),
            Some((SandboxState::Terminated { reason }, _)) => reason.as_str().to_string(),
            _ => "the server has no record of it".to_string(),
        };
        let message = format!("sandbox {} ended before the work in it was done: {why}", at.sandbox);
        Err(StepError::fatal(StepCode::SandboxLost, message))
    }

    pub(super) async fn session(&self, at: &Station) -> Result<Session, StepError> {
        let record = self.record(at).await?;
        Ok(Session { scope: at.scope, record, actor: at.actor.clone(), key: None })
    }

    /// Runs a git operation in the sandbox, and retries while the obstacle may pass. Each try runs to its end
    /// even if the caller no longer waits: a gate that it opened must be closed.
    pub(super) async fn with_git<O, T, F>(
        &self,
        at: &Station,
        order: O,
        work: impl Fn(Arc<Git>, Session, O) -> F + Send,
    ) -> Result<T, StepError>
    where
        O: Clone + Send,
        T: Send + 'static,
        F: Future<Output = Result<T, GitError>> + Send + 'static,
    {
        let (since, mut pause) = (Instant::now(), FIRST_PAUSE);
        loop {
            self.left_over(at).await?;
            let session = self.session(at).await?;
            let tried =
                self.fleet.spawn_step(work(self.git.clone(), session, order.clone()).in_current_span()).await;
            let error = match tried.unwrap_or_else(|_| Err(GitError::Broken)) {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            if !error.is_transient() || since.elapsed() > PATIENCE {
                return Err(self.trouble_at(at, error));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Waits for programs that a dead server had started here: two git processes must not interfere.
    async fn left_over(&self, at: &Station) -> Result<(), StepError> {
        let since = Instant::now();
        loop {
            let record = self.record(at).await?;
            // If it does not answer, the next operation gives the better error.
            let running = self.exec.running(&record).await.unwrap_or_default();
            let mut ours = false;
            for execution in running {
                let row = self.store.execution(&at.scope, execution).await?;
                ours |= row.is_some_and(|row| row.sandbox == at.sandbox && row.actor.is_none());
            }
            if !ours {
                return Ok(());
            }
            if since.elapsed() > LEFT_OVER {
                let message = "an earlier program in the sandbox does not end";
                return Err(StepError::transient(StepCode::StillRunning, message));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}
