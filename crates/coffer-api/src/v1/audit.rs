//! The audit log.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::AuditId;
use coffer_store::{AuditFilter, AuditRecord};

use super::page::Part;
use crate::app::App;
use crate::auth::{Admin, Caller};
use crate::error::ApiError;
use crate::query::Query;
use coffer_api_types::audit::{AuditQuery, Audited};
use coffer_api_types::{Page, PageQuery};
use coffer_core::clock::rfc3339;

fn shown(record: AuditRecord) -> Audited {
    Audited {
        id: record.id.to_string(),
        actor: record.actor,
        action: record.action,
        subject: record.subject,
        status: record.status,
        code: record.code,
        request_id: record.request_id,
        at: rfc3339(record.at_ms),
    }
}

/// Lists the audit log of the project, newest first.
#[utoipa::path(
    get, path = "/api/v1/audit", tag = "audit", params(PageQuery, AuditQuery),
    responses((status = 200, body = Page<Audited>))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    Query(page): Query<PageQuery>,
    Query(query): Query<AuditQuery>,
) -> Result<Json<Page<Audited>>, ApiError> {
    let part: Part<AuditId> = Part::of(page)?;
    let filter = AuditFilter {
        before: part.after,
        actor: query.actor,
        action: query.action,
        subject: query.subject,
        limit: part.to_fetch(),
    };
    let records = app.store.audit(&caller.scope, &filter).await.map_err(ApiError::store)?;
    Ok(Json(part.page(records, |record| record.id.to_string(), shown)))
}
