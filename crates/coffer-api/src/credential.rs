//! What a request shows to be let in: a key in a header, or the session of a browser.
//!
//! A session has two halves. The browser sends one by itself, in a cookie; a page of the UI sends the other, from the storage
//! of its origin, as the header `X-Coffer-Session` or among the subprotocols of a WebSocket. Neither opens anything alone, so
//!
//! - a page elsewhere that makes the browser send a request sends the cookie without the other half;
//! - a program at another port of the host, to which browsers send the cookie too, learns half a secret;
//! - a cookie that somebody planted fits no page.
//!
//! Where the browser says which site a request comes from, it must be the UI's own origin.

use coffer_core::{Code, ProjectId};
use coffer_proxy::{PLAIN_COOKIE, SECURE_COOKIE, SESSION_HEADER, SESSION_PROTOCOL};
use coffer_store::Authenticated;
use http::header::{AUTHORIZATION, COOKIE, HOST, ORIGIN, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{HeaderMap, Uri};

use crate::app::App;
use crate::error::ApiError;

/// Names the project that a page shows: an operator's session may look into any, and another's must be the same one.
const PROJECT_HEADER: &str = "x-coffer-project";
/// The same for WebSockets.
const PROJECT_PROTOCOL: &str = "coffer.project.";
/// Digits of the cookie's half and of the page's.
const HALVES: (usize, usize) = (64, 32);
/// Cookies of a request that are tried.
const MOST_COOKIES: usize = 4;
/// What the store knows a session by.
const MARK: &str = "session_";

/// What a request shows.
#[derive(Debug)]
pub(crate) enum Credential {
    Key(String),
    /// The browser may have several cookies of the name; at most one of them fits the page.
    Session {
        texts: Vec<String>,
        project: Option<ProjectId>,
    },
}

impl Credential {
    /// What rates of unknown clients are counted by.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Key(text) => text,
            Self::Session { texts, .. } => texts.first().map(String::as_str).unwrap_or_default(),
        }
    }

    /// Its holder, with the text that opened.
    pub(crate) async fn holder(&self, app: &App) -> Result<Option<(Authenticated, &str)>, ApiError> {
        let texts = match self {
            Self::Key(key) => {
                let whom = app.store.authenticate(key).await.map_err(ApiError::store)?;
                return Ok(whom.map(|whom| (whom, key.as_str())));
            }
            Self::Session { texts, .. } => texts,
        };
        for text in texts {
            if let Some(whom) = app.store.still_valid(text).await.map_err(ApiError::store)? {
                return Ok(Some((whom, text)));
            }
        }
        Ok(None)
    }

    pub(crate) const fn why_refused(&self) -> &'static str {
        match self {
            Self::Key(_) => "invalid API key",
            Self::Session { .. } => "the session has ended; sign in again",
        }
    }
}

/// The credential of a request. A key in a header wins, valid or not.
pub(crate) fn shown(headers: &HeaderMap) -> Result<Option<Credential>, ApiError> {
    if headers.contains_key("x-api-key") || headers.contains_key(AUTHORIZATION) {
        return Ok(key(headers).map(|key| Credential::Key(key.to_string())));
    }
    let Some(page) = page_half(headers) else { return Ok(None) };
    check_site(headers)?;
    let texts: Vec<String> =
        cookie_halves(headers).map(|cookie| format!("{MARK}{cookie}{page}")).take(MOST_COOKIES).collect();
    if texts.is_empty() {
        return Ok(None);
    }
    Ok(Some(Credential::Session { texts, project: named_project(headers)? }))
}

/// `X-API-KEY`, or `Authorization: Bearer`.
fn key(headers: &HeaderMap) -> Option<&str> {
    if let Some(key) = headers.get("x-api-key") {
        return key.to_str().ok();
    }
    let (scheme, key) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

/// Refuses requests that a page of another origin, or of no origin, made the browser send.
pub(crate) fn check_site(headers: &HeaderMap) -> Result<(), ApiError> {
    // Browsers differ in what they say of WebSockets, which always have `Origin`.
    let is_socket = headers.contains_key(UPGRADE);
    let own_site = is_socket || headers.get_all("sec-fetch-site").iter().all(|site| site == "same-origin");
    // Sandboxes are other origins of the same site, so `same-site` is not enough. Old browsers, and all over plain HTTP, do
    // not send this; they send `Origin` with writes and with WebSockets.
    let own_origin = headers.get_all(ORIGIN).iter().all(|origin| {
        let origin = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        let authority = origin.as_ref().and_then(|origin| origin.authority());
        authority.is_some_and(|named| host.is_some_and(|host| named.as_str().eq_ignore_ascii_case(host)))
    });
    let named = !is_socket || headers.contains_key(ORIGIN);
    if own_site && own_origin && named {
        return Ok(());
    }
    Err(ApiError::of(Code::Forbidden, "a session works only from pages of the web UI's own origin")
        .hint("programs send an API key as the header X-API-KEY; a reverse proxy must keep the header Host"))
}

fn page_half(headers: &HeaderMap) -> Option<&str> {
    let half = match headers.get(SESSION_HEADER) {
        Some(half) => half.to_str().ok()?,
        None => among_protocols(headers, SESSION_PROTOCOL)?,
    };
    is_half(half, HALVES.1).then_some(half)
}

/// The cookie's halves. Without TLS, a page of a sandbox below the UI's host can plant more of them.
fn cookie_halves(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let named = move |name: &'static str| {
        let cookies = headers.get_all(COOKIE).iter().filter_map(|cookie| cookie.to_str().ok());
        let pairs =
            cookies.flat_map(|cookie| cookie.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs
            .filter(move |(cookie, value)| *cookie == name && is_half(value, HALVES.0))
            .map(|(_, value)| value)
    };
    named(SECURE_COOKIE).chain(named(PLAIN_COOKIE))
}

fn is_half(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn named_project(headers: &HeaderMap) -> Result<Option<ProjectId>, ApiError> {
    let named = match headers.get(PROJECT_HEADER) {
        Some(named) => named.to_str().ok(),
        None => among_protocols(headers, PROJECT_PROTOCOL),
    };
    let malformed = |_| ApiError::bad_request("the header X-Coffer-Project is not the id of a project");
    named.map(|named| named.parse().map_err(malformed)).transpose()
}

fn among_protocols<'h>(headers: &'h HeaderMap, mark: &str) -> Option<&'h str> {
    let protocols = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    protocols.flat_map(|value| value.split(',')).find_map(|protocol| protocol.trim().strip_prefix(mark))
}

/// The holder of a session in the project that the page shows.
pub(crate) async fn in_project(
    app: &App,
    whom: Authenticated,
    project: ProjectId,
) -> Result<Authenticated, ApiError> {
    match whom {
        Authenticated::Operator { key } => {
            let operator = app.store.operator();
            let known = app.store.project(&operator, project).await.map_err(ApiError::store)?;
            known.ok_or_else(|| ApiError::nothing("project", project))?;
            Ok(Authenticated::Project(operator.visiting(project, key)))
        }
        Authenticated::Project(principal) if principal.scope.project() == project => Ok(whom),
        // Somebody signed in to another project in another tab.
        Authenticated::Project(_) => {
            Err(ApiError::of(Code::Forbidden, "this browser is signed in to another project now")
                .hint("load the page again"))
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const COOKIE_HALF: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const PAGE_HALF: &str = "fedcba9876543210fedcba9876543210";

    fn read(headers: &[(&'static str, String)]) -> Result<Option<String>, ()> {
        let pairs = headers.iter().map(|(name, value)| {
            (http::HeaderName::from_static(name), HeaderValue::try_from(value.clone()).unwrap())
        });
        let mut map = HeaderMap::new();
        map.insert(HOST, HeaderValue::from_static("127.0.0.1:3000"));
        for (name, value) in pairs {
            map.append(name, value);
        }
        shown(&map).map(|found| found.map(|found| found.text().to_string())).map_err(drop)
    }

    fn cookie(name: &str) -> (&'static str, String) {
        ("cookie", format!("a=b; {name}={COOKIE_HALF}"))
    }

    fn page() -> (&'static str, String) {
        ("x-coffer-session", PAGE_HALF.into())
    }

    #[test]
    fn both_halves_make_a_session_and_a_key_wins() {
        let whole = Ok(Some(format!("session_{COOKIE_HALF}{PAGE_HALF}")));
        for name in [SECURE_COOKIE, PLAIN_COOKIE] {
            assert_eq!(read(&[cookie(name), page()]), whole);
            assert_eq!(read(&[cookie(name)]), Ok(None), "the browser's half alone");
        }
        assert_eq!(read(&[page()]), Ok(None), "the page's half alone");
        let socket = ("sec-websocket-protocol", format!("coffer.events.v1, coffer.session.{PAGE_HALF}"));
        assert_eq!(read(&[cookie(PLAIN_COOKIE), socket]), whole);
        let key = ("x-api-key", "e2b_1".to_string());
        assert_eq!(read(&[cookie(SECURE_COOKIE), page(), key]), Ok(Some("e2b_1".into())));
        let basic = ("authorization", "Basic eDp5".to_string());
        assert_eq!(
            read(&[cookie(SECURE_COOKIE), page(), basic]),
            Ok(None),
            "nor does another header fall back to it"
        );
        // What a sandbox above the host planted is passed over if it is malformed, and else fits no page.
        let planted = ("cookie", format!("{PLAIN_COOKIE}=x; {PLAIN_COOKIE}={COOKIE_HALF}"));
        assert_eq!(read(&[planted, page()]), whole);
    }

    #[test]
    fn a_session_works_from_its_own_origin() {
        let with = |name, value: &str| read(&[cookie(PLAIN_COOKIE), page(), (name, value.to_string())]);
        assert!(with("sec-fetch-site", "same-origin").is_ok());
        assert!(with("origin", "http://127.0.0.1:3000").is_ok());
        for site in ["same-site", "cross-site", "none", ""] {
            assert!(with("sec-fetch-site", site).is_err(), "{site}");
        }
        for origin in
            ["null", "http://127.0.0.1:8000", "http://8000-x.localhost:3000", "http://127.0.0.1", ""]
        {
            assert!(with("origin", origin).is_err(), "{origin}");
        }
        assert!(with("upgrade", "websocket").is_err(), "a WebSocket says its origin");
        let twice = [("origin", "http://127.0.0.1:3000"), ("origin", "http://a.example")];
        let twice = twice.map(|(name, value)| (name, value.to_string()));
        assert!(read(&[vec![cookie(PLAIN_COOKIE), page()], twice.to_vec()].concat()).is_err());
    }
}
