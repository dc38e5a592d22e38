//! Forks, and the lineage of sandboxes.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_store::Relative;
use http::{HeaderMap, StatusCode};

use super::sandboxes::{self, usual_timeout_s};
use crate::app::App;
use crate::auth::{Caller, Named, NamedId, Read, Write};
use crate::body::MaybeChecked;
use crate::check;
use crate::error::ApiError;
use crate::snapshots::MOST_CHILDREN;
use coffer_api_types::ErrorShape;
use coffer_api_types::forks::{Child, ChildError, Family, Fork, NewFork, Node};
use coffer_core::clock::rfc3339;
use coffer_fleet::{FleetError, ForkSpec, MemoryWish};

/// Most sandboxes of a lineage in one answer.
const MOST_RELATIVES: u32 = 1000;

/// Creates forks: sandboxes that start from the current state of a running one. The source stays as it is.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/fork", tag = "snapshots", request_body = Option<NewFork>,
    params(
        ("id" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "the same key and body create the same forks")
    ),
    responses(
        (status = 201, body = Fork), (status = 402, body = ErrorShape, description = "a budget is spent"),
        (status = 409, body = ErrorShape, description = "it is paused or changing, or its processes hold secrets"),
        (status = 501, body = ErrorShape, description = "`memory` is true and cannot be saved")
    )
)]
pub(super) async fn fork(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    named: Named<Write>,
    headers: HeaderMap,
    MaybeChecked(new): MaybeChecked<NewFork>,
) -> Result<(StatusCode, Json<Fork>), ApiError> {
    // The sandbox is part of the request.
    let idempotency = crate::check::idempotency_of(&headers, &caller.actor(), &(named.record.id, &new))?;
    let count = new.count.unwrap_or(1);
    if !(1..=MOST_CHILDREN).contains(&count) {
        return Err(ApiError::invalid("count", format!("must be between 1 and {MOST_CHILDREN}")));
    }
    let project = app.limiter.of(named.record.project);
    let timeout_ms = app.policy.check(new.timeout_s.unwrap_or_else(|| usual_timeout_s(&app, &project)));
    check::metadata(&new.metadata)?;
    check::env(&new.env)?;
    check::env(&new.secrets)?;
    if let Some(both) = new.secrets.keys().find(|name| new.env.contains_key(*name)) {
        return Err(ApiError::invalid("secrets", format!("has '{both}', which env has too")));
    }
    let spec = ForkSpec {
        count,
        timeout_ms: timeout_ms.map_err(|error| ApiError::invalid("timeout_s", error.to_string()))?,
        wish: MemoryWish { memory: new.memory, with_secrets: new.inherit_secrets },
        task: None,
        idle_s: None,
        sizes: Vec::new(),
        metadata: new.metadata,
        env_vars: new.env,
        secrets: new.secrets,
        idempotency,
    };
    let forked = app.fleet.fork(caller.scope, named.record, spec).await;
    let forked = forked.map_err(|error| ApiError::fleet(error, &named.id))?;
    let refused = |error: FleetError| {
        let (code, message, hint) = ApiError::fleet(error, &named.id).into_parts();
        ChildError { code, message, hint }
    };
    let children = forked.children.into_iter().map(|child| match child {
        Ok(row) => Child { sandbox: Some(sandboxes::shown(&app, row)), error: None },
        Err(error) => Child { sandbox: None, error: Some(refused(error)) },
    });
    let (memory, note) = (forked.memory, forked.note);
    Ok((StatusCode::CREATED, Json(Fork { children: children.collect(), memory, note })))
}

/// The lineage of a sandbox: its ancestors, and all that started from it or from them.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/lineage", tag = "snapshots", params(("id" = String, Path)),
    responses((status = 200, body = Family))
)]
pub(super) async fn lineage(
    State(app): State<Arc<App>>,
    named: NamedId<Read>,
) -> Result<Json<Family>, ApiError> {
    app.fleet.recorded().await;
    let lineage = app.store.lineage(&named.caller.scope, named.id, MOST_RELATIVES).await;
    let lineage = lineage.map_err(ApiError::store)?.ok_or_else(|| ApiError::no_sandbox(&named.text))?;
    let parents: BTreeMap<_, _> = lineage
        .relatives
        .iter()
        .filter_map(|one| Some((one.id, one.origin.filter(|_| one.depth > 0)?.parent)))
        .collect();
    let mut ancestors = Vec::new();
    let mut at = named.id;
    while let Some(parent) = parents.get(&at) {
        ancestors.push(parent.to_string());
        at = *parent;
    }
    ancestors.reverse();
    let root = lineage.relatives.first().map_or(named.id, |root| root.id);
    Ok(Json(Family {
        sandbox_id: named.id.to_string(),
        root_id: root.to_string(),
        ancestors,
        nodes: lineage.relatives.into_iter().map(node).collect(),
        truncated: lineage.truncated,
    }))
}

fn node(one: Relative) -> Node {
    let origin = match one.origin {
        None => "created",
        Some(origin) if origin.fork_position.is_some() => "fork",
        Some(_) => "snapshot",
    };
    Node {
        id: one.id.to_string(),
        parent_id: one.origin.filter(|_| one.depth > 0).map(|origin| origin.parent.to_string()),
        depth: one.depth,
        origin: origin.to_string(),
        snapshot_id: one.origin.map(|origin| origin.snapshot.to_string()),
        fork_position: one.origin.and_then(|origin| origin.fork_position),
        state: one.state.as_str().to_string(),
        template: one.template,
        created_at: rfc3339(one.created_ms),
    }
}
