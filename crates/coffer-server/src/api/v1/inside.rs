//! The way of our own API into a sandbox.

use std::sync::Arc;

use coffer_core::{SandboxState, StateName};
use utoipa::IntoParams;

use crate::agent::{AgentError, Guest, GuestError};
use crate::api::App;
use crate::api::error::{ApiError, Code};
use crate::api::query::Query;
use crate::fleet::{Fleet, Record};
use crate::routing::{Directory, Route, Wake};

/// The agentd of a sandbox, which is woken where its policy says so.
pub(super) async fn guest(app: &App, record: &Arc<Record>, id: &str) -> Result<Guest, ApiError> {
    guest_of(&app.fleet, record, id).await
}

#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes what the handlers read")]
pub(super) struct WatchQuery {
    /// `true` for who looks again and again: it wakes no sandbox, and is no use that keeps one from being idle.
    watch: Option<bool>,
}

/// The agentd of a sandbox that may only be looked at, as the query has it.
pub(super) async fn guest_for(
    app: &App,
    record: &Arc<Record>,
    id: &str,
    query: &Query,
) -> Result<Guest, ApiError> {
    let wake = match query.text("watch") {
        None | Some("false") => Wake::ByPolicy,
        Some("true") => Wake::LooksOn,
        Some(_) => return Err(ApiError::invalid("watch", "must be true or false")),
    };
    reached(&app.fleet, record, id, wake).await
}

/// The same as `guest`, for whoever has no more than the fleet.
pub(super) async fn guest_of(fleet: &Arc<Fleet>, record: &Arc<Record>, id: &str) -> Result<Guest, ApiError> {
    reached(fleet, record, id, Wake::ByPolicy).await
}

async fn reached(fleet: &Arc<Fleet>, record: &Arc<Record>, id: &str, wake: Wake) -> Result<Guest, ApiError> {
    match fleet.route(&record.id.to_string(), wake).await {
        Route::Running(target) => {
            let token = record.live().row.access_token.as_ref().map(|token| token.reveal().to_string());
            Ok(Guest::new(target, token))
        }
        Route::NotFound => match record.live().row.state {
            SandboxState::Paused { .. } => {
                Err(ApiError::conflict(format!("the sandbox is {}", StateName::Paused.as_str()))
                    .hint("resume it first, or make it with auto_resume"))
            }
            _ => Err(ApiError::no_sandbox(id)),
        },
        Route::Transitioning => {
            Err(ApiError::conflict("the sandbox is just being paused or resumed").retry_after(1))
        }
        Route::Busy => {
            Err(ApiError::of(Code::Unavailable, "there is no room to resume the sandbox now").retry_after(5))
        }
    }
}

/// What became of a call to agentd.
pub(super) fn refusal(error: GuestError) -> ApiError {
    match error {
        GuestError::Gone => ApiError::conflict("the sandbox ended or was paused meanwhile"),
        GuestError::Refused { code, message } => match code.as_str() {
            "not_found" | "404" => ApiError::of(Code::NotFound, message),
            "403" => ApiError::of(Code::Forbidden, message).hint("use a key with the role write"),
            "already_exists" => ApiError::conflict(message),
            "invalid_argument" | "unauthenticated" | "out_of_range" | "400" | "401" => {
                ApiError::of(Code::Invalid, message)
            }
            "failed_precondition" => ApiError::conflict(message),
            "resource_exhausted" | "507" => ApiError::of(Code::Unavailable, message),
            _ => {
                tracing::warn!("agentd refused with {code}: {message}");
                ApiError::of(Code::Unavailable, "the sandbox failed to do this").hint(message)
            }
        },
        GuestError::Agent(error) => silent(&error),
    }
}

/// agentd does not answer, or not in any sense.
fn silent(error: &AgentError) -> ApiError {
    tracing::warn!("agentd did not do as asked: {}", crate::fleet::chain(error));
    ApiError::of(Code::Unavailable, "the sandbox does not answer").retry_after(1)
}
