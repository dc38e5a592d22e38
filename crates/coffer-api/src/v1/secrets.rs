//! The project's secrets, and the key that they are sealed under.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::network::NamePattern;
use coffer_store::{MOST_SECRETS, RotateError, Secret, SecretError, SecretInfo, SecretName, SecretTerms};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::tasks::named;
use crate::app::App;
use crate::auth::{Admin, Caller, Id, Operating, Read};
use crate::body::Checked;
use crate::context::Context;
use crate::error::ApiError;
use coffer_api_types::ErrorShape;
use coffer_api_types::Page;
use coffer_core::Code;
use coffer_core::clock::rfc3339;

/// What fits into an environment variable.
const LONGEST_VALUE: usize = 64 * 1024;
const MOST_HOSTS: usize = 32;

/// A value for a secret.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewValue {
    /// Text of 1 to 65536 bytes without NUL. It is never shown again.
    #[schema(min_length = 1, max_length = 65_536)]
    value: String,
    /// Makes it good for headers to these hosts alone (names, or `*.` and a name), and for no sandbox's
    /// environment. Left out, one that exists keeps its hosts; `null` makes it good for any.
    #[serde(default, deserialize_with = "named")]
    #[schema(value_type = Option<Vec<String>>, example = json!(["api.example.com"]))]
    hosts: Option<Option<Vec<String>>>,
    /// Lets headers carry it over plain HTTP although it is limited to hosts; everyone on the way can read it then.
    /// Left out, one that exists keeps its setting.
    plain_http: Option<bool>,
}

impl std::fmt::Debug for NewValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewValue").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

/// A secret, without its value.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Secret)]
pub(super) struct Shown {
    name: String,
    /// Counts its values from 1.
    version: i64,
    hosts: Option<Vec<String>>,
    /// Whether headers may carry it over plain HTTP although it is limited to hosts.
    plain_http: bool,
    created_at: String,
    updated_at: String,
}

impl From<SecretInfo> for Shown {
    fn from(info: SecretInfo) -> Self {
        Self {
            name: info.name,
            version: info.version,
            hosts: info.hosts,
            plain_http: info.plain_http,
            created_at: rfc3339(info.created_ms),
            updated_at: rfc3339(info.updated_ms),
        }
    }
}

/// The key that all secrets are sealed under, by its name.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct MasterKey {
    id: String,
    /// Earlier ones that are still at hand.
    previous: Vec<String>,
    /// `file`, which can be rotated here, or `setting`.
    source: &'static str,
    /// Master keys that are not here, and what cannot be read without them.
    missing: Vec<Missing>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Missing {
    id: String,
    projects: i64,
    secrets: i64,
    /// Live sandboxes whose environment, tokens and network settings cannot be read.
    sandboxes: i64,
}

/// The value, and what limits its use.
fn checked(new: NewValue) -> Result<(Secret, SecretTerms), ApiError> {
    if new.value.is_empty() || new.value.len() > LONGEST_VALUE || new.value.contains('\0') {
        return Err(ApiError::invalid(
            "value",
            format!("must be 1 to {LONGEST_VALUE} bytes of text without NUL"),
        ));
    }
    let hosts = new.hosts.map(|hosts| {
        let Some(hosts) = hosts else { return Ok(Vec::new()) };
        if hosts.is_empty() || hosts.len() > MOST_HOSTS {
            let wrong = format!("must be 1 to {MOST_HOSTS} names, or null for any host");
            return Err(ApiError::invalid("hosts", wrong));
        }
        let wrong = |_| ApiError::invalid("hosts", "must be host names, or `*.` and a name");
        hosts.iter().map(|host| NamePattern::parse(host).map_err(wrong)).collect()
    });
    let terms = SecretTerms { hosts: hosts.transpose()?, plain_http: new.plain_http };
    Ok((Secret::new(new.value), terms))
}

/// Makes a secret, or replaces its value and leaves the hosts that it is for. Sandboxes get the new value at their
/// next start, headers at their next request.
#[utoipa::path(
    put, path = "/api/v1/secrets/{secret}", tag = "secrets", params(("secret" = String, Path)),
    request_body = NewValue,
    responses(
        (status = 200, body = Shown, description = "replaced"), (status = 201, body = Shown),
        (status = 409, body = ErrorShape, description = "there are too many"),
        (status = 404, body = ErrorShape, description = "not a name for one")
    )
)]
pub(super) async fn put(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    context: Context,
    Id(name): Id<SecretName>,
    Checked(new): Checked<NewValue>,
) -> Result<(StatusCode, Json<Shown>), ApiError> {
    let (value, terms) = checked(new)?;
    let put = app.store.put_secret_on(&caller.scope, &name, &value, terms).await;
    let (info, new) = put.map_err(|error| match error {
        SecretError::TooMany => ApiError::conflict(format!("a project may have {MOST_SECRETS} secrets"))
            .hint("delete one that nothing uses"),
        SecretError::Store(error) => ApiError::store(error),
    })?;
    context.made(&name);
    app.fleet.secrets_changed();
    Ok((if new { StatusCode::CREATED } else { StatusCode::OK }, Json(info.into())))
}

/// The project's secrets by name, without their values.
#[utoipa::path(
    get, path = "/api/v1/secrets", tag = "secrets",
    responses((status = 200, body = Page<Shown>))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
) -> Result<Json<Page<Shown>>, ApiError> {
    let secrets = app.store.secrets(&caller.scope).await.map_err(ApiError::store)?;
    Ok(Json(Page::new(secrets.into_iter().map(Shown::from).collect(), None)))
}

/// Deletes a secret. Running sandboxes keep what they have in their environment; headers that refer to it are
/// put in no more, and connections that should have had them are refused.
#[utoipa::path(
    delete, path = "/api/v1/secrets/{secret}", tag = "secrets", params(("secret" = String, Path)),
    responses((status = 204))
)]
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    Id(name): Id<SecretName>,
) -> Result<StatusCode, ApiError> {
    let removed = app.store.delete_secret(&caller.scope, &name).await.map_err(ApiError::store)?;
    app.fleet.secrets_changed();
    if removed { Ok(StatusCode::NO_CONTENT) } else { Err(ApiError::nothing("secret", name)) }
}

/// Which master key is in use, and what cannot be read for lack of another.
#[utoipa::path(
    get, path = "/api/v1/admin/master-key", tag = "secrets",
    responses((status = 200, body = MasterKey))
)]
pub(super) async fn master_key(
    State(app): State<Arc<App>>,
    operating: Operating,
) -> Result<Json<MasterKey>, ApiError> {
    shown(&app, &operating).await
}

/// Makes a new master key and seals every project's key under it. Nothing stops meanwhile.
#[utoipa::path(
    post, path = "/api/v1/admin/master-key/rotate", tag = "secrets",
    responses(
        (status = 200, body = MasterKey),
        (status = 409, body = ErrorShape, description = "the key is given by setting")
    )
)]
pub(super) async fn rotate(
    State(app): State<Arc<App>>,
    operating: Operating,
) -> Result<Json<MasterKey>, ApiError> {
    let rotated = app.store.rotate_master_key(&operating.operator).await;
    rotated.map_err(|error| match error {
        RotateError::NotInFile => ApiError::conflict("the master key is given by setting, not by file").hint(
            "set secrets.master_key to the new key and secrets.previous_master_keys to this one, and start again",
        ),
        RotateError::File(why) => {
            tracing::error!("could not rotate the master key: {why}");
            ApiError::of(Code::Internal, "the master key's file could not be written; the log says why")
        }
        RotateError::Store(error) => ApiError::store(error),
    })?;
    shown(&app, &operating).await
}

async fn shown(app: &App, operating: &Operating) -> Result<Json<MasterKey>, ApiError> {
    let status = app.store.master_key(&operating.operator).await.map_err(ApiError::store)?;
    let missing = status.missing.into_iter();
    let missing = missing.map(|key| Missing {
        id: key.id,
        projects: key.projects,
        secrets: key.secrets,
        sandboxes: key.sandboxes,
    });
    Ok(Json(MasterKey {
        id: status.id,
        previous: status.previous,
        source: if status.in_file { "file" } else { "setting" },
        missing: missing.collect(),
    }))
}
