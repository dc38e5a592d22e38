//! Webhooks and their deliveries.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::fields::named;

/// A webhook to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewWebhook {
    /// Where events are sent, by POST.
    #[schema(example = "https://example.com/hooks/coffer", max_length = 2048)]
    pub url: String,
    /// Which: kinds as `GET /api/v1/events` shows them; one that ends in `*` means all that begin so.
    #[schema(example = json!(["task.*", "run.ended"]), min_items = 1, max_items = 50)]
    pub events: Vec<String>,
    /// The name of a secret of the project that deliveries are signed with. Without one a key is made, and
    /// shown this once.
    pub secret: Option<String>,
    /// Only what is about tasks and artifacts of this context.
    pub context_id: Option<String>,
    #[serde(default)]
    pub description: String,
    /// True by default.
    pub enabled: Option<bool>,
}

/// What is to be other about a webhook; what is left out stays.
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
    /// One that is enabled again is told what happens from then on.
    pub enabled: Option<bool>,
}

/// Someone who is told what happens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Webhook {
    pub id: String,
    /// For keys that are no admin's only its host: with some receivers the whole is all that one has to know.
    pub url: String,
    pub events: Vec<String>,
    /// The name of the secret that it is signed with; null where it has a key of its own.
    pub secret: Option<String>,
    pub context_id: Option<String>,
    pub description: String,
    pub enabled: bool,
    /// `asked`, `failing` (it had not worked for days) or `gone` (it answered 410).
    pub disabled_reason: Option<String>,
    /// Deliveries that are still to be made.
    pub waiting: i64,
    /// Failures since it last worked.
    pub failures: i64,
    pub failing_since: Option<String>,
    pub last_success_at: Option<String>,
    pub created_at: String,
    pub updated_at: String,
}

/// A webhook that was just made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MadeWebhook {
    #[serde(flatten)]
    pub webhook: Webhook,
    /// What deliveries are signed with, where it was made here; it is not shown again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing_secret: Option<String>,
}

/// A key that was just made; it is not shown again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SigningSecret {
    #[schema(example = "whsec_…")]
    pub signing_secret: String,
}

/// An event on its way to a webhook.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = WebhookDelivery)]
pub struct Delivery {
    /// The receiver has it as `X-Coffer-Delivery`, the same for every try.
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
    /// The first of what was answered. It is the receiver's text, not ours.
    pub response: Option<String>,
    pub error: Option<String>,
    pub duration_ms: Option<i64>,
    pub created_at: String,
    pub ended_at: Option<String>,
}

/// The same with what was sent.
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
