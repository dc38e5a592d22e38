//! Refusals on the wire: their HTTP status, and their body as each API's clients read it.

use axum::Json;
use axum::response::{IntoResponse, Response};
use coffer_core::network::BadE2bSettings;
use coffer_core::{Code, Refusal};
use coffer_fleet::FleetError;
use coffer_fleet::exec::ExecError;
use coffer_fleet::limits::TryAgainIn;
use coffer_forge::{DiskLow, ForgeError};
use coffer_shares::Full;
use coffer_store::{NameError, OverQuota, StoreError};
use coffer_wire::e2b::ErrorBody;
use coffer_work::git::GitError;
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::Value;

/// New SDKs recognise by this code that the sandbox's own agent did not respond.
const GUEST_UNRESPONSIVE: &str = "sandbox_snapshot_guest_agent_unresponsive";

/// Why a request failed: a refusal of the domain, or one of the API, on its way to an HTTP response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    refusal: Refusal,
    /// The code by which E2B's SDKs choose an exception.
    error_code: Option<&'static str>,
}

/// The HTTP status of a refusal.
pub(crate) const fn status_of(code: Code) -> StatusCode {
    match code {
        Code::BadRequest => StatusCode::BAD_REQUEST,
        Code::Unauthorized => StatusCode::UNAUTHORIZED,
        Code::BudgetExceeded => StatusCode::PAYMENT_REQUIRED,
        Code::Forbidden | Code::CommandRefused | Code::PermissionMissing => StatusCode::FORBIDDEN,
        Code::NotFound | Code::TemplateNotBuilt => StatusCode::NOT_FOUND,
        Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Code::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
        Code::Conflict
        | Code::CodeInterpreterMissing
        | Code::BranchProtected
        | Code::GitFailed
        | Code::IdentityMissing
        | Code::MergeConflict
        | Code::NothingToCommit
        | Code::PushRejected
        | Code::NotConnected
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
        Refusal::new(code, message).into()
    }

    /// 400: the request itself is wrong; sending it again will not help.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::of(Code::BadRequest, message)
    }

    /// 422: a field of the request is invalid.
    pub(crate) fn invalid(field: &str, why: impl std::fmt::Display) -> Self {
        Refusal::invalid(field, why).into()
    }

    /// 404 for a thing that does not exist or belongs to another project; the two look the same.
    pub(crate) fn nothing(kind: &str, id: impl std::fmt::Display) -> Self {
        Refusal::nothing(kind, id).into()
    }

    /// 404 for a sandbox that does not exist, is gone, or belongs to another project.
    pub(crate) fn no_sandbox(id: &str) -> Self {
        Refusal::no_sandbox(id).into()
    }

    /// 409: the current state does not allow this.
    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Refusal::conflict(message).into()
    }

    /// 500 without the cause, which belongs in the log.
    pub(crate) fn internal() -> Self {
        Refusal::internal().into()
    }

    /// 429: this key, or this address, asks too often.
    pub(crate) fn too_fast(wait: TryAgainIn) -> Self {
        let message = "too many requests with this key, or too many with wrong ones from this address";
        Self::of(Code::RateLimited, message).retry_after(wait.seconds())
    }

    /// Says what to do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.refusal = self.refusal.hint(hint);
        self
    }

    /// Says that waiting helps, and for how long.
    pub(crate) fn retry_after(mut self, seconds: u32) -> Self {
        self.refusal = self.refusal.retry_after(seconds);
        self
    }

    /// Adds details for programs.
    pub(crate) fn details(mut self, details: Value) -> Self {
        self.refusal = self.refusal.details(details);
        self
    }

    /// The refusal as part of an answer, in E2B's shape.
    pub(crate) fn into_e2b(self) -> ErrorBody {
        ErrorBody {
            code: status_of(self.refusal.code).as_u16(),
            message: self.refusal.message,
            error_code: self.error_code.map(String::from),
        }
    }

    /// The code, message and hint, for an answer that has them as a part.
    pub(crate) fn into_parts(self) -> (Code, String, Option<String>) {
        (self.refusal.code, self.refusal.message, self.refusal.hint)
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, error_code: None }
    }
}

/// Errors of the domain.
impl ApiError {
    /// A step of the fleet on the sandbox `id` failed.
    pub(crate) fn fleet(error: FleetError, id: &str) -> Self {
        let error_code = matches!(error, FleetError::GuestUnresponsive(_)).then_some(GUEST_UNRESPONSIVE);
        Self { refusal: error.explain(id), error_code }
    }

    /// A command in the sandbox `id`, or the connection into it, failed.
    pub(crate) fn exec(error: impl Into<ExecError>, id: &str) -> Self {
        error.into().explain(id).into()
    }

    /// A git operation in the sandbox `id` failed.
    pub(crate) fn git(error: &GitError, id: &str) -> Self {
        error.explain(id).into()
    }

    /// Network settings in E2B's form: 501 if this server lacks what they ask for, else 400.
    pub(crate) fn network(error: &BadE2bSettings) -> Self {
        let code = if error.is_unsupported() { Code::NotSupported } else { Code::BadRequest };
        Self::of(code, error.to_string())
    }

    pub(crate) fn forge(error: ForgeError) -> Self {
        Refusal::from(&error).into()
    }

    pub(crate) fn store(error: StoreError) -> Self {
        Refusal::from(&error).into()
    }

    /// The store did not create or change a thing because of its name.
    pub(crate) fn name(error: NameError, kind: &str, name: impl std::fmt::Display) -> Self {
        error.explain(kind, name).into()
    }

    /// 429: the project's storage quota is used up.
    pub(crate) fn over_storage(over: &OverQuota) -> Self {
        over.explain_storage().into()
    }

    /// 507: the server's disk is nearly full.
    pub(crate) fn disk_low(low: DiskLow) -> Self {
        Refusal::from(&low).into()
    }

    /// 429: the project has used up its share of a pool, or the whole pool is in use.
    pub(crate) fn busy(full: Full) -> Self {
        Refusal::from(full).into()
    }
}

/// The answer has no body yet: [`Unrendered::render`] adds the body in the shape of the API.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = status_of(self.refusal.code).into_response();
        if let Some(seconds) = self.refusal.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(Unrendered(self));
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
    /// Git shows its users only plain text.
    Plain,
    /// Git LFS shows the message of a body in its own media type.
    Lfs,
}

/// Whether a path belongs to our own API, even if it has no route.
pub(crate) fn is_own(path: &str) -> bool {
    path.strip_prefix("/api/v1").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A refusal that has no body yet.
#[derive(Debug, Clone)]
pub(crate) struct Unrendered(ApiError);

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

impl Unrendered {
    /// Gives a refusal its body; other answers stay as they are. Also returns the refusal's code.
    pub(crate) fn render(
        mut answer: Response,
        shape: Shape,
        request_id: impl ToString,
    ) -> (Response, Option<String>) {
        let Some(Self(error)) = answer.extensions_mut().remove::<Self>() else { return (answer, None) };
        if matches!(shape, Shape::Plain | Shape::Lfs) && error.refusal.code == Code::Unauthorized {
            let challenge = HeaderValue::from_static("Basic realm=\"coffer\", charset=\"UTF-8\"");
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        let body = match shape {
            Shape::Plain => {
                let hint = error.refusal.hint.as_ref().map(|hint| format!("\n{hint}")).unwrap_or_default();
                format!("{}{hint}\n", error.refusal.message).into_response()
            }
            Shape::E2b => Json(error.clone().into_e2b()).into_response(),
            Shape::Own | Shape::Lfs => Json(OwnBody {
                code: error.refusal.code,
                message: &error.refusal.message,
                hint: error.refusal.hint.as_deref(),
                details: error.refusal.details.as_ref(),
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
        (answer, Some(error.refusal.code.as_str().to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/api.md");
    const BEGIN: &str = "<!-- codes: written by `COFFER_UPDATE=1 cargo test -p coffer-api codes` -->\n";
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
            "docs/api.md is out of date: COFFER_UPDATE=1 cargo test -p coffer-api codes"
        );
    }
}
