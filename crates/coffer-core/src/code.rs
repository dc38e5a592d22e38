//! The codes of refusals, by which clients decide.
//!
//! A code never changes its name or its meaning. The doc comment of a variant is its entry in
//! `docs/api.md`. The API maps codes to HTTP statuses.

use serde::{Deserialize, Serialize};
use strum::{Display, EnumMessage, EnumString, IntoStaticStr, VariantArray};

/// Why a request was refused.
///
/// A closed list that only grows; clients can decide by it.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    Display,
    EnumMessage,
    EnumString,
    IntoStaticStr,
    VariantArray,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = ErrorCode))]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Code {
    /// The request is malformed.
    BadRequest,
    /// The key is missing, unknown, expired or revoked.
    Unauthorized,
    /// A budget of the project is spent.
    BudgetExceeded,
    /// The key is not allowed to do this.
    Forbidden,
    /// The project's rules do not allow this command.
    CommandRefused,
    /// The thing does not exist, or belongs to another project.
    NotFound,
    /// The template is in the catalogue and not built yet; an operator builds it.
    TemplateNotBuilt,
    /// The sandbox has no code interpreter: its template is not `code-interpreter-v1`, nor made from it.
    CodeInterpreterMissing,
    /// The path exists, but not with this method.
    MethodNotAllowed,
    /// The request did not arrive in time.
    RequestTimeout,
    /// The current state does not allow this.
    Conflict,
    /// The branch is protected.
    BranchProtected,
    /// The commit message breaks the project's rules.
    CommitMessage,
    /// A git command failed in the sandbox; the message has its output.
    GitFailed,
    /// No name or e-mail address is set for the author of a commit.
    IdentityMissing,
    /// A merge stopped at conflicting files; `details.paths` names them.
    MergeConflict,
    /// Nothing has changed since the last commit.
    NothingToCommit,
    /// The remote refused the push, for example because its branch has moved.
    PushRejected,
    /// The token or App lacks a permission on the forge; `details.scope` names it.
    PermissionMissing,
    /// The project has no connection to the forge of that address; `details.host` names it.
    NotConnected,
    /// The forge no longer accepts the connection's token.
    TokenExpired,
    /// The thing has changed since the `ETag` in `If-Match`.
    PreconditionFailed,
    /// A push exceeds the allowed size.
    PackTooLarge,
    /// The body, file or output exceeds the allowed size.
    PayloadTooLarge,
    /// A field has a value that is not allowed; the message names it.
    Invalid,
    /// The `Idempotency-Key` was used for a different request.
    IdempotencyKeyReused,
    /// Another installation of the same database holds this; ask that one.
    OtherInstallation,
    /// The thing existed and was removed.
    Gone,
    /// The project has reached a quota; `details` has the figures.
    QuotaExceeded,
    /// All places of a shared pool, or the project's share of it, are in use; retry after `Retry-After`.
    PoolBusy,
    /// The key or address sends too many requests; retry after `Retry-After`.
    RateLimited,
    /// The server failed; its log has the cause under the request id.
    Internal,
    /// The host of the sandboxes failed; `/api/v1/admin/host` has the cause under the request id.
    HostFailed,
    /// This server does not have that feature.
    NotSupported,
    /// A part of the installation does not answer right now; retry.
    Unavailable,
    /// The forge does not answer, or its answer cannot be parsed; retry.
    ForgeUnreachable,
    /// The server's disk is nearly full.
    DiskLow,
}

impl Code {
    /// Every code.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// One line for people.
    pub fn meaning(self) -> &'static str {
        self.get_documentation().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_one_name_and_a_meaning() {
        for code in Code::ALL {
            let text = serde_json::to_value(code).unwrap();
            assert_eq!(text, code.as_str());
            assert_eq!(code.as_str().parse::<Code>(), Ok(*code));
            assert!(code.meaning().ends_with('.'), "{code} needs one sentence in its doc comment");
            assert!(!code.meaning().contains('|'), "{code} would break the table in docs/api.md");
        }
    }
}
