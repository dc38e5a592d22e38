//! The command policy: which commands may be started.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::command::{CommandPolicy, Judged};
use coffer_store::VersionedPolicy;
use http::{HeaderMap, HeaderValue, header};

use super::projects::{changed_meanwhile, wanted_version};
use crate::app::App;
use crate::auth::{Admin, Caller, Read};
use crate::body::Checked;
use crate::error::ApiError;
use coffer_api_types::ErrorShape;
use coffer_api_types::policy::{Answer, CommandWords, JudgedShape, PolicyShape, Question};

fn tagged(policy: VersionedPolicy) -> (HeaderMap, Json<CommandPolicy>) {
    let tag = HeaderValue::try_from(format!("\"{}\"", policy.version)).expect("digits in quotes");
    (HeaderMap::from_iter([(header::ETAG, tag)]), Json(policy.policy))
}

/// The project's rules for commands.
#[utoipa::path(
    get, path = "/api/v1/policy", tag = "policy",
    responses((status = 200, body = PolicyShape, headers(("ETag" = String))))
)]
pub(super) async fn show(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
) -> Result<(HeaderMap, Json<CommandPolicy>), ApiError> {
    Ok(tagged(app.store.command_policy(&caller.scope).await.map_err(ApiError::store)?))
}

/// Replaces the project's rules for commands. They apply to every command that starts after the answer.
#[utoipa::path(
    put, path = "/api/v1/policy", tag = "policy", request_body = PolicyShape,
    params(("If-Match" = Option<String>, Header, description = "the ETag that the change is meant for")),
    responses((status = 200, body = PolicyShape, headers(("ETag" = String))), (status = 412, body = ErrorShape))
)]
pub(super) async fn replace(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    headers: HeaderMap,
    Checked(policy): Checked<CommandPolicy>,
) -> Result<(HeaderMap, Json<CommandPolicy>), ApiError> {
    policy.check().map_err(|error| ApiError::invalid("rules", format!("are invalid: {error}")))?;
    let version = wanted_version(&headers)?;
    let set = app.store.set_command_policy(&caller.scope, version, policy).await.map_err(ApiError::store)?;
    let set = set.ok_or_else(changed_meanwhile)?;
    app.commands.learn(caller.scope.project(), set.clone());
    Ok(tagged(set))
}

/// Checks a command and returns the verdict and its rule; starts nothing.
#[utoipa::path(
    post, path = "/api/v1/policy/check", tag = "policy", request_body = Question,
    responses((status = 200, body = Answer))
)]
pub(super) async fn check(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Checked(question): Checked<Question>,
) -> Result<Json<Answer>, ApiError> {
    let words = match question.command {
        CommandWords::Line(line) => vec!["/bin/bash".into(), "-l".into(), "-c".into(), line],
        CommandWords::Words(words) => words,
    };
    let policy = match question.policy {
        Some(policy) => policy,
        None => app.store.command_policy(&caller.scope).await.map_err(ApiError::store)?.policy,
    };
    policy.check().map_err(|error| ApiError::invalid("policy.rules", format!("are invalid: {error}")))?;
    let judgement = policy.judge(&words);
    let refused = policy.refusal(&judgement);
    let shown = |judged: Judged| JudgedShape {
        words: judged.words,
        effect: judged.effect.as_str().to_string(),
        rule: judged.rule,
    };
    Ok(Json(Answer {
        allowed: refused.is_none(),
        reason: refused.as_ref().map(ToString::to_string),
        rule: refused.as_ref().and_then(coffer_core::command::Refused::rule),
        commands: judgement.commands.into_iter().map(shown).collect(),
    }))
}
