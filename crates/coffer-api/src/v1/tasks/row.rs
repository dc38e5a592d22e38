//! A task on record: found for a caller, and shown.

use axum::Json;
use coffer_core::TaskId;
use coffer_store::TaskRow;
use http::{HeaderMap, HeaderValue, header};

use super::shape::shown;
use crate::app::App;
use crate::auth::{Caller, Need};
use crate::error::ApiError;
use coffer_api_types::tasks::Task;

/// Who asks, for the records.
pub(super) fn actor<N>(caller: &Caller<N>) -> String {
    caller.actor()
}

pub(super) fn tagged(task: TaskRow) -> (HeaderMap, Json<Task>) {
    let tag = HeaderValue::try_from(format!("\"{}\"", task.version)).expect("digits in quotes");
    (HeaderMap::from_iter([(header::ETAG, tag)]), Json(shown(task)))
}

pub(in crate::v1) async fn found(
    app: &App,
    caller: &Caller<impl Need>,
    task: TaskId,
) -> Result<TaskRow, ApiError> {
    let row = app.store.task(&caller.scope, task).await.map_err(ApiError::store)?;
    row.ok_or_else(|| ApiError::nothing("task", task))
}
