//! Waits for the template of an agent, if it comes with the program and is not built yet.

use std::time::{Duration, Instant};

use coffer_core::agent::AgentProgress;
use coffer_core::{StepCode, TemplateRef};
use coffer_flow::StepError;
use coffer_store::ProjectScope;
use futures_util::future::BoxFuture;

use super::Workbench;
use super::stock::StockState;

/// How long an attempt waits: for its own build, and for one or two that come before it.
const WITHIN: Duration = Duration::from_secs(75 * 60);
const LOOK: Duration = Duration::from_secs(1);
const LONGEST_TOLD: usize = 1000;

/// Called with what is being waited for.
pub(super) type TellWait<'a> = &'a (dyn Fn(AgentProgress) -> BoxFuture<'a, ()> + Send + Sync);

impl Workbench {
    /// Whether a template can be used, or how far it is. Those of the host and of the project can.
    pub async fn template_state(
        &self,
        scope: &ProjectScope,
        template: Option<&str>,
        ask: bool,
    ) -> Result<StockState, StepError> {
        let Some(name) = template else { return Ok(StockState::Ready) };
        let reference = name.parse::<TemplateRef>();
        let reference = reference.map_err(|error| StepError::fatal(StepCode::Template, error.to_string()))?;
        if !self.fleet.is_shared(&reference.name) {
            return Ok(StockState::Ready);
        }
        // A project that had such a template before the catalogue did keeps it.
        let found = self.fleet.base_called(scope, &reference, Some(false)).await;
        if found.map_err(|error| self.trouble(scope.project(), error))?.is_some() {
            return Ok(StockState::Ready);
        }
        let state = self.stock.state(&reference.name, ask).await;
        state.map_err(|refusal| StepError::transient(refusal.code, refusal.message))
    }

    /// Waits until a template can be used, and tells what it waits for.
    pub(super) async fn await_template(
        &self,
        scope: &ProjectScope,
        template: Option<&str>,
        tell: TellWait<'_>,
    ) -> Result<(), StepError> {
        let (since, mut told) = (Instant::now(), None);
        let name = template.unwrap_or_default();
        let mut state = self.template_state(scope, template, true).await?;
        loop {
            let doing = match state {
                StockState::Ready => return Ok(()),
                StockState::Failed(why) => {
                    let why = &why[..why.floor_char_boundary(LONGEST_TOLD)];
                    let message = format!("template {name} could not be built: {why}");
                    return Err(StepError::fatal(StepCode::TemplateFailed, message));
                }
                StockState::Building(doing) => doing,
            };
            if since.elapsed() > WITHIN {
                let message = format!("template {name} was not built in time: {doing}");
                return Err(StepError::fatal(StepCode::TemplateFailed, message));
            }
            if told.as_ref() != Some(&doing) {
                let doing = &doing[..doing.floor_char_boundary(LONGEST_TOLD)];
                let message = Some(format!("template {name} is being built: {doing}"));
                tell(AgentProgress { message, ..AgentProgress::default() }).await;
            }
            told = Some(doing);
            tokio::time::sleep(LOOK).await;
            // Asked again if the server that was asked is no longer there.
            state = self.template_state(scope, template, false).await?;
        }
    }
}
