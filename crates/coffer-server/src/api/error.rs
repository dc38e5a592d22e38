//! Refusals, as E2B's SDKs read them.

use axum::Json;
use axum::response::{IntoResponse, Response};
use coffer_core::StateName;
use coffer_engine::EngineError;
use coffer_store::StoreError;
use coffer_wire::e2b::ErrorBody;
use http::{HeaderValue, StatusCode, header};

use crate::fleet::{Busy, FleetError, Step};

/// By this new SDKs know that a sandbox's own agent is to blame.
const GUEST_UNRESPONSIVE: &str = "sandbox_snapshot_guest_agent_unresponsive";

/// Why a request was not done. Its message is for a person and names nothing internal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    status: StatusCode,
    message: String,
    error_code: Option<&'static str>,
    retry_after_s: Option<u32>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), error_code: None, retry_after_s: None }
    }

    /// 400: the request itself is wrong; sending it again will not help.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// 404 for a sandbox that does not exist, is gone, or is another project's: nobody can tell.
    pub(crate) fn no_sandbox(id: &str) -> Self {
        let shown: String = id.chars().take(64).collect();
        Self::new(StatusCode::NOT_FOUND, format!("sandbox '{shown}' not found"))
    }

    /// 409: the sandbox's state does not allow this.
    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, message)
    }

    /// 500 without the cause, which belongs into the log.
    pub(crate) fn internal() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "the server failed to do this; its log says why")
    }

    /// 501: part of E2B's API that this server does not have.
    pub(crate) fn not_implemented(what: &str) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, format!("this server does not support {what} yet"))
    }

    /// Says that waiting helps, and for how long.
    pub(crate) fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// Adds the code by which SDKs choose an exception.
    pub(crate) fn with_code(mut self, error_code: &'static str) -> Self {
        self.error_code = Some(error_code);
        self
    }
}

impl ApiError {
    /// What became of a step of the fleet's, about the sandbox `id`.
    pub(crate) fn fleet(error: FleetError, id: &str) -> Self {
        match error {
            // What is being destroyed is gone for everybody but whoever destroys it.
            FleetError::NotFound | FleetError::Busy(Busy(Step::End | Step::Create)) => Self::no_sandbox(id),
            FleetError::Busy(busy) => Self::conflict(busy.to_string()).retry_after(1),
            FleetError::Refused(refused) => match refused.state {
                StateName::Running | StateName::Paused => Self::conflict(refused.to_string()),
                StateName::Creating | StateName::Terminated | StateName::Error => Self::no_sandbox(id),
            },
            FleetError::UnknownTemplate(name) => {
                Self::new(StatusCode::NOT_FOUND, format!("template '{name}' not found"))
            }
            FleetError::KeyReused => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "this Idempotency-Key was used for a different request",
            ),
            FleetError::GuestUnresponsive(_) => {
                Self::conflict(error.to_string()).with_code(GUEST_UNRESPONSIVE)
            }
            FleetError::EndedEarly | FleetError::Raced => Self::conflict(error.to_string()),
            FleetError::FirstUnderWay => Self::conflict(error.to_string()).retry_after(1),
            FleetError::FirstFailed | FleetError::DiedEarly => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()).retry_after(1)
            }
            FleetError::Engine(error) => Self::engine(error, id),
            FleetError::Store(error) => Self::store(error),
            FleetError::NotReady(_) => Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
            FleetError::Broken => Self::internal(),
        }
    }

    fn engine(error: EngineError, id: &str) -> Self {
        let busy =
            |message: &str, seconds| Self::new(StatusCode::SERVICE_UNAVAILABLE, message).retry_after(seconds);
        match error {
            EngineError::UnknownSandbox => Self::no_sandbox(id),
            EngineError::UnknownTemplate(name) => {
                Self::new(StatusCode::NOT_FOUND, format!("template '{name}' not found"))
            }
            EngineError::WrongState(why) => Self::conflict(why),
            EngineError::Unsupported(what) => {
                Self::new(StatusCode::NOT_IMPLEMENTED, format!("not supported: {what}"))
            }
            EngineError::NoCapacity(why) => {
                tracing::warn!("no room for a sandbox: {why}");
                busy("this host has no room for another sandbox right now", 5)
            }
            EngineError::Unavailable(why) => {
                tracing::warn!("the engine is away: {why}");
                busy("the host of the sandboxes does not answer right now", 1)
            }
            EngineError::Failed(why) => {
                tracing::error!("the engine failed: {why}");
                Self::internal()
            }
        }
    }

    /// What became of a question to the store.
    pub(crate) fn store(error: StoreError) -> Self {
        match error {
            StoreError::TooManyPairs { .. } => Self::bad_request(error.to_string()),
            StoreError::Transient { .. } | StoreError::Closed => {
                tracing::warn!("the store is away: {error}");
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "the records do not answer right now")
                    .retry_after(1)
            }
            StoreError::Database { .. } | StoreError::Unreadable { .. } => {
                tracing::error!("the store failed: {}", crate::fleet::chain(&error));
                Self::internal()
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = ErrorBody {
            code: self.status.as_u16(),
            message: self.message,
            error_code: self.error_code.map(String::from),
        };
        let mut response = (self.status, Json(body)).into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
