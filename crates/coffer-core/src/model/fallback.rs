//! Where a call goes when its provider cannot answer it, and the record of where it went.

use serde::{Deserialize, Serialize};

use super::{KeyHeader, Provider};

/// Most fallbacks of a project, all providers together.
pub const MOST_FALLBACKS: usize = 12;

/// Another way to answer calls of a provider's API: another place, another key, another model. What is not named stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelFallback {
    /// Whose calls, and so which API is spoken.
    pub provider: Provider,
    /// The address of another endpoint with the same API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The secret with its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// The header of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<KeyHeader>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// How one try of a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TryOutcome {
    Answered,
    /// 429 or 529.
    Overloaded,
    /// Another error of the provider.
    Failed,
    Unreachable,
    /// Not tried: it failed several times in a row a moment ago.
    Paused,
}

impl TryOutcome {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Overloaded => "overloaded",
            Self::Failed => "failed",
            Self::Unreachable => "unreachable",
            Self::Paused => "paused",
        }
    }
}

/// One try of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelTry {
    /// The provider, or the host of a fallback.
    pub place: String,
    pub model: String,
    pub outcome: TryOutcome,
    pub status: Option<u16>,
    pub duration_ms: i64,
}
