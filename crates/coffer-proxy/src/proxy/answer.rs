//! The proxy's own answers, with the texts that SDKs match.

use axum::body::Body;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS, CACHE_CONTROL,
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, RETRY_AFTER, USER_AGENT, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde::Serialize;

/// Why a request did not reach a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Unknown, destroyed, timed out, or paused.
    NotFound,
    /// The sandbox runs; nothing listens on the port.
    PortClosed,
    /// The port was reached and closed without a word.
    NoAnswer,
    /// The port answered in something other than HTTP.
    NotHttp,
    /// The port is set to TLS, and does not speak it.
    NotTls,
    /// The port accepted the request and stayed silent.
    TooSlow,
    TokenMissing,
    TokenWrong,
    /// A pause or resume is in progress.
    Transitioning,
    /// Every connection that a sandbox may have is in use.
    TooManyConnections,
    /// The project holds its share of the server's connections.
    ProjectConnections,
    /// It could be woken, but there is no room.
    NoRoom,
    /// The project has a command policy that does not allow code.
    CodeForbidden,
    /// A route that is for the server only.
    NoSuchRoute,
    BadSignature,
    /// The headers name a sandbox, but the path is one that the server answers itself.
    OwnPath,
    /// A browser would run the answer in the server's own origin.
    RunsInOurOrigin,
    /// Too many invalid signatures came from this peer; none are checked for now.
    TooManyGuesses,
    /// The configured host mask cannot be a header.
    BadMask,
    Malformed(&'static str),
}

impl Refusal {
    fn status(self) -> StatusCode {
        match self {
            Self::NotFound
            | Self::PortClosed
            | Self::NoAnswer
            | Self::NotHttp
            | Self::NotTls
            | Self::BadMask => StatusCode::BAD_GATEWAY,
            Self::TooSlow => StatusCode::GATEWAY_TIMEOUT,
            Self::TokenMissing | Self::TokenWrong | Self::CodeForbidden => StatusCode::FORBIDDEN,
            Self::Transitioning => StatusCode::CONFLICT,
            Self::TooManyConnections | Self::ProjectConnections | Self::NoRoom | Self::TooManyGuesses => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::NoSuchRoute => StatusCode::NOT_FOUND,
            Self::BadSignature => StatusCode::UNAUTHORIZED,
            Self::RunsInOurOrigin => StatusCode::FORBIDDEN,
            Self::OwnPath | Self::Malformed(_) => StatusCode::BAD_REQUEST,
        }
    }

    fn message(self) -> &'static str {
        match self {
            // SDKs match `was not found` and `port is not open`.
            Self::NotFound => "The sandbox was not found",
            Self::PortClosed => "The sandbox is running but port is not open",
            Self::NoAnswer => "The sandbox closed the connection without an answer",
            Self::NotHttp => "The sandbox answered with something other than HTTP",
            Self::NotTls => "The sandbox's port is set to HTTPS but did not answer in TLS",
            Self::TooSlow => "The sandbox did not answer in time",
            Self::TokenMissing => {
                "The sandbox accepts traffic only with its token in the header e2b-traffic-access-token"
            }
            Self::TokenWrong => "The traffic access token is not this sandbox's",
            Self::Transitioning => "The sandbox is still transitioning. Try again in a moment.",
            Self::TooManyConnections => "Too many connections to the sandbox are open",
            Self::ProjectConnections => {
                "The project holds its share of the server's connections. Try again in a moment."
            }
            Self::NoRoom => "The host has no room to resume the sandbox now",
            Self::CodeForbidden => {
                "The project's command policy does not allow code in every language. Add a rule that allows `code:*`, or use \
                 POST /api/v1/sandboxes/{id}/code for the languages that it allows"
            }
            Self::NoSuchRoute => "Route not found",
            Self::BadSignature => "invalid signature",
            Self::OwnPath => {
                "The path is one of the server's own. Address the sandbox by host name: <port>-<id>.<domain>"
            }
            Self::RunsInOurOrigin => {
                "A browser may not load this at the server's address. Use the host name <port>-<id>.<domain>"
            }
            Self::TooManyGuesses => "Too many invalid signatures. Try again in a moment.",
            Self::BadMask => "The sandbox's request host mask cannot be used as a Host header",
            Self::Malformed(why) => why,
        }
    }

    /// The title of the page that a browser gets: E2B's own, where clients match it.
    fn title(self) -> &'static str {
        match self {
            Self::NotFound => "Sandbox Not Found",
            Self::PortClosed => "Closed Port Error",
            other => other.message(),
        }
    }

    /// Whether the port belongs in the answer.
    fn names_port(self) -> bool {
        matches!(self, Self::PortClosed | Self::NoAnswer | Self::NotHttp | Self::NotTls | Self::TooSlow)
    }

    /// The answer to `reader` about `sandbox`.
    pub(super) fn answer(self, reader: Reader, sandbox: Option<&str>, port: Option<u16>) -> Response<Body> {
        let status = self.status();
        let port = port.filter(|_| self.names_port());
        let (kind, body) = match reader {
            Reader::Browser => ("text/html; charset=utf-8", page(self, sandbox, port)),
            Reader::Program => {
                let (message, code) = (self.message(), status.as_u16());
                let body = RefusalBody { sandbox_id: sandbox, message, port, code };
                ("application/json", serde_json::to_string(&body).expect("text and numbers are JSON"))
            }
        };
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let answer = response.headers_mut();
        answer.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        answer.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
        answer.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        answer.insert(VARY, HeaderValue::from_static("user-agent"));
        answer.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        // The page is our own and has no script; text that it quotes must not become one.
        answer.insert(
            CONTENT_SECURITY_POLICY,
            HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'"),
        );
        if status == StatusCode::TOO_MANY_REQUESTS {
            answer.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// Lets a browser send the sandbox headers: the request that follows is judged on its own.
pub fn allow_preflight(asked: &HeaderMap) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let answer = response.headers_mut();
    answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    answer.insert(
        ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"),
    );
    // Named one by one, because `*` does not cover Authorization.
    for names in asked.get_all(ACCESS_CONTROL_REQUEST_HEADERS) {
        answer.append(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    answer.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("7200"));
    answer.insert(VARY, HeaderValue::from_static("access-control-request-headers"));
    response
}

#[derive(Serialize)]
struct RefusalBody<'a> {
    #[serde(rename = "sandboxId", skip_serializing_if = "Option::is_none")]
    sandbox_id: Option<&'a str>,
    message: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    code: u16,
}

/// The kind of client that reads a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    Program,
    Browser,
}

impl Reader {
    /// Decides by the `User-Agent`.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let agent = headers.get(USER_AGENT).map_or(&b""[..], HeaderValue::as_bytes);
        if agent.starts_with(b"Mozilla/") || agent.starts_with(b"Opera/") {
            Self::Browser
        } else {
            Self::Program
        }
    }
}

fn page(refusal: Refusal, sandbox: Option<&str>, port: Option<u16>) -> String {
    let status = refusal.status();
    let (title, message) = (escape(refusal.title()), escape(refusal.message()));
    let mut facts = String::new();
    if let Some(sandbox) = sandbox {
        facts.push_str(&format!("<p>Sandbox <code>{}</code></p>", escape(sandbox)));
    }
    if let Some(port) = port {
        facts.push_str(&format!("<p>Port <code>{port}</code></p>"));
    }
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title><style>\
         :root{{color-scheme:light dark}}body{{font:1rem/1.5 system-ui,sans-serif;margin:20vh auto;\
         max-width:36rem;padding:0 1rem}}h1{{font-size:1.25rem}}code{{font-family:ui-monospace,monospace}}\
         </style></head><body><h1>{message}</h1>{facts}<p>{status}</p></body></html>"
    )
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    async fn text(response: Response<Body>) -> String {
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn bodies_are_the_ones_sdks_know() {
        for (refusal, status, body) in [
            (
                Refusal::NotFound,
                502,
                r#"{"sandboxId":"abc","message":"The sandbox was not found","code":502}"#,
            ),
            (
                Refusal::PortClosed,
                502,
                r#"{"sandboxId":"abc","message":"The sandbox is running but port is not open","port":3000,"code":502}"#,
            ),
            (
                Refusal::TokenWrong,
                403,
                r#"{"sandboxId":"abc","message":"The traffic access token is not this sandbox's","code":403}"#,
            ),
            (
                Refusal::Transitioning,
                409,
                r#"{"sandboxId":"abc","message":"The sandbox is still transitioning. Try again in a moment.","code":409}"#,
            ),
            (
                Refusal::TooManyConnections,
                429,
                r#"{"sandboxId":"abc","message":"Too many connections to the sandbox are open","code":429}"#,
            ),
        ] {
            let response = refusal.answer(Reader::Program, Some("abc"), Some(3000));
            assert_eq!(response.status(), status);
            assert_eq!(response.headers()["content-type"], "application/json");
            assert_eq!(response.headers()["access-control-allow-origin"], "*");
            assert_eq!(response.headers().contains_key("retry-after"), status == 429);
            assert_eq!(text(response).await, body);
        }
        let malformed = Refusal::Malformed("why").answer(Reader::Program, None, None);
        assert_eq!(text(malformed).await, r#"{"message":"why","code":400}"#);
    }

    #[tokio::test]
    async fn a_browser_gets_a_page_and_nothing_in_it_is_markup() {
        let mut headers = HeaderMap::new();
        headers.insert(USER_AGENT, HeaderValue::from_static("Mozilla/5.0 (X11; Linux x86_64)"));
        assert_eq!(Reader::of(&HeaderMap::new()), Reader::Program);
        let reader = Reader::of(&headers);
        let response = Refusal::PortClosed.answer(reader, Some("<img src=x onerror='a&b'>"), Some(80));
        assert_eq!(response.headers()["content-type"], "text/html; charset=utf-8");
        let text = text(response).await;
        assert!(text.contains("&lt;img src=x onerror=&#39;a&amp;b&#39;&gt;"), "{text}");
        assert!(text.contains("port is not open") && text.contains("<code>80</code>"), "{text}");
        assert!(text.contains("<title>Closed Port Error</title>"), "{text}");
    }
}
