//! Turns errors of the store into refusals. Details that callers must not see are logged here.

use coffer_core::{Code, Refusal, chain};
use serde_json::json;

use crate::{NameError, OverQuota, StoreError};

/// If a sandbox ends within this time, the refusal says when to retry.
const NEAR_MS: i64 = 300_000;

impl StoreError {
    /// Whether the same call may work soon.
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Transient { .. })
    }
}

impl From<&StoreError> for Refusal {
    fn from(error: &StoreError) -> Self {
        match error {
            StoreError::TooManyPairs { .. } => Self::new(Code::BadRequest, error.to_string()),
            StoreError::Refused(_) => Self::conflict(error.to_string()),
            StoreError::Transient { .. } | StoreError::Closed => {
                tracing::warn!("the database is unavailable: {error}");
                Self::new(Code::Unavailable, "the database does not answer right now").retry_after(1)
            }
            StoreError::Sealed { .. } => {
                tracing::error!("{error}");
                Self::new(Code::Unavailable, "this needs a master key that is missing")
                    .hint("operators: GET /api/v1/admin/master-key shows which one")
            }
            StoreError::Database { .. } | StoreError::Unreadable { .. } => {
                tracing::error!("the store failed: {}", chain(error));
                Self::internal()
            }
        }
    }
}

impl NameError {
    /// The refusal of a request about the `kind` called `name`.
    pub fn explain(&self, kind: &str, name: impl std::fmt::Display) -> Refusal {
        match self {
            Self::Taken => Refusal::conflict(format!("{kind} '{name}' already exists")),
            Self::NotFound => Refusal::nothing(kind, name),
            Self::Store(error) => error.into(),
        }
    }
}

impl From<&OverQuota> for Refusal {
    /// If a sandbox ends soon, it says when to retry.
    fn from(over: &OverQuota) -> Self {
        let details = json!({
            "quota": over.quota, "limit": over.limit, "used": over.used, "asked": over.asked
        });
        let refusal = Self::new(Code::QuotaExceeded, over.to_string())
            .details(details)
            .hint("end or pause sandboxes, or ask an operator to raise it; GET /api/v1/quotas shows it");
        match over.frees_in_ms {
            Some(in_ms) if in_ms <= NEAR_MS => {
                refusal.retry_after(u32::try_from(in_ms / 1000 + 1).unwrap_or(u32::MAX))
            }
            _ => refusal,
        }
    }
}

impl OverQuota {
    /// The refusal for storage.
    pub fn explain_storage(&self) -> Refusal {
        Refusal::from(self).hint(
            "delete repositories, Git LFS objects or artifacts, or ask an operator to raise it; GET /api/v1/quotas shows it",
        )
    }
}
