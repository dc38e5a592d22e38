//! Which commands may be started.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::command::{CommandPolicy, Effect, Judged};
use coffer_store::VersionedPolicy;
use http::{HeaderMap, HeaderValue, header};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::projects::{changed_meanwhile, wanted_version};
use crate::app::App;
use crate::auth::{Admin, Caller, Read};
use crate::body::Checked;
use crate::error::ApiError;
use coffer_api_types::ErrorShape;

/// Rules for commands: the first that fits decides, else the default. A line for a shell is refused when one of
/// the commands in it is, or when it cannot be told what it runs.
#[derive(Debug, ToSchema)]
#[schema(as = CommandPolicy)]
#[expect(dead_code, reason = "describes a type of another crate")]
pub(super) struct PolicyShape {
    /// For commands that no rule fits: `allow` unless said otherwise.
    default: Option<EffectShape>,
    #[schema(max_items = 100)]
    rules: Option<Vec<RuleShape>>,
}

#[derive(Debug, ToSchema)]
#[schema(as = CommandEffect, rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a type of another crate")]
enum EffectShape {
    Allow,
    Deny,
}

#[derive(Debug, ToSchema)]
#[schema(as = CommandRule)]
#[expect(dead_code, reason = "describes a type of another crate")]
struct RuleShape {
    effect: EffectShape,
    /// The words that a command begins with. `*` in a word stands for any letters, the word `**` for any words.
    #[schema(example = "git push ** --force", max_length = 256)]
    pattern: String,
    /// Told to whoever is refused by it.
    #[schema(max_length = 500)]
    note: Option<String>,
}

/// A command, and what to hold against it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Question {
    /// A line for a shell, or a program with its arguments.
    #[schema(value_type = CommandShape)]
    command: Words,
    /// Another policy than the project's, to try it out.
    #[serde(default)]
    #[schema(value_type = Option<PolicyShape>)]
    policy: Option<CommandPolicy>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Words {
    Line(String),
    Words(Vec<String>),
}

#[derive(Debug, ToSchema)]
#[serde(untagged)]
#[schema(as = CommandWords)]
#[expect(dead_code, reason = "describes what `Words` reads")]
enum CommandShape {
    Line(String),
    Words(Vec<String>),
}

/// What would become of a command.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Answer {
    allowed: bool,
    /// Why not, as whoever asks for it is told.
    reason: Option<String>,
    /// The place of the rule that refuses it, from 0; null where the default does or it cannot be told.
    rule: Option<usize>,
    /// The commands that were found, up to the one that is refused.
    commands: Vec<JudgedShape>,
}

/// What would become of one command of a line.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = JudgedCommand)]
struct JudgedShape {
    words: Vec<String>,
    /// `allow` or `deny`.
    effect: &'static str,
    /// The place of the rule that decides, from 0; null where the default does.
    rule: Option<usize>,
}

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

/// Replaces the project's rules for commands. They hold for every command that starts after the answer.
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
    policy.check().map_err(|error| ApiError::invalid("rules", format!("do not fit: {error}")))?;
    let version = wanted_version(&headers)?;
    let set = app.store.set_command_policy(&caller.scope, version, policy).await.map_err(ApiError::store)?;
    let set = set.ok_or_else(changed_meanwhile)?;
    app.commands.learn(caller.scope.project(), set.clone());
    Ok(tagged(set))
}

/// Tells what would become of a command, and by which rule; starts nothing.
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
        Words::Line(line) => vec!["/bin/bash".into(), "-l".into(), "-c".into(), line],
        Words::Words(words) => words,
    };
    let policy = match question.policy {
        Some(policy) => policy,
        None => app.store.command_policy(&caller.scope).await.map_err(ApiError::store)?.policy,
    };
    policy.check().map_err(|error| ApiError::invalid("policy.rules", format!("do not fit: {error}")))?;
    let judgement = policy.judge(&words);
    let refused = policy.refusal(&judgement);
    let shown = |judged: Judged| JudgedShape {
        words: judged.words,
        effect: Effect::as_str(judged.effect),
        rule: judged.rule,
    };
    Ok(Json(Answer {
        allowed: refused.is_none(),
        reason: refused.as_ref().map(ToString::to_string),
        rule: refused.as_ref().and_then(coffer_core::command::Refused::rule),
        commands: judgement.commands.into_iter().map(shown).collect(),
    }))
}
