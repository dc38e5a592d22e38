//! Separates answers of sandboxes from the server's own origin, where the web UI holds its key.
//!
//! A request that names its sandbox by headers, or by the signature of a file URL, is answered at the
//! server's own address. To a browser that answer belongs to the same origin as the UI and the API: it could
//! be cached under the name of a script of the UI, set cookies, or clear the UI's storage. So such requests
//! get no path that the server answers itself and nothing that a browser would run, and their answers are not
//! stored and carry no header that outlives them. Requests by host name (`<port>-<id>.<domain>`) have their
//! own origin.

use coffer_wire::agentd;
use http::header::{
    ALT_SVC, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, EXPIRES, ORIGIN, SET_COOKIE,
    STRICT_TRANSPORT_SECURITY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, Request};

use super::answer::{Reader, Refusal};
use super::head;

/// First segments of the paths that the server answers itself.
const OWN: [&str; 15] = [
    "ui",
    "api",
    "mcp",
    "git",
    "metrics",
    "health",
    "sandboxes",
    "v2",
    "v3",
    "snapshots",
    "teams",
    "templates",
    "volumes",
    "volumecontent",
    "secrets",
];

/// Of those, the paths that agentd answers too: plain text and JSON, which SDKs request by headers.
const SHARED: [&str; 2] = ["/health", "/metrics"];

/// What browsers may use a signed file for. None of it runs in our origin: pages get their own.
const SIGNED_USES: [&str; 8] = ["empty", "document", "iframe", "frame", "image", "audio", "video", "track"];

const FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SERVICE_WORKER: HeaderName = HeaderName::from_static("service-worker");

/// Headers whose effect outlives the answer or reaches other answers of the origin.
const STRIPPED: [HeaderName; 21] = [
    SET_COOKIE,
    STRICT_TRANSPORT_SECURITY,
    ALT_SVC,
    EXPIRES,
    HeaderName::from_static("set-cookie2"),
    HeaderName::from_static("clear-site-data"),
    HeaderName::from_static("nel"),
    HeaderName::from_static("report-to"),
    HeaderName::from_static("reporting-endpoints"),
    HeaderName::from_static("service-worker-allowed"),
    HeaderName::from_static("accept-ch"),
    HeaderName::from_static("critical-ch"),
    HeaderName::from_static("no-vary-search"),
    HeaderName::from_static("use-as-dictionary"),
    HeaderName::from_static("speculation-rules"),
    HeaderName::from_static("set-login"),
    HeaderName::from_static("activate-storage-access"),
    HeaderName::from_static("public-key-pins"),
    HeaderName::from_static("expect-ct"),
    // Instructions to caches in front of the server.
    HeaderName::from_static("cdn-cache-control"),
    HeaderName::from_static("surrogate-control"),
];

/// How a request at the server's own address names its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    Headers,
    Signature,
}

/// Refuses requests that a browser could take for a part of the server.
pub(super) fn check<B>(request: &Request<B>, named: Named, port: u16) -> Result<(), Refusal> {
    let (headers, path) = (request.headers(), request.uri().path());
    if headers.contains_key(SERVICE_WORKER) {
        return Err(Refusal::RunsInOurOrigin);
    }
    let uses: &[&str] = match named {
        Named::Headers => &["empty"],
        Named::Signature => &SIGNED_USES,
    };
    let fits = |value: &HeaderValue| uses.iter().any(|name| value == name);
    if !headers.get_all(FETCH_DEST).iter().all(fits) {
        return Err(Refusal::RunsInOurOrigin);
    }
    if named == Named::Headers && is_own(path, port, headers) {
        return Err(Refusal::OwnPath);
    }
    Ok(())
}

fn is_own(path: &str, port: u16, headers: &HeaderMap) -> bool {
    if port == agentd::PORT && SHARED.contains(&path) {
        return false;
    }
    // Programs may ask a server inside for its first page; to a browser `/` is the way to the UI.
    // Browsers send `Sec-Fetch-…` only over TLS and to the machine itself.
    let is_browser = [FETCH_DEST, FETCH_SITE, ORIGIN].iter().any(|name| headers.contains_key(name))
        || Reader::of(headers) == Reader::Browser;
    head::leads_to(path, &OWN) || (is_browser && path.chars().all(|c| matches!(c, '/' | '.' | '\\')))
}

/// Makes the answer of a sandbox one that leaves no trace in our origin.
pub(super) fn guard(answer: &mut HeaderMap, named: Named) {
    for name in STRIPPED {
        answer.remove(name);
    }
    answer.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer.append(VARY, HeaderValue::from_static("e2b-sandbox-id, e2b-sandbox-port"));
    answer.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // A page or a picture with a script in it gets its own origin.
    let policy = HeaderValue::from_static("sandbox; default-src 'none'");
    answer.insert(CONTENT_SECURITY_POLICY, policy);
    // The policy of the UI names its own files, but older browsers send no `Sec-Fetch-Dest`.
    let runs = |kind: &HeaderValue| {
        let kind = kind.as_bytes().to_ascii_lowercase();
        [&b"script"[..], b"css"].iter().any(|part| kind.windows(part.len()).any(|found| found == *part))
    };
    if named == Named::Signature && answer.get_all(CONTENT_TYPE).iter().any(runs) {
        answer.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(path: &str, named: Named, port: u16, headers: &[(&str, &str)]) -> Result<(), Refusal> {
        let mut request = Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        check(&request.body(()).unwrap(), named, port)
    }

    #[test]
    fn headers_reach_no_path_of_the_servers_own() {
        for path in [
            "/ui/",
            "/ui/assets/index-1.js",
            "/UI/theme.js",
            "/%75i/theme.js",
            "//ui/theme.js",
            "/./ui/theme.js",
            "/x/../ui/theme.js",
            "/api/v1/docs",
            "/git/p/r.git/info/refs",
            "/sandboxes",
            "/v2/sandboxes/x/logs",
            "/templates/x",
        ] {
            for port in [agentd::PORT, 8000] {
                assert_eq!(judged(path, Named::Headers, port, &[]), Err(Refusal::OwnPath), "{path}");
            }
        }
        for (path, port) in [
            ("/health", agentd::PORT),
            ("/metrics", agentd::PORT),
            ("/files", agentd::PORT),
            ("/process.Process/Start", agentd::PORT),
            ("/execute", 49999),
            ("/", 8000),
        ] {
            assert_eq!(judged(path, Named::Headers, port, &[]), Ok(()), "{path}");
        }
        assert_eq!(judged("/metrics", Named::Headers, 8000, &[]), Err(Refusal::OwnPath));
        let browser = [("sec-fetch-site", "same-origin"), ("sec-fetch-dest", "empty")];
        assert_eq!(judged("/", Named::Headers, 8000, &browser), Err(Refusal::OwnPath));
        for sign in [("origin", "http://a.example"), ("user-agent", "Mozilla/5.0 (X11)")] {
            assert_eq!(judged("/", Named::Headers, 8000, &[sign]), Err(Refusal::OwnPath), "{sign:?}");
        }
        assert_eq!(judged("/process.Process/Start", Named::Headers, agentd::PORT, &browser), Ok(()));
    }

    #[test]
    fn nothing_runs_in_our_origin() {
        for dest in ["document", "script", "worker", "serviceworker", "style", "iframe", "Script", ""] {
            let headers = [("sec-fetch-dest", dest)];
            assert!(judged("/files", Named::Headers, agentd::PORT, &headers).is_err(), "{dest}");
        }
        for dest in ["script", "worker", "sharedworker", "serviceworker", "style", "manifest", "object"] {
            let headers = [("sec-fetch-dest", dest)];
            assert!(judged("/files", Named::Signature, agentd::PORT, &headers).is_err(), "{dest}");
        }
        for dest in ["document", "image", "empty"] {
            let headers = [("sec-fetch-dest", dest)];
            assert_eq!(judged("/files", Named::Signature, agentd::PORT, &headers), Ok(()), "{dest}");
        }
        let twice = [("sec-fetch-dest", "empty"), ("sec-fetch-dest", "script")];
        assert!(judged("/files", Named::Headers, agentd::PORT, &twice).is_err());
        let worker = [("service-worker", "script")];
        assert!(judged("/files", Named::Signature, agentd::PORT, &worker).is_err());
    }
}
