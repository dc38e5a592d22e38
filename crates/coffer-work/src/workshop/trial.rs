//! "Test it": starts an agent's program in a sandbox of its own and asks it for one word.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coffer_core::agent::{AgentDefinition, AgentLimits, Job, Tokens};
use coffer_core::{AgentId, Code, FailureCode, RunId, StepCode};
use coffer_flow::StepError;
use coffer_flow::task::Halt;
use coffer_store::ProjectScope;
use futures_util::FutureExt as _;
use tracing::Instrument as _;

use super::agent::Place;
use super::heard::Progress;
use super::login::TEST_KEEPS_MS;
use super::{AgentOrder, SandboxOrder, Station, StockState, Workbench};

const PROMPT: &str = "Answer with the word ok. Use no tools and change no files.";
/// How long the program may take to answer.
const ANSWER_WITHIN_S: i64 = 150;
const PREPARE_WITHIN: Duration = Duration::from_secs(30);
/// Some programs want to work in a repository.
const DIRECTORY: &str = "/tmp/coffer-agent-test";
const PREPARE: &str = r#"mkdir -p "$1" && cd "$1" && git init -q . 2>/dev/null; test -d "$1""#;
const LONGEST_ANSWER: usize = 500;

/// The result of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trial {
    /// Why it does not work, if it does not.
    pub failure: Option<(FailureCode, String)>,
    pub template: String,
    /// What the program says about its version.
    pub version: Option<String>,
    /// The model, as the program reports it.
    pub model: Option<String>,
    pub answer: Option<String>,
    pub tokens: Option<Tokens>,
    pub cost_nanos: Option<i64>,
    /// From the start of the sandbox to the answer.
    pub took_ms: i64,
}

impl Workbench {
    /// Tests an agent. Runs to its end, also if the caller no longer waits: its sandbox must go.
    pub async fn try_agent(
        self: &Arc<Self>,
        scope: ProjectScope,
        agent: AgentId,
    ) -> Result<Trial, StepError> {
        let (_, definition) = self.agent(&scope, agent).await?;
        match self.template_state(&scope, definition.template.as_deref(), true).await? {
            StockState::Ready => {}
            StockState::Building(doing) => {
                let message = format!("its template is being built: {doing}");
                return Err(StepError::transient(Code::TemplateNotBuilt, message));
            }
            StockState::Failed(why) => {
                let message = format!("its template could not be built: {why}");
                return Err(StepError::fatal(StepCode::TemplateFailed, message));
            }
        }
        let bench = self.clone();
        let trial = async move { bench.trial(scope, agent, definition).await };
        let done = self.fleet.spawn_step(trial.in_current_span()).await;
        done.unwrap_or_else(|_| Err(StepError::fatal(StepCode::Panicked, "the test ended unexpectedly")))
    }

    async fn trial(
        &self,
        scope: ProjectScope,
        agent: AgentId,
        definition: AgentDefinition,
    ) -> Result<Trial, StepError> {
        let since = Instant::now();
        let mut trial = Trial {
            failure: None,
            template: definition.template.clone().unwrap_or_else(|| self.default_template.clone()),
            version: None,
            model: None,
            answer: None,
            tokens: None,
            cost_nanos: None,
            took_ms: 0,
        };
        // As a run's, so that users' own keys never collide with it.
        let run = RunId::generate();
        let key = format!("run:{run}/test");
        let quiet = |_| async {}.boxed();
        self.take_logins(&scope, &definition, run, Some(TEST_KEEPS_MS), &quiet).await?;
        let order = SandboxOrder {
            key: &key,
            agent: Some(agent),
            task: None,
            template: definition.template.as_deref(),
            secrets: &self.secrets_inside(&definition),
            env: BTreeMap::new(),
            metadata: BTreeMap::from([("agent_test".to_string(), agent.to_string())]),
            size: definition.size(self.fleet.usual_limits()),
        };
        let sandbox = self.ensure_sandbox(scope, order).await?;
        let at = Station { scope, sandbox, actor: format!("agent:{agent}") };
        let tried = self.ask_for_a_word(&at, &key, agent, definition, &mut trial).await;
        self.release_logins(&scope, run).await?;
        if let Err(error) = self.end_sandbox(&at).await {
            tracing::warn!(sandbox.id = %sandbox, "could not destroy the sandbox of a test yet: {error}");
        }
        if let Err(error) = tried {
            trial.failure = Some((error.code, error.message));
        }
        trial.took_ms = i64::try_from(since.elapsed().as_millis()).unwrap_or(i64::MAX);
        Ok(trial)
    }

    async fn ask_for_a_word(
        &self,
        at: &Station,
        key: &str,
        agent: AgentId,
        definition: AgentDefinition,
        trial: &mut Trial,
    ) -> Result<(), StepError> {
        let words = ["/bin/sh", "-c", PREPARE, "sh", DIRECTORY].map(str::to_string).to_vec();
        self.small(at, words, None, PREPARE_WITHIN).await?;
        let timeout_s = Some(definition.limits.timeout_s.unwrap_or(ANSWER_WITHIN_S).min(ANSWER_WITHIN_S));
        let definition = AgentDefinition {
            limits: AgentLimits { timeout_s, ..definition.limits },
            working_directory: None,
            prompt: None,
            ..definition
        };
        if let Some(recipe) = definition.recipe() {
            // If it cannot even be started, the start below says why.
            trial.version = self.version_of(at, recipe.program).await.unwrap_or_default();
        }
        let order = AgentOrder {
            key: &format!("{key}-agent"),
            place: Place::Directory(DIRECTORY),
            definition: &definition,
            job: Job { title: PROMPT, ..Job::default() },
            env: BTreeMap::from([("COFFER_SANDBOX_ID".to_string(), at.sandbox.to_string())]),
            turn: None,
            agent,
            task: None,
            run: None,
            allowance: None,
            run_allowance: None,
        };
        let work = self.start_agent(at, order).await?;
        let quiet = |_: Progress| async {}.boxed();
        let turn = self.await_agent(at, &work, None, None, &quiet).await?;
        trial.model = turn.report.model.clone();
        trial.tokens = turn.report.tokens;
        trial.cost_nanos = turn.report.cost_nanos;
        trial.answer = turn.report.summary.as_deref().map(|text| {
            let text = text.trim();
            text[..text.floor_char_boundary(LONGEST_ANSWER)].to_string()
        });
        if let Some(Halt::Budget { message, .. }) = &turn.halted {
            return Err(StepError::fatal(Code::BudgetExceeded, message));
        }
        if let Some(why) = turn.failed() {
            return Err(StepError::fatal(why.code, why.message));
        }
        if trial.answer.as_deref().is_none_or(str::is_empty) {
            return Err(StepError::fatal(StepCode::AgentFailed, "it ended without an answer"));
        }
        Ok(())
    }
}
