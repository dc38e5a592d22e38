//! Refusals, as E2B's SDKs read them.

use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse, Response};
pub(crate) use coffer_core::Code;
use coffer_core::StateName;
use coffer_engine::EngineError;
use coffer_forge::{DiskLow, ForgeError};
use coffer_shares::Full;
use coffer_store::{NameError, OverQuota, StoreError};
use coffer_wire::e2b::ErrorBody;
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::{Value, json};

use crate::fleet::{Busy, FleetError, SecretUse, Step};
use crate::limits::TryAgainIn;

/// A deadline that is worth waiting for.
const NEAR_MS: i64 = 300_000;

/// By this new SDKs know that a sandbox's own agent is to blame.
const GUEST_UNRESPONSIVE: &str = "sandbox_snapshot_guest_agent_unresponsive";

/// Why a request was not done. Its message is for a person and names nothing internal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    code: Code,
    message: String,
    /// What to do about it, where there is something.
    hint: Option<String>,
    error_code: Option<&'static str>,
    retry_after_s: Option<u32>,
    /// What a program may want to know of it.
    details: Option<Value>,
}

/// The HTTP status of a refusal.
pub(crate) const fn status_of(code: Code) -> StatusCode {
    match code {
        Code::BadRequest => StatusCode::BAD_REQUEST,
        Code::Unauthorized => StatusCode::UNAUTHORIZED,
        Code::BudgetExceeded => StatusCode::PAYMENT_REQUIRED,
        Code::Forbidden | Code::CommandRefused | Code::PermissionMissing => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Code::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
        Code::Conflict
        | Code::BranchProtected
        | Code::GitFailed
        | Code::IdentityMissing
        | Code::MergeConflict
        | Code::NothingToCommit
        | Code::PushRejected
        | Code::TokenExpired => StatusCode::CONFLICT,
        Code::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
        Code::PackTooLarge | Code::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::Invalid | Code::CommitMessage | Code::IdempotencyKeyReused => StatusCode::UNPROCESSABLE_ENTITY,
        Code::OtherInstallation => StatusCode::MISDIRECTED_REQUEST,
        Code::Gone => StatusCode::GONE,
        Code::QuotaExceeded | Code::PoolBusy | Code::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        Code::Internal | Code::HostFailed => StatusCode::INTERNAL_SERVER_ERROR,
        Code::NotSupported => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable | Code::ForgeUnreachable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DiskLow => StatusCode::INSUFFICIENT_STORAGE,
    }
}

impl ApiError {
    pub(crate) fn of(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hint: None,
            error_code: None,
            retry_after_s: None,
            details: None,
        }
    }

    /// 400: the request itself is wrong; sending it again will not help.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::of(Code::BadRequest, message)
    }

    /// 422: a field of the request does not fit.
    pub(crate) fn invalid(field: &str, why: impl std::fmt::Display) -> Self {
        Self::of(Code::Invalid, format!("{field} {why}"))
    }

    /// 404 for a thing that does not exist or is another project's: nobody can tell.
    pub(crate) fn nothing(kind: &str, id: impl std::fmt::Display) -> Self {
        Self::of(Code::NotFound, format!("there is no {kind} {id}"))
    }

    /// What became of a named thing of the store's.
    pub(crate) fn name(error: NameError, kind: &str, name: impl std::fmt::Display) -> Self {
        match error {
            NameError::Taken => Self::conflict(format!("there is a {kind} '{name}' already")),
            NameError::NotFound => Self::nothing(kind, name),
            NameError::Store(error) => Self::store(error),
        }
    }

    /// Says what to do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// 404 for a sandbox that does not exist, is gone, or is another project's: nobody can tell.
    pub(crate) fn no_sandbox(id: &str) -> Self {
        let shown: String = id.chars().take(64).collect();
        Self::of(Code::NotFound, format!("sandbox '{shown}' not found"))
    }

    /// 409: the sandbox's state does not allow this.
    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::of(Code::Conflict, message)
    }

    /// 500 without the cause, which belongs into the log.
    pub(crate) fn internal() -> Self {
        Self::of(Code::Internal, "the server failed to do this; its log says why")
    }

    /// 501: part of E2B's API that this server does not have.
    pub(crate) fn not_implemented(what: &str) -> Self {
        Self::of(Code::NotSupported, format!("this server does not support {what} yet"))
    }

    /// Says that waiting helps, and for how long.
    pub(crate) fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// The refusal as part of an answer, in E2B's shape.
    pub(crate) fn into_e2b(self) -> ErrorBody {
        ErrorBody {
            code: status_of(self.code).as_u16(),
            message: self.message,
            error_code: self.error_code.map(String::from),
        }
    }

    /// The code, message and hint, for an answer that has them as a part.
    pub(crate) fn into_parts(self) -> (Code, String, Option<String>) {
        (self.code, self.message, self.hint)
    }

    pub(crate) fn code(&self) -> Code {
        self.code
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Adds what a program may want to know.
    pub(crate) fn details(mut self, details: Value) -> Self {
        self.details = Some(details);
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
                Self::of(Code::NotFound, format!("template '{name}' not found"))
            }
            FleetError::KeyReused => {
                Self::of(Code::IdempotencyKeyReused, "this Idempotency-Key was used for a different request")
            }
            FleetError::GuestUnresponsive(_) => {
                Self::conflict(error.to_string()).with_code(GUEST_UNRESPONSIVE)
            }
            FleetError::Exhausted(_) => Self::of(Code::BudgetExceeded, error.to_string())
                .hint("an admin of the project can raise it at /api/v1/budgets"),
            FleetError::Secret(SecretUse::Sealed(_) | SecretUse::SandboxSealed) => {
                Self::conflict(error.to_string()).hint("put the lost master key back, or set the secret anew")
            }
            FleetError::Secret(_) => Self::of(Code::Invalid, error.to_string()),
            FleetError::OverQuota(over) => Self::over_quota(&over),
            FleetError::Full(full) => Self::busy(full),
            FleetError::NoSnapshot(name) => {
                let shown: String = name.chars().take(200).collect();
                Self::of(Code::NotFound, format!("snapshot '{shown}' not found"))
                    .hint("GET /api/v1/snapshots lists those there are")
            }
            FleetError::SnapshotElsewhere(..) => Self::of(Code::OtherInstallation, error.to_string())
                .hint("ask the server of that installation"),
            FleetError::NoMemory(_) => Self::of(Code::NotSupported, error.to_string())
                .hint("leave `memory` out, or set it to false, to keep files alone"),
            FleetError::HoldsSecrets(_) => Self::conflict(error.to_string())
                .hint("set `inherit_secrets`, or leave `memory` out to keep files alone"),
            FleetError::EndedEarly | FleetError::Raced => Self::conflict(error.to_string()),
            FleetError::FirstUnderWay => Self::conflict(error.to_string()).retry_after(1),
            FleetError::FirstFailed | FleetError::DiedEarly => {
                Self::of(Code::Unavailable, error.to_string()).retry_after(1)
            }
            FleetError::Engine(error) => Self::engine(error, id),
            FleetError::Store(error) => Self::store(error),
            FleetError::NotReady(_) => Self::of(Code::Internal, error.to_string()),
            FleetError::Broken => Self::internal(),
        }
    }

    /// What became of a question to a forge.
    pub(crate) fn forge(error: ForgeError) -> Self {
        let message = error.to_string();
        let wait = |wait: Duration| u32::try_from(wait.as_secs()).unwrap_or(u32::MAX).max(1);
        match error {
            ForgeError::NotFound { .. } => Self::of(Code::NotFound, message),
            ForgeError::PermissionMissing { scope, .. } => Self::of(Code::PermissionMissing, message)
                .details(json!({ "scope": scope }))
                .hint("give the token or App that permission on the forge; then try again"),
            ForgeError::TokenExpired | ForgeError::Credential { .. } => Self::of(Code::TokenExpired, message)
                .hint("put a new token into the secret of the connection: PUT /api/v1/secrets/{name}"),
            ForgeError::RateLimited { retry_after } => {
                Self::of(Code::RateLimited, message).retry_after(wait(retry_after))
            }
            ForgeError::Protected { .. } => Self::of(Code::BranchProtected, message),
            ForgeError::Conflict { paths, .. } if paths.is_empty() => Self::conflict(message),
            ForgeError::Conflict { paths, .. } => Self::of(Code::MergeConflict, message)
                .details(json!({ "paths": paths }))
                .hint("merge or rebase the base branch into the head, resolve these files, and push"),
            ForgeError::PullExists { number } => Self::conflict(message).details(json!({ "number": number })),
            ForgeError::Raced { .. } => Self::conflict(message),
            ForgeError::Invalid { .. } => Self::of(Code::Invalid, message),
            ForgeError::PackTooLarge { .. } => Self::of(Code::PackTooLarge, message)
                .hint("push it in smaller parts, keep large files in Git LFS, or have an operator raise the setting"),
            ForgeError::TooLarge { .. } => Self::of(Code::PayloadTooLarge, message),
            ForgeError::Unreachable { retry_after, .. } => {
                Self::of(Code::ForgeUnreachable, message).retry_after(retry_after.map_or(1, wait))
            }
            ForgeError::PoolBusy(full) => Self::busy(full),
            ForgeError::OverQuota(over) => Self::over_storage(&over),
            ForgeError::DiskLow(low) => Self::disk_low(low),
            ForgeError::Busy => Self::of(Code::Unavailable, message).retry_after(1),
            ForgeError::Strange(_) => Self::of(Code::ForgeUnreachable, message),
            ForgeError::NoGit => Self::of(Code::Unavailable, message),
            ForgeError::Git(why) => {
                tracing::error!("git failed: {why}");
                Self::internal()
            }
            ForgeError::Store(error) => Self::store(error),
        }
    }

    /// 429: the project may have no more. Where something ends soon, it says when.
    fn over_quota(over: &OverQuota) -> Self {
        let message = over.to_string();
        let details = json!({
            "quota": over.quota, "limit": over.limit, "used": over.used, "asked": over.asked
        });
        let refusal = Self { details: Some(details), ..Self::of(Code::QuotaExceeded, message) };
        let refusal =
            refusal.hint("end or pause sandboxes, or have an operator raise it; GET /api/v1/quotas shows it");
        match over.frees_in_ms {
            Some(in_ms) if in_ms <= NEAR_MS => {
                refusal.retry_after(u32::try_from(in_ms / 1000 + 1).unwrap_or(u32::MAX))
            }
            _ => refusal,
        }
    }

    /// 429: the project may keep no more.
    pub(crate) fn over_storage(over: &OverQuota) -> Self {
        let hint = "delete repositories, Git LFS objects or artifacts, or have an operator raise it; GET /api/v1/quotas shows it";
        Self::over_quota(over).hint(hint)
    }

    /// 507: the server's disk is nearly full, whoever filled it.
    pub(crate) fn disk_low(low: DiskLow) -> Self {
        tracing::warn!("a write was refused: {low}");
        Self::of(Code::DiskLow, low.to_string())
            .hint("an operator can free or add space, or lower `limits.min_free_disk`")
            .retry_after(60)
    }

    /// 429: the project holds its share of a pool, or all of it is in use.
    pub(crate) fn busy(full: Full) -> Self {
        let details = json!({
            "pool": full.pool.name, "places": full.total, "share": full.share, "held": full.held
        });
        let refusal = Self { details: Some(details), ..Self::of(Code::PoolBusy, full.to_string()) };
        refusal.hint(full.hint()).retry_after(full.retry_after_s())
    }

    /// 429: this key, or this address, asks too often.
    pub(crate) fn too_fast(wait: TryAgainIn) -> Self {
        let message = "too many requests with this key, or too many with wrong ones from this address";
        Self::of(Code::RateLimited, message).retry_after(wait.seconds())
    }

    fn engine(error: EngineError, id: &str) -> Self {
        let busy = |message: &str, seconds| Self::of(Code::Unavailable, message).retry_after(seconds);
        match error {
            EngineError::UnknownSandbox => Self::no_sandbox(id),
            EngineError::UnknownSnapshot => {
                Self::of(Code::NotFound, "the snapshot is not on the host of the sandboxes")
            }
            EngineError::UnknownTemplate(name) => {
                Self::of(Code::NotFound, format!("template '{name}' not found"))
            }
            EngineError::WrongState(why) => Self::conflict(why),
            EngineError::Unsupported(what) => Self::of(Code::NotSupported, format!("not supported: {what}")),
            EngineError::NoCapacity(why) => {
                tracing::warn!("no room on the host: {why}");
                let fix = "end sandboxes, delete snapshots or give it a larger pool";
                busy(&format!("this host has no room for this right now ({why}); {fix}"), 5)
            }
            EngineError::Unavailable(why) => {
                tracing::warn!("the engine is away: {why}");
                busy("the host of the sandboxes does not answer right now", 1)
            }
            EngineError::Resting { retry_after_s } => {
                busy("the host of the sandboxes does not answer right now", retry_after_s)
            }
            EngineError::Failed(why) => {
                tracing::error!("the engine failed: {why}");
                Self::of(Code::HostFailed, "the host of the sandboxes failed to do this")
                    .hint("an operator finds the reason at /api/v1/admin/host, by the id of this request")
            }
        }
    }

    /// What became of a question to the store.
    pub(crate) fn store(error: StoreError) -> Self {
        match error {
            StoreError::TooManyPairs { .. } => Self::bad_request(error.to_string()),
            StoreError::Transient { .. } | StoreError::Closed => {
                tracing::warn!("the store is away: {error}");
                Self::of(Code::Unavailable, "the records do not answer right now").retry_after(1)
            }
            StoreError::Sealed { .. } => {
                tracing::error!("{error}");
                Self::of(Code::Unavailable, "this needs a master key that is not here")
                    .hint("an operator finds at /api/v1/admin/master-key which one")
            }
            StoreError::Database { .. } | StoreError::Unreadable { .. } => {
                tracing::error!("the store failed: {}", crate::fleet::chain(&error));
                Self::internal()
            }
        }
    }
}

/// The answer has no body yet: [`Refusal::render`] gives it the one of the API that was asked.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = status_of(self.code).into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(Refusal(self));
        response
    }
}

/// The media type of Git LFS.
pub(crate) const LFS_TYPE: &str = "application/vnd.git-lfs+json";

/// Which API's clients read the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    E2b,
    Own,
    /// Git shows its people plain text and nothing else.
    Plain,
    /// Git LFS shows the message of what is in its own type.
    Lfs,
}

/// A refusal on its way to whoever gives it its shape.
#[derive(Debug, Clone)]
pub(crate) struct Refusal(ApiError);

/// A refusal in our own shape.
#[derive(Debug, Serialize)]
struct OwnBody<'a> {
    code: Code,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<&'a Value>,
    request_id: String,
}

impl Refusal {
    /// Gives a refusal its body; other answers stay as they are. Also returns the refusal's code.
    pub(crate) fn render(
        mut answer: Response,
        shape: Shape,
        request_id: impl ToString,
    ) -> (Response, Option<String>) {
        let Some(Self(error)) = answer.extensions_mut().remove::<Self>() else { return (answer, None) };
        if matches!(shape, Shape::Plain | Shape::Lfs) && error.code == Code::Unauthorized {
            let challenge = HeaderValue::from_static("Basic realm=\"coffer\", charset=\"UTF-8\"");
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        let body = match shape {
            Shape::Plain => {
                let hint = error.hint.as_ref().map(|hint| format!("\n{hint}")).unwrap_or_default();
                format!("{}{hint}\n", error.message).into_response()
            }
            Shape::E2b => Json(error.clone().into_e2b()).into_response(),
            Shape::Own | Shape::Lfs => Json(OwnBody {
                code: error.code,
                message: &error.message,
                hint: error.hint.as_deref(),
                details: error.details.as_ref(),
                request_id: request_id.to_string(),
            })
            .into_response(),
        };
        let (body, kind) = {
            let (parts, body) = body.into_parts();
            (body, parts.headers.get(header::CONTENT_TYPE).cloned())
        };
        *answer.body_mut() = body;
        let kind = if shape == Shape::Lfs { Some(HeaderValue::from_static(LFS_TYPE)) } else { kind };
        if let Some(kind) = kind {
            answer.headers_mut().insert(header::CONTENT_TYPE, kind);
        }
        answer.headers_mut().remove(header::CONTENT_LENGTH);
        (answer, Some(error.code.as_str().to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/api.md");
    const BEGIN: &str =
        "<!-- codes: written by `COFFER_UPDATE=1 cargo test -p coffer-server --lib codes` -->\n";
    const END: &str = "<!-- end of codes -->";

    #[test]
    fn the_page_of_the_api_lists_all_codes() {
        let row = |code: &Code| {
            format!(
                "| `{code}` | {} | {} |\n",
                status_of(*code).as_u16(),
                code.meaning().trim_end_matches('.')
            )
        };
        let rows: String = Code::ALL.iter().map(row).collect();
        let table = format!("\n| code | status | meaning |\n|---|---|---|\n{rows}\n");
        let page = std::fs::read_to_string(PAGE).unwrap();
        let (before, rest) = page.split_once(BEGIN).expect("the page marks where the list begins");
        let (_, after) = rest.split_once(END).expect("the page marks where the list ends");
        let expected = [before, BEGIN, &table, END, after].concat();
        if std::env::var_os("COFFER_UPDATE").is_some() {
            std::fs::write(PAGE, &expected).unwrap();
        }
        let page = std::fs::read_to_string(PAGE).unwrap();
        assert!(
            page == expected,
            "docs/api.md is out of date: COFFER_UPDATE=1 cargo test -p coffer-server --lib codes"
        );
    }
}
