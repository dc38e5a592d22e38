//! Who asks.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Path};
use coffer_core::SandboxId;
use coffer_store::{ProjectScope, Secret};
use http::request::Parts;
use http::{HeaderMap, StatusCode, header};

use super::App;
use super::error::ApiError;
use crate::fleet::Record;

/// A request that showed a valid API key.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) scope: ProjectScope,
    /// The key that was shown.
    pub(crate) key: Secret,
}

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let refused = |message| ApiError::new(StatusCode::UNAUTHORIZED, message);
        let key = shown_key(&parts.headers)
            .ok_or_else(|| refused("no API key; send one as the header X-API-KEY"))?;
        let known = app.store.authenticate(key).await.map_err(ApiError::store)?;
        let principal = known.ok_or_else(|| refused("invalid API key"))?;
        Ok(Self { scope: principal.scope, key: Secret::new(key) })
    }
}

/// `X-API-KEY`, or `Authorization: Bearer`.
fn shown_key(headers: &HeaderMap) -> Option<&str> {
    if let Some(key) = headers.get("x-api-key") {
        return key.to_str().ok();
    }
    let (scheme, key) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

/// The sandbox that the path names, if the caller may see it.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) record: Arc<Record>,
    /// The id as the caller wrote it, for messages.
    pub(crate) id: String,
}

impl FromRequestParts<Arc<App>> for Named {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let NamedId { id, text, caller } = NamedId::from_request_parts(parts, app).await?;
        let record = app.fleet.find(caller.scope.project(), id);
        let record = record.ok_or_else(|| ApiError::no_sandbox(&text))?;
        Ok(Self { record, id: text })
    }
}

/// The id in the path, of a sandbox that may be over.
#[derive(Debug)]
pub(crate) struct NamedId {
    pub(crate) id: SandboxId,
    pub(crate) text: String,
    pub(crate) caller: Caller,
}

impl FromRequestParts<Arc<App>> for NamedId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let Path(text) = Path::<String>::from_request_parts(parts, app)
            .await
            .map_err(|_| ApiError::bad_request("the sandbox id in the path is not text"))?;
        // Old clients append what was called the client id.
        let id = text.split('-').next().unwrap_or_default();
        let id = id.parse().map_err(|_| ApiError::no_sandbox(&text))?;
        Ok(Self { id, text, caller })
    }
}
