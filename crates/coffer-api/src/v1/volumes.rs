//! Volumes.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::VolumeId;
use coffer_store::VolumeRow;
use http::{HeaderMap, HeaderValue, StatusCode, header};

use crate::app::App;
use crate::auth::{Caller, Id, Read, Write};
use crate::body::Checked;
use crate::context::Context;
use crate::error::ApiError;
use coffer_api_types::volumes::{NewVolume, Volume, VolumeDetail};
use coffer_api_types::{ErrorShape, Page};
use coffer_core::clock::rfc3339;
use coffer_fleet::FleetError;

/// 16 TiB.
const LARGEST_MIB: u64 = 1 << 24;

fn shown(row: VolumeRow) -> Volume {
    Volume {
        id: row.id.to_string(),
        name: row.name.to_string(),
        size_mib: row.size_mib,
        created_at: rfc3339(row.created_ms),
        installation: row.installation,
    }
}

/// Creates a volume: a directory that sandboxes mount and that outlives them.
#[utoipa::path(
    post, path = "/api/v1/volumes", tag = "volumes", request_body = NewVolume,
    responses(
        (status = 201, body = Volume, headers(("Location" = String))),
        (status = 409, body = ErrorShape, description = "the project has a volume of that name"),
        (status = 501, body = ErrorShape, description = "the host has no volumes")
    )
)]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    context: Context,
    Checked(new): Checked<NewVolume>,
) -> Result<(StatusCode, HeaderMap, Json<Volume>), ApiError> {
    let name = new.name.parse().map_err(|error| ApiError::invalid("name", format!("is wrong: {error}")))?;
    let size_mib = new.size_mib.unwrap_or(app.volume_mib);
    if !(1..=LARGEST_MIB).contains(&size_mib) {
        return Err(ApiError::invalid("size_mib", format!("must be 1 to {LARGEST_MIB}")));
    }
    let made = app.fleet.create_volume(caller.scope, name, size_mib).await;
    let row = made.map_err(|error| ApiError::fleet(error, ""))?;
    context.made(row.id);
    let place = HeaderValue::try_from(format!("/api/v1/volumes/{}", row.id)).expect("letters and digits");
    Ok((StatusCode::CREATED, HeaderMap::from_iter([(header::LOCATION, place)]), Json(shown(row))))
}

/// The project's volumes, oldest first; at most 1000.
#[utoipa::path(get, path = "/api/v1/volumes", tag = "volumes", responses((status = 200, body = Page<Volume>)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
) -> Result<Json<Page<Volume>>, ApiError> {
    let rows = app.store.volumes(&caller.scope).await.map_err(ApiError::store)?;
    Ok(Json(Page::new(rows.into_iter().map(shown).collect(), None)))
}

/// One volume, with its use.
#[utoipa::path(
    get, path = "/api/v1/volumes/{volume}", tag = "volumes", params(("volume" = String, Path)),
    responses((status = 200, body = VolumeDetail))
)]
pub(super) async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(volume): Id<VolumeId>,
) -> Result<Json<VolumeDetail>, ApiError> {
    let row = app.store.volume(&caller.scope, volume).await.map_err(ApiError::store)?;
    let row = row.ok_or_else(|| ApiError::fleet(FleetError::NoVolume(volume.to_string()), ""))?;
    let users = app.store.mounted_by(&caller.scope, volume).await.map_err(ApiError::store)?;
    let used_bytes = app.fleet.volume_bytes(&row).await;
    let sandboxes = users.iter().map(ToString::to_string).collect();
    Ok(Json(VolumeDetail { volume: shown(row), used_bytes, sandboxes }))
}

/// Deletes a volume with everything in it.
#[utoipa::path(
    delete, path = "/api/v1/volumes/{volume}", tag = "volumes", params(("volume" = String, Path)),
    responses(
        (status = 204),
        (status = 409, body = ErrorShape, description = "sandboxes mount it; `details.sandboxes` names them"),
        (status = 421, body = ErrorShape, description = "another installation has it")
    )
)]
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Id(volume): Id<VolumeId>,
) -> Result<StatusCode, ApiError> {
    let deleted = app.fleet.delete_volume(caller.scope, volume).await;
    deleted.map_err(|error| ApiError::fleet(error, ""))?;
    Ok(StatusCode::NO_CONTENT)
}
