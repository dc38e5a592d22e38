//! The gateway's own answers, in the shape in which clients of a provider read errors.

use serde_json::{Value, json};

use super::Provider;

/// The body of a refusal. `why` is for people.
pub fn refusal_body(provider: Option<Provider>, status: u16, why: &str) -> Value {
    match provider {
        Some(Provider::Anthropic) => {
            let kind = match status {
                400 | 413 | 415 => "invalid_request_error",
                401 => "authentication_error",
                402 => "billing_error",
                403 => "permission_error",
                404 => "not_found_error",
                429 => "rate_limit_error",
                529 | 503 => "overloaded_error",
                _ => "api_error",
            };
            json!({"type": "error", "error": {"type": kind, "message": why}})
        }
        Some(Provider::Gemini) => {
            let name = match status {
                400 | 413 | 415 => "INVALID_ARGUMENT",
                401 => "UNAUTHENTICATED",
                402 | 429 => "RESOURCE_EXHAUSTED",
                403 => "PERMISSION_DENIED",
                404 => "NOT_FOUND",
                503 => "UNAVAILABLE",
                _ => "INTERNAL",
            };
            json!({"error": {"code": status, "message": why, "status": name}})
        }
        Some(Provider::OpenAi) | None => {
            let code = match status {
                401 => "invalid_api_key",
                402 => "insufficient_quota",
                403 => "model_not_allowed",
                429 => "rate_limit_exceeded",
                400..=499 => "invalid_request",
                _ => "server_error",
            };
            let kind = if status < 500 && status != 402 { "invalid_request_error" } else { code };
            json!({"error": {"message": why, "type": kind, "param": null, "code": code}})
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_provider_has_its_shape_and_all_say_why() {
        let of = |provider| refusal_body(provider, 402, "the budget is spent");
        assert_eq!(of(Some(Provider::Anthropic))["error"]["type"], "billing_error");
        assert_eq!(of(Some(Provider::OpenAi))["error"]["code"], "insufficient_quota");
        assert_eq!(of(Some(Provider::Gemini))["error"]["code"], 402);
        for provider in [Some(Provider::Anthropic), Some(Provider::OpenAi), Some(Provider::Gemini), None] {
            assert_eq!(of(provider)["error"]["message"], "the budget is spent");
        }
    }
}
