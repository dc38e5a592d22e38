//! The project's secrets, and the master key that seals them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::network::NamePattern;
use coffer_store::{RotateError, Secret as Value, SecretInfo, SecretName, SecretTerms};
use http::StatusCode;

use crate::app::App;
use crate::auth::{Admin, Caller, Id, Operating, Read};
use crate::body::Checked;
use crate::context::Context;
use crate::error::ApiError;
use crate::secrets::{check_value, refused};
use coffer_api_types::secrets::{MasterKey, Missing, NewValue, Secret};
use coffer_api_types::{ErrorShape, Page};
use coffer_core::Code;
use coffer_core::clock::rfc3339;

const MOST_HOSTS: usize = 32;

fn shown_secret(info: SecretInfo) -> Secret {
    Secret {
        name: info.name,
        version: info.version,
        hosts: info.hosts,
        plain_http: info.plain_http,
        created_at: rfc3339(info.created_ms),
        updated_at: rfc3339(info.updated_ms),
    }
}

/// The value and its terms.
fn checked(new: NewValue) -> Result<(Value, SecretTerms), ApiError> {
    check_value(&new.value).map_err(|wrong| ApiError::invalid("value", wrong))?;
    let hosts = new.hosts.map(|hosts| {
        let Some(hosts) = hosts else { return Ok(Vec::new()) };
        if hosts.is_empty() || hosts.len() > MOST_HOSTS {
            let wrong = format!("must be 1 to {MOST_HOSTS} names, or null for any host");
            return Err(ApiError::invalid("hosts", wrong));
        }
        let wrong = |_| ApiError::invalid("hosts", "must be host names, or `*.` and a name");
        hosts.iter().map(|host| NamePattern::parse(host).map_err(wrong)).collect()
    });
    let terms = SecretTerms { hosts: hosts.transpose()?, plain_http: new.plain_http, metadata: None };
    Ok((Value::new(new.value), terms))
}

/// Creates a secret, or replaces its value and keeps its hosts. Sandboxes get the new value at their next
/// start, headers at their next request.
#[utoipa::path(
    put, path = "/api/v1/secrets/{secret}", tag = "secrets", params(("secret" = String, Path)),
    request_body = NewValue,
    responses(
        (status = 200, body = Secret, description = "replaced"), (status = 201, body = Secret),
        (status = 409, body = ErrorShape, description = "there are too many"),
        (status = 404, body = ErrorShape, description = "not a valid name")
    )
)]
pub(super) async fn put(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    context: Context,
    Id(name): Id<SecretName>,
    Checked(new): Checked<NewValue>,
) -> Result<(StatusCode, Json<Secret>), ApiError> {
    let (value, terms) = checked(new)?;
    let put = app.store.put_secret_on(&caller.scope, &name, &value, terms).await;
    let (info, new) = put.map_err(|error| refused(error, name.as_str()))?;
    context.made(&name);
    app.fleet.secrets_changed();
    Ok((if new { StatusCode::CREATED } else { StatusCode::OK }, Json(shown_secret(info))))
}

/// The project's secrets by name, without their values.
#[utoipa::path(
    get, path = "/api/v1/secrets", tag = "secrets",
    responses((status = 200, body = Page<Secret>))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
) -> Result<Json<Page<Secret>>, ApiError> {
    let secrets = app.store.secrets(&caller.scope).await.map_err(ApiError::store)?;
    Ok(Json(Page::new(secrets.into_iter().map(shown_secret).collect(), None)))
}

/// Deletes a secret. Running sandboxes keep it in their environment. Headers that refer to it are no longer
/// added, and connections that need them are refused.
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

/// The master key in use, and how much cannot be read because another is missing.
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

/// Creates a new master key and seals every project's key under it. Everything keeps running meanwhile.
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
        RotateError::NotInFile => ApiError::conflict("the master key comes from a setting, not from a file").hint(
            "set secrets.master_key to the new key and secrets.previous_master_keys to this one, and start again",
        ),
        RotateError::File(why) => {
            tracing::error!("could not rotate the master key: {why}");
            ApiError::of(Code::Internal, "could not write the master key's file; the log says why")
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
        source: if status.in_file { "file" } else { "setting" }.to_string(),
        missing: missing.collect(),
    }))
}
