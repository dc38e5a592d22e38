//! Request bodies: JSON, bounded, with refusals in E2B's shape.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use super::error::ApiError;
use coffer_core::Code;

/// No request body is longer.
const LONGEST_BODY: usize = 1024 * 1024;

/// How much of an unknown field's name is repeated in a refusal.
const LONGEST_SHOWN: usize = 200;

/// SDKs allow this long for a whole request.
const WITHIN: Duration = Duration::from_secs(60);

/// A JSON body. The content type is ignored: clients send different ones, and every body is JSON.
#[derive(Debug)]
pub(crate) struct Body<T>(pub T);

/// A JSON body that may be left out.
#[derive(Debug)]
pub(crate) struct MaybeBody<T>(pub T);

async fn read(request: Request) -> Result<Bytes, ApiError> {
    let body = Limited::new(request.into_body(), LONGEST_BODY).collect();
    let Ok(body) = tokio::time::timeout(WITHIN, body).await else {
        return Err(ApiError::of(Code::RequestTimeout, "the request body did not arrive in time"));
    };
    match body {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ApiError::of(
            Code::PayloadTooLarge,
            format!("the request body is longer than {LONGEST_BODY} bytes"),
        )),
        Err(_) => Err(ApiError::bad_request("the connection ended before the whole request body arrived")),
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body)
        .map_err(|error| ApiError::bad_request(format!("invalid request body: {error}")))
}

/// The body of a request to our own API. Malformed JSON is a 400; JSON of the wrong shape is a 422.
#[derive(Debug)]
pub(crate) struct Checked<T>(pub T);

/// The same for a body that may be left out.
#[derive(Debug)]
pub(crate) struct MaybeChecked<T>(pub T);

/// Refuses unknown fields also in shapes that responses use too, and that therefore allow them.
fn parse_own<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let mut unknown = None;
    let parsed = serde_ignored::deserialize(&mut json, |path| {
        unknown.get_or_insert_with(|| path.to_string());
    });
    let parsed = parsed.and_then(|parsed| json.end().map(|()| parsed));
    let parsed = parsed.map_err(|error| match error.classify() {
        serde_json::error::Category::Data => {
            ApiError::of(Code::Invalid, format!("the request body is invalid: {error}"))
        }
        _ => ApiError::bad_request(format!("the request body is not JSON: {error}")),
    })?;
    match unknown {
        None => Ok(parsed),
        Some(path) => {
            // A field that may be null is a step of its own in the path.
            let field: String = path.replace(".?", "").chars().take(LONGEST_SHOWN).collect();
            Err(ApiError::of(Code::Invalid, format!("the request body is invalid: unknown field `{field}`")))
        }
    }
}

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for Checked<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        parse_own(&read(request).await?).map(Self)
    }
}

impl<T: DeserializeOwned + Default, S: Sync> FromRequest<S> for MaybeChecked<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let body = read(request).await?;
        if is_blank(&body) { Ok(Self(T::default())) } else { parse_own(&body).map(Self) }
    }
}

/// Some clients send `null` for an empty body.
fn is_blank(body: &[u8]) -> bool {
    body.iter().all(u8::is_ascii_whitespace) || body == b"null"
}

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let body = read(request).await?;
        if body.is_empty() {
            return Err(ApiError::bad_request("the request needs a JSON body"));
        }
        parse(&body).map(Self)
    }
}

impl<T: DeserializeOwned + Default, S: Sync> FromRequest<S> for MaybeBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let body = read(request).await?;
        if is_blank(&body) { Ok(Self(T::default())) } else { parse(&body).map(Self) }
    }
}

#[cfg(test)]
mod tests {
    use coffer_api_types::agents::NewAgent;
    use coffer_api_types::limits::{QuotasShape, SettingsShape};
    use serde::de::DeserializeOwned;

    use super::*;

    fn refusal<T: DeserializeOwned + std::fmt::Debug>(body: &str) -> (Code, String) {
        let (code, message, _) = parse_own::<T>(body.as_bytes()).unwrap_err().into_parts();
        (code, message)
    }

    #[test]
    fn unknown_fields_are_refused_by_name() {
        let unknown =
            |field: &str| (Code::Invalid, format!("the request body is invalid: unknown field `{field}`"));
        assert_eq!(refusal::<QuotasShape>(r#"{"cpus": 4, "gpus": 1}"#), unknown("gpus"));
        let body = r#"{"retention": {"logs_days": 1, "logs_weeks": 1}}"#;
        assert_eq!(refusal::<SettingsShape>(body), unknown("retention.logs_weeks"));
        let body = r#"{"name": "a", "definition": {"preset": "codex", "colour": "red"}}"#;
        assert_eq!(refusal::<NewAgent>(body), unknown("definition.colour"));
        let (code, message) = refusal::<NewAgent>(r#"{"name": "a", "colour": "red"}"#);
        assert_eq!(code, Code::Invalid);
        assert!(message.contains("unknown field `colour`"), "{message}");
        let long = format!(r#"{{"{}": 1}}"#, "x".repeat(1000));
        assert!(refusal::<QuotasShape>(&long).1.len() < 300);
    }

    #[test]
    fn what_follows_the_body_is_not_json() {
        assert!(parse_own::<QuotasShape>(b" {} \n").is_ok());
        let (code, message) = refusal::<QuotasShape>("{} {}");
        assert_eq!(code, Code::BadRequest);
        assert!(message.starts_with("the request body is not JSON"), "{message}");
        assert_eq!(refusal::<QuotasShape>(r#"{"cpus": "many"}"#).0, Code::Invalid);
        assert_eq!(refusal::<QuotasShape>("{").0, Code::BadRequest);
    }
}
