//! "Test it": whether an agent's program starts, signs in and answers.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_api_types::ErrorShape;
use coffer_api_types::agents::AgentTest;
use coffer_core::{AgentId, Code, FailureCode, Refusal, StepCode};

use crate::app::App;
use crate::auth::{Caller, Id, Write};
use crate::error::ApiError;
use crate::v1::board::amount;

/// When a client should look again for a template that is being built.
const AGAIN_S: u32 = 3;

/// Tests an agent: starts a sandbox of its template, asks its program for its version and for one word, and destroys the
/// sandbox. Takes up to three minutes, and costs what the model does. An agent that does not work is an answer too:
/// `ok` is false, and the message says why.
#[utoipa::path(
    post, path = "/api/v1/agents/{agent}/test", tag = "agents", params(("agent" = String, Path)),
    responses(
        (status = 200, body = AgentTest),
        (status = 409, body = ErrorShape, description = "the agent cannot be tested now")
    )
)]
pub(in crate::v1) async fn run(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Id(agent): Id<AgentId>,
) -> Result<Json<AgentTest>, ApiError> {
    let trial = app.bench.try_agent(caller.scope, agent).await.map_err(|error| match error.code {
        FailureCode::Step(StepCode::NoAgent) => ApiError::nothing("agent", agent),
        FailureCode::Refused(code @ Code::TemplateNotBuilt) => {
            ApiError::from(Refusal::new(code, error.message)).retry_after(AGAIN_S)
        }
        FailureCode::Refused(code) => Refusal::new(code, error.message).into(),
        FailureCode::Step(_) | FailureCode::Unknown(_) => {
            ApiError::conflict(error.message).details(serde_json::json!({"reason": error.code}))
        }
    })?;
    let (code, message) = trial.failure.unzip();
    let count = |count: Option<u64>| count.map(|count| i64::try_from(count).unwrap_or(i64::MAX));
    Ok(Json(AgentTest {
        ok: code.is_none(),
        code: code.map(|code| code.to_string()),
        message,
        template: trial.template,
        version: trial.version,
        model: trial.model,
        answer: trial.answer,
        input_tokens: count(trial.tokens.map(|tokens| tokens.input)),
        output_tokens: count(trial.tokens.map(|tokens| tokens.output)),
        cost: trial.cost_nanos.map(amount),
        took_ms: trial.took_ms,
    }))
}
