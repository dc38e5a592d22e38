//! An operator's settings of metrics and spans.

use coffer_core::settings::SecretText;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[metrics]`: access to `/metrics`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsSettings {
    /// Whether `/metrics` answers without a key. Otherwise it requires an operator's key, as a bearer token.
    pub public: bool,
}

/// `[traces]`: destinations of spans. Nothing is sent unless `endpoint` or all three Langfuse settings are
/// set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TraceSettings {
    /// The OTLP/HTTP endpoint, such as `http://localhost:4318`; `/v1/traces` is appended.
    #[schemars(extend("x-env" = "OTEL_EXPORTER_OTLP_ENDPOINT"))]
    pub endpoint: Option<String>,
    /// Headers for it, as `name=value,name=value`.
    #[schemars(extend("x-env" = "OTEL_EXPORTER_OTLP_HEADERS"))]
    pub headers: Option<SecretText>,
    /// Langfuse's address, such as `https://cloud.langfuse.com`.
    #[schemars(extend("x-env" = "LANGFUSE_HOST"))]
    pub langfuse_host: Option<String>,
    /// The public key of a Langfuse project.
    #[schemars(extend("x-env" = "LANGFUSE_PUBLIC_KEY"))]
    pub langfuse_public_key: Option<String>,
    /// Its secret key.
    #[schemars(extend("x-env" = "LANGFUSE_SECRET_KEY"))]
    pub langfuse_secret_key: Option<SecretText>,
}

/// A setting of traces is unusable.
#[derive(Debug, thiserror::Error)]
#[error("`{setting}` is not usable: {why}")]
pub struct BadTraceSetting {
    pub setting: &'static str,
    pub why: String,
}
