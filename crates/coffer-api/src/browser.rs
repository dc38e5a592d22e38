//! Lets pages of any site call the API, as E2B's does: the key protects it, and a browser never sends a key by
//! itself.
//!
//! Answers are data, whatever a tenant put into them: browsers must not guess another type for them, run them,
//! or show them in a frame.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_REQUEST_METHOD,
    CONTENT_SECURITY_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, Method};

use coffer_proxy::allow_preflight;

/// Answers CORS preflight requests, and lets pages read every other answer.
pub(super) async fn admit(request: Request, next: Next) -> Response {
    if request.method() == Method::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
        return allow_preflight(request.headers());
    }
    let mut response = next.run(request).await;
    let answer = response.headers_mut();
    answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    answer.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
    answer.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // Our own pages set their own policy.
    answer
        .entry(CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static("sandbox; default-src 'none'; frame-ancestors 'none'"));
    response
}
