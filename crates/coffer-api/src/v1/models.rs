//! Calls of models through the gateway, their prices, and the project's rules for them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::ModelCallId;
use coffer_core::model::ModelPolicy;
use coffer_store::{ModelCallFilter, ModelCallRow, VersionedModelPolicy};
use http::{HeaderMap, HeaderValue, header};

use super::page::Part;
use super::projects::{changed_meanwhile, wanted_version};
use crate::app::App;
use crate::auth::{Admin, Caller, Id, Read};
use crate::body::Checked;
use crate::error::ApiError;
use crate::query::Query;
use coffer_api_types::models::{
    ModelCall, ModelCallDetail, ModelCallQuery, ModelPolicyShape, ModelPrice, ModelPrices, ModelTry,
};
use coffer_api_types::{ErrorShape, Page, PageQuery};
use coffer_core::clock::rfc3339;

fn shown(row: ModelCallRow) -> ModelCall {
    let money = |nanos: i64| nanos as f64 / 1e9;
    ModelCall {
        id: row.id.to_string(),
        sandbox_id: row.sandbox.to_string(),
        agent_id: row.agent.map(|agent| agent.to_string()),
        task_id: row.task.map(|task| task.to_string()),
        run_id: row.run.map(|run| run.to_string()),
        provider: row.provider,
        kind: row.kind,
        model: row.model,
        answered_by: row.answered_by,
        outcome: row.outcome,
        status: row.status,
        input_tokens: row.input_tokens,
        cached_tokens: row.cached_tokens,
        cache_write_tokens: row.cache_write_tokens,
        output_tokens: row.output_tokens,
        cost: row.cost_nanos.map(money),
        reserved: money(row.reserved_nanos),
        estimated: row.is_estimated,
        began_at: rfc3339(row.began_ms),
        first_byte_ms: row.first_byte_ms.map(|at| (at - row.began_ms).max(0)),
        duration_ms: row.ended_ms.map(|at| (at - row.began_ms).max(0)),
        error: row.error,
        tries: row.tries.into_iter().map(try_shown).collect(),
    }
}

fn try_shown(one: coffer_core::model::ModelTry) -> ModelTry {
    ModelTry {
        place: one.place,
        model: one.model,
        outcome: one.outcome.as_str().to_string(),
        status: one.status.map(i64::from),
        duration_ms: one.duration_ms,
    }
}

/// Lists calls of models through the gateway, newest first.
#[utoipa::path(
    get, path = "/api/v1/model-calls", tag = "models", params(PageQuery, ModelCallQuery),
    responses((status = 200, body = Page<ModelCall>))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Query(page): Query<PageQuery>,
    Query(query): Query<ModelCallQuery>,
) -> Result<Json<Page<ModelCall>>, ApiError> {
    let part: Part<ModelCallId> = Part::of(page)?;
    let filter = ModelCallFilter {
        task: query.task_id,
        run: query.run_id,
        agent: query.agent_id,
        sandbox: query.sandbox_id,
        before: part.after,
        limit: part.to_fetch(),
    };
    let rows = app.store.model_calls(&caller.scope, &filter).await.map_err(ApiError::store)?;
    Ok(Json(part.page(rows, |row| row.id.to_string(), shown)))
}

/// A call of a model, with its bodies if the project keeps them.
#[utoipa::path(
    get, path = "/api/v1/model-calls/{call}", tag = "models", params(("call" = String, Path)),
    responses((status = 200, body = ModelCallDetail))
)]
pub(super) async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(call): Id<ModelCallId>,
) -> Result<Json<ModelCallDetail>, ApiError> {
    let found = app.store.model_call(&caller.scope, call).await.map_err(ApiError::store)?;
    let (row, bodies) = found.ok_or_else(|| ApiError::nothing("model call", call))?;
    let (request, answer) = bodies.map(|bodies| (bodies.request, bodies.answer)).unzip();
    Ok(Json(ModelCallDetail { call: shown(row), request, answer }))
}

fn tagged(policy: VersionedModelPolicy) -> (HeaderMap, Json<ModelPolicy>) {
    let tag = HeaderValue::try_from(format!("\"{}\"", policy.version)).expect("digits in quotes");
    (HeaderMap::from_iter([(header::ETAG, tag)]), Json(policy.policy))
}

/// The project's rules for models.
#[utoipa::path(
    get, path = "/api/v1/model-policy", tag = "models",
    responses((status = 200, body = ModelPolicyShape, headers(("ETag" = String))))
)]
pub(super) async fn policy(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
) -> Result<(HeaderMap, Json<ModelPolicy>), ApiError> {
    Ok(tagged(app.store.model_policy(&caller.scope).await.map_err(ApiError::store)?))
}

/// Replaces the project's rules for models. They apply to every call that begins after the answer.
#[utoipa::path(
    put, path = "/api/v1/model-policy", tag = "models", request_body = ModelPolicyShape,
    params(("If-Match" = Option<String>, Header, description = "the ETag that the change is meant for")),
    responses((status = 200, body = ModelPolicyShape, headers(("ETag" = String))), (status = 412, body = ErrorShape))
)]
pub(super) async fn set_policy(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    headers: HeaderMap,
    Checked(policy): Checked<ModelPolicy>,
) -> Result<(HeaderMap, Json<ModelPolicy>), ApiError> {
    if !policy.is_small() {
        return Err(ApiError::invalid("allow", "may have at most 200 entries"));
    }
    app.models.check_fallbacks(&policy).map_err(|why| ApiError::invalid("fallbacks", why))?;
    let version = wanted_version(&headers)?;
    let set = app.store.set_model_policy(&caller.scope, version, policy).await.map_err(ApiError::store)?;
    Ok(tagged(set.ok_or_else(changed_meanwhile)?))
}

/// The prices that calls of models are charged at.
#[utoipa::path(
    get, path = "/api/v1/model-prices", tag = "models", responses((status = 200, body = ModelPrices))
)]
pub(super) async fn prices(State(app): State<Arc<App>>, _: Caller<Read>) -> Json<ModelPrices> {
    let table = app.models.prices();
    let models = table.models.iter().map(|(model, price)| ModelPrice {
        model: model.clone(),
        input: price.input,
        cached: price.cached.unwrap_or(price.input),
        output: price.output,
    });
    Json(ModelPrices {
        as_of: table.as_of.clone(),
        currency: table.currency.clone(),
        sources: table.sources.clone(),
        models: models.collect(),
    })
}
