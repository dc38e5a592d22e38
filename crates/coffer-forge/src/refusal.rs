//! Turns a forge's errors into refusals. Details that callers must not see are logged here.

use std::time::Duration;

use coffer_core::{Code, Refusal};
use serde_json::json;

use crate::{DiskLow, ForgeError};

impl From<&ForgeError> for Refusal {
    fn from(error: &ForgeError) -> Self {
        let message = error.to_string();
        let seconds = |wait: &Duration| u32::try_from(wait.as_secs()).unwrap_or(u32::MAX).max(1);
        match error {
            ForgeError::NotFound { .. } => Self::new(Code::NotFound, message),
            ForgeError::NotConnected { host } => Self::new(Code::NotConnected, message)
                .details(json!({ "host": host }))
                .hint(if host == "github.com" {
                    "connect it: `coffer repo connect github`, or Settings, Connections in the web UI".to_string()
                } else {
                    format!(
                        "connect it: `coffer repo add URL --token-env VARIABLE` for a git server, `coffer repo connect \
                         github --host {host}` for GitHub Enterprise, or Settings, Connections in the web UI"
                    )
                }),
            ForgeError::PermissionMissing { scope, .. } => Self::new(Code::PermissionMissing, message)
                .details(json!({ "scope": scope }))
                .hint("grant the token or App that permission on the forge, then retry"),
            ForgeError::TokenExpired | ForgeError::Credential { .. } => Self::new(Code::TokenExpired, message)
                .hint("put a new token into the secret of the connection: PUT /api/v1/secrets/{name}"),
            ForgeError::RateLimited { retry_after } => {
                Self::new(Code::RateLimited, message).retry_after(seconds(retry_after))
            }
            ForgeError::NotYours { .. } => Self::new(Code::Forbidden, message),
            ForgeError::Protected { .. } => Self::new(Code::BranchProtected, message),
            ForgeError::Conflict { paths, .. } if paths.is_empty() => Self::conflict(message),
            ForgeError::Conflict { paths, .. } => Self::new(Code::MergeConflict, message)
                .details(json!({ "paths": paths }))
                .hint("merge or rebase the base branch into the head, resolve these files, and push"),
            ForgeError::PullExists { number } => Self::conflict(message).details(json!({ "number": number })),
            ForgeError::Raced { .. } => Self::conflict(message),
            ForgeError::Invalid { .. } => Self::new(Code::Invalid, message),
            ForgeError::PackTooLarge { .. } => Self::new(Code::PackTooLarge, message).hint(
                "push it in smaller parts, keep large files in Git LFS, or ask an operator to raise the setting",
            ),
            ForgeError::TooLarge { .. } => Self::new(Code::PayloadTooLarge, message),
            ForgeError::Unreachable { retry_after, .. } => Self::new(Code::ForgeUnreachable, message)
                .retry_after(retry_after.as_ref().map_or(1, seconds)),
            ForgeError::PoolBusy(full) => (*full).into(),
            ForgeError::OverQuota(over) => over.explain_storage(),
            ForgeError::DiskLow(low) => low.into(),
            ForgeError::Busy => Self::new(Code::Unavailable, message).retry_after(1),
            ForgeError::Strange(_) => Self::new(Code::ForgeUnreachable, message),
            ForgeError::NoGit => Self::new(Code::Unavailable, message),
            ForgeError::Git(why) => {
                tracing::error!("git failed: {why}");
                Self::internal()
            }
            ForgeError::Store(error) => error.into(),
        }
    }
}

impl From<&DiskLow> for Refusal {
    fn from(low: &DiskLow) -> Self {
        tracing::warn!("a write was refused: {low}");
        Self::new(Code::DiskLow, low.to_string())
            .hint("an operator can free or add space, or lower `limits.min_free_disk`")
            .retry_after(60)
    }
}
