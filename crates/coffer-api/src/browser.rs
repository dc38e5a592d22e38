//! Pages of any site may use the API, as they may E2B's: what counts is the key, which a browser
//! never sends by itself.
//!
//! What the API answers is data, whatever a tenant put into it: no browser may guess another type for it, run it, or show
//! it in a frame.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_REQUEST_METHOD,
    CONTENT_SECURITY_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, Method};

use coffer_proxy::allow_preflight;

/// Answers what browsers ask before they send, and lets pages read every other answer.
pub(super) async fn admit(request: Request, next: Next) -> Response {
    if request.method() == Method::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
        return allow_preflight(request.headers());
    }
    let mut response = next.run(request).await;
    let answer = response.headers_mut();
    answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    answer.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
    answer.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // Pages of ours bring their own.
    answer
        .entry(CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static("sandbox; default-src 'none'; frame-ancestors 'none'"));
    response
}
