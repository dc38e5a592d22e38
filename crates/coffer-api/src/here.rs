//! The address of this server as its clients see it, and the check for repositories of other installations.

use coffer_core::Code;
use coffer_store::RepositoryRow;
use http::HeaderMap;

use crate::app::App;
use crate::error::ApiError;

/// Refuses a repository that another installation stores.
pub(crate) fn check_keeper(app: &App, row: &RepositoryRow) -> Result<(), ApiError> {
    match app.store.repository_elsewhere(row) {
        None => Ok(()),
        Some(holder) => {
            let message =
                format!("repository '{}' is kept by installation '{holder}', not by this one", row.name);
            Err(ApiError::of(Code::OtherInstallation, message).hint("ask the server of that installation"))
        }
    }
}

/// The address at which the client reached this server.
pub(crate) fn base_url(headers: &HeaderMap) -> Option<String> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let scheme = text("x-forwarded-proto").filter(|&scheme| scheme == "https").unwrap_or("http");
    Some(format!("{scheme}://{}", text("host")?))
}
