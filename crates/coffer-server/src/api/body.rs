//! Request bodies: JSON, bounded, with refusals in E2B's shape.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use http::StatusCode;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use super::error::ApiError;

/// No request body is longer.
const LONGEST_BODY: usize = 1024 * 1024;

/// SDKs give a whole request this long.
const WITHIN: Duration = Duration::from_secs(60);

/// A JSON body. The content type is not looked at: clients differ in it and there is no other.
#[derive(Debug)]
pub(crate) struct Body<T>(pub(crate) T);

/// A JSON body that may be left out.
#[derive(Debug)]
pub(crate) struct MaybeBody<T>(pub(crate) T);

async fn read(request: Request) -> Result<Bytes, ApiError> {
    let body = Limited::new(request.into_body(), LONGEST_BODY).collect();
    let Ok(body) = tokio::time::timeout(WITHIN, body).await else {
        return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "the request body did not come in time"));
    };
    match body {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the request body is longer than {LONGEST_BODY} bytes"),
        )),
        Err(_) => Err(ApiError::bad_request("the request body broke off")),
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body)
        .map_err(|error| ApiError::bad_request(format!("invalid request body: {error}")))
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
        let blank = body.iter().all(u8::is_ascii_whitespace) || &body[..] == b"null";
        if blank { Ok(Self(T::default())) } else { parse(&body).map(Self) }
    }
}
