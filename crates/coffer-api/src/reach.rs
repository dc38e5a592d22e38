//! What a sandbox may reach, what it has, and what it was refused.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::network::{Policy, Refusal, Refusals, Traffic};
use coffer_wire::e2b::NetworkUpdate;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::app::App;
use super::auth::{Named, Read, Write};
use super::body::Checked;
use super::error::ApiError;
use super::query::Query;
use coffer_api_types::ErrorShape;
use coffer_core::Code;
use coffer_fleet::Record;
use coffer_fleet::network;

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Reach {
    #[schema(value_type = PolicyShape)]
    policy: Policy,
    /// As of the newest sample, some seconds ago at the most.
    #[schema(value_type = TrafficShape)]
    traffic: Traffic,
    /// The latest, oldest first.
    #[schema(value_type = Vec<RefusalShape>)]
    refusals: Vec<Refusal>,
    /// How many there were in all; also what to ask `after`, the next time.
    total: u64,
    /// How many of those asked for are no longer kept.
    forgotten: u64,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ReachQuery {
    /// Only the refusals after that one.
    after: Option<u64>,
}

/// What a sandbox may reach: a base, and lists of exceptions, of which the allow list wins.
#[derive(Debug, ToSchema)]
#[schema(as = Policy)]
#[expect(dead_code, reason = "describes a type of another crate")]
pub(super) struct PolicyShape {
    /// `none`, `web` (ports 80 and 443) or `public`.
    #[schema(example = "web")]
    base: String,
    /// Names, `*.`names, addresses and blocks, each with `:port` or `:from-to` where not all are meant.
    #[schema(example = json!(["*.example.com:22"]))]
    allow: Option<Vec<String>>,
    deny: Option<Vec<String>>,
    /// Headers that are put into requests to named hosts on their way out.
    headers: Option<Vec<HeaderRuleShape>>,
}

/// Headers for some hosts. TLS to them is opened on the way out, under an authority that sandboxes trust.
#[derive(Debug, ToSchema)]
#[schema(as = HeaderRule)]
#[expect(dead_code, reason = "describes a type of another crate")]
pub(super) struct HeaderRuleShape {
    /// Names or `*.` and a name, with `:port` where HTTPS is not at 443.
    #[schema(example = json!(["api.example.com"]), min_items = 1, max_items = 32)]
    hosts: Vec<String>,
    /// Values may refer to secrets.
    #[schema(example = json!({"Authorization": "Bearer ${secret:NAME}"}))]
    headers: std::collections::BTreeMap<String, String>,
    /// Also put them into plain HTTP at port 80; not by default. Refused for a secret that is limited to hosts, unless
    /// the secret itself allows it.
    plain_http: Option<bool>,
}

/// A refused connection or question.
#[derive(Debug, ToSchema)]
#[schema(as = Refusal)]
#[expect(dead_code, reason = "describes a type of another crate")]
struct RefusalShape {
    sequence: u64,
    at_ms: i64,
    /// `connection`, `cut` (it was open when the policy changed) or `question`.
    kind: String,
    name: Option<String>,
    address: Option<String>,
    port: Option<u16>,
    #[schema(example = "never:private")]
    rule: String,
}

/// What went through.
#[derive(Debug, ToSchema)]
#[schema(as = Traffic)]
#[expect(dead_code, reason = "describes a type of another crate")]
struct TrafficShape {
    sent_bytes: u64,
    received_bytes: u64,
    open: u64,
    opened: u64,
    failed: u64,
    questions: u64,
    refused: u64,
}

async fn reach(app: &App, record: &Record, id: &str, after: u64) -> Result<Json<Reach>, ApiError> {
    let policy = record.row().network.policy;
    let refusals = app.fleet.refusals(record, after).await;
    let Refusals { refusals, total, forgotten } =
        refusals.map_err(|error| ApiError::fleet(error.into(), id))?;
    let traffic = record.reported().traffic;
    Ok(Json(Reach { policy: policy.shown(), traffic, refusals, total, forgotten }))
}

/// What a sandbox may reach, what it sent and received, and what it was refused.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/network", tag = "sandboxes",
    params(("id" = String, Path), ReachQuery),
    responses((status = 200, body = Reach), (status = 501, body = ErrorShape))
)]
pub(super) async fn show(
    State(app): State<Arc<App>>,
    named: Named<Read>,
    Query(query): Query<ReachQuery>,
) -> Result<Json<Reach>, ApiError> {
    reach(&app, &named.record, &named.id, query.after.unwrap_or(0)).await
}

/// Replaces what a running sandbox may reach, and cuts the connections that this forbids.
#[utoipa::path(
    put, path = "/api/v1/sandboxes/{id}/network", tag = "sandboxes", params(("id" = String, Path)),
    request_body = PolicyShape,
    responses((status = 200, body = Reach), (status = 409, body = ErrorShape), (status = 501, body = ErrorShape))
)]
pub(super) async fn replace(
    State(app): State<Arc<App>>,
    named: Named<Write>,
    Checked(policy): Checked<Policy>,
) -> Result<Json<Reach>, ApiError> {
    let update = NetworkUpdate { policy: Some(policy), ..NetworkUpdate::default() };
    let update = network::read_update(update);
    let update = update.map_err(|error| ApiError::of(Code::Invalid, error.to_string()))?;
    let set = app.fleet.set_network(named.record.clone(), update).await;
    set.map_err(|error| ApiError::fleet(error, &named.id))?;
    reach(&app, &named.record, &named.id, 0).await
}
