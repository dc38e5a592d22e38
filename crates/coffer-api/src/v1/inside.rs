//! Connects our own API to a sandbox's agentd.

use std::sync::Arc;

use coffer_fleet::Record;
use coffer_fleet::exec::reach;
use coffer_guest::{Guest, GuestError, Wake};

use crate::app::App;
use crate::error::ApiError;
use coffer_api_types::exec::WatchQuery;

/// The agentd of a sandbox, which is resumed first if its settings say so.
pub(super) async fn guest(app: &App, record: &Arc<Record>, id: &str) -> Result<Guest, ApiError> {
    guest_by(app, record, id, Wake::ByPolicy).await
}

/// The agentd of a sandbox; with `watch`, without waking it or counting as activity.
pub(super) async fn guest_for(
    app: &App,
    record: &Arc<Record>,
    id: &str,
    watch: &WatchQuery,
) -> Result<Guest, ApiError> {
    let wake = if watch.watch == Some(true) { Wake::LooksOn } else { Wake::ByPolicy };
    guest_by(app, record, id, wake).await
}

async fn guest_by(app: &App, record: &Arc<Record>, id: &str, wake: Wake) -> Result<Guest, ApiError> {
    reach(&app.fleet, record, wake).await.map_err(|error| ApiError::exec(error, id))
}

/// The error of a failed call to agentd.
pub(super) fn refusal(error: GuestError) -> ApiError {
    ApiError::exec(error, "")
}
