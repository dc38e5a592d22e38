//! Webhooks and their deliveries.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::fields::named;

/// A new webhook.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewWebhook {
    /// The address to which events are sent, by POST.
    #[schema(example = "https://example.com/hooks/coffer", max_length = 2048)]
    pub url: String,
    /// Kinds of events, as `GET /api/v1/events` returns them; `task.*` means all with that prefix.
    #[schema(example = json!(["task.*", "run.ended"]), min_items = 1, max_items = 50)]
    pub events: Vec<String>,
    /// The name of a secret of the project that signs deliveries. Without one the server creates a key and
    /// returns it this once.
    pub secret: Option<String>,
    /// Only events about tasks and artifacts of this context.
    pub context_id: Option<String>,
    #[serde(default)]
    pub description: String,
    /// True by default.
    pub enabled: Option<bool>,
}

/// Changes to a webhook; fields that are left out stay.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ChangedWebhook {
    #[schema(max_length = 2048)]
    pub url: Option<String>,
    #[schema(min_items = 1, max_items = 50)]
    pub events: Option<Vec<String>>,
    /// The name of a secret of the project.
    pub secret: Option<String>,
    #[serde(deserialize_with = "named", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub context_id: Option<Option<String>>,
    pub description: Option<String>,
    /// A webhook that is enabled again gets the events from then on.
    pub enabled: Option<bool>,
}

/// A webhook.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Webhook {
    pub id: String,
    /// For keys without the role admin only its host: for some receivers the whole URL is the credential.
    pub url: String,
    pub events: Vec<String>,
    /// The name of the secret that signs it; null if it has its own key.
    pub secret: Option<String>,
    pub context_id: Option<String>,
    pub description: String,
    pub enabled: bool,
    /// `asked`, `failing` (it had failed for days) or `gone` (it answered 410).
    pub disabled_reason: Option<String>,
    /// Waiting deliveries.
    pub waiting: i64,
    /// Failures since it last worked.
    pub failures: i64,
    pub failing_since: Option<String>,
    pub last_success_at: Option<String>,
    pub created_at: String,
    pub updated_at: String,
}

/// A webhook that was just created.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MadeWebhook {
    #[serde(flatten)]
    pub webhook: Webhook,
    /// The key that signs deliveries, if the server created it; it is not returned again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing_secret: Option<String>,
}

/// A key that was just created; it is not returned again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SigningSecret {
    #[schema(example = "whsec_…")]
    pub signing_secret: String,
}

/// An event on its way to a webhook.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = WebhookDelivery)]
pub struct Delivery {
    /// The receiver gets it as `X-Coffer-Delivery`, the same for every try.
    pub id: String,
    /// Its number in the event log; null for a test.
    pub event: Option<i64>,
    pub kind: String,
    /// `waiting`, `delivered` or `failed`.
    pub state: String,
    pub tries: i64,
    pub next_try_at: Option<String>,
    /// Of the last try.
    pub response_status: Option<u16>,
    /// The beginning of the answer. It is the receiver's text, not ours.
    pub response: Option<String>,
    pub error: Option<String>,
    pub duration_ms: Option<i64>,
    pub created_at: String,
    pub ended_at: Option<String>,
}

/// A delivery with its body.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = WebhookDeliveryDetail)]
pub struct DeliveryDetail {
    #[serde(flatten)]
    pub delivery: Delivery,
    pub body: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct DeliveryQuery {
    /// `waiting`, `delivered` or `failed`.
    pub state: Option<String>,
}
