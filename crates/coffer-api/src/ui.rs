//! The web UI: files that are built before and embedded in the program.
//!
//! It is below `/ui/`, because E2B's routes use the names that its pages would have (`/sandboxes/{id}`); `/`
//! redirects there. All pages are one document, whose script reads the rest of the path. Names below `assets/`
//! contain a digest of their contents, so browsers cache them for good.

use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest as _, Sha256};

use super::error::ApiError;
use coffer_core::Code;

/// A file of the web UI, plain and compressed.
#[derive(Debug, Clone, Copy)]
pub struct UiFile {
    /// Below `/ui/`.
    pub path: &'static str,
    pub plain: &'static [u8],
    pub gzip: Option<&'static [u8]>,
    pub brotli: Option<&'static [u8]>,
}

/// Headers of every page of ours, next to its content security policy.
const GUARDS: [(&str, &str); 5] = [
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("permissions-policy", "camera=(), microphone=(), geolocation=(), payment=(), usb=()"),
];

/// Adds the guard headers and this content security policy to a page of ours.
pub(super) fn guard(page: &mut HeaderMap, policy: HeaderValue) {
    page.insert(CONTENT_SECURITY_POLICY, policy);
    for (name, value) in GUARDS {
        page.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
}

/// Allows nothing from other hosts, no script except the files below `/ui/`, and no frame around the page.
/// Styles may be inline, because the terminal writes its own; output of sandboxes is only ever text.
///
/// `'self'` would also allow `/files?…&signature=…`, which is a file of a sandbox. A path needs a host before
/// it: the one that the browser requested. A policy cannot name most kinds of addresses; for those `'self'`
/// stays.
///
/// The import map, which has the digests of scripts that pages load later, is the only script in the document
/// itself.
fn policy(headers: &HeaderMap, import_map: Option<&str>) -> HeaderValue {
    let files = match headers.get(HOST).and_then(|host| host.to_str().ok()) {
        Some(host) if can_be_named(host) => format!("{host}/ui/"),
        _ => "'self'".to_string(),
    };
    let map = import_map.map(|digest| format!(" '{digest}'")).unwrap_or_default();
    let policy = format!(
        "default-src 'none'; script-src {files}{map}; style-src {files} 'unsafe-inline'; \
         img-src {files} blob: data:; font-src {files}; connect-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    );
    HeaderValue::try_from(policy).expect("letters, digits and quotes")
}

/// Whether a policy can name this `Host`: a name or 127.0.0.1, with or without a port.
fn can_be_named(host: &str) -> bool {
    let (name, port) = host.split_once(':').unwrap_or((host, "80"));
    let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.';
    let is_name = !name.is_empty() && name.bytes().all(fits) && name.parse::<std::net::IpAddr>().is_err();
    (is_name || name == "127.0.0.1") && !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit())
}

const NOT_BUILT: &str = "<!doctype html><html lang=en><meta charset=utf-8><title>Cofferdam</title>\
    <h1>Cofferdam</h1><p>This program was built without its web UI. \
    <code>make build</code> builds both; it needs Node and npm. The API is at \
    <a href=/api/v1/docs>/api/v1/docs</a>.";

/// The routes of the web UI.
pub(super) fn router<S: Clone + Send + Sync + 'static>(files: &'static [UiFile]) -> Router<S> {
    let ui = Arc::new(Ui::new(files));
    let of_pages = ui.clone();
    let page = move |headers: HeaderMap| async move { of_pages.answer("index.html", &headers) };
    let file = move |Path(path): Path<String>, headers: HeaderMap| async move { ui.answer(&path, &headers) };
    Router::new()
        .route("/", get(|| async { Redirect::temporary("/ui/") }))
        .route("/ui", get(|| async { Redirect::temporary("/ui/") }))
        .route("/ui/", get(page))
        .route("/ui/{*path}", get(file))
}

#[derive(Debug)]
struct Ui {
    files: &'static [UiFile],
    /// The digest of the import map in the document.
    import_map: Option<String>,
}

impl Ui {
    fn new(files: &'static [UiFile]) -> Self {
        let mut ui = Self { files, import_map: None };
        ui.import_map = ui.find("index.html").and_then(|page| {
            let (_, after) =
                std::str::from_utf8(page.plain).ok()?.split_once(r#"<script type="importmap">"#)?;
            Some(digest_of(after.split_once("</script>")?.0))
        });
        ui
    }

    fn find(&self, path: &str) -> Option<&'static UiFile> {
        self.files.iter().find(|file| file.path == path)
    }

    fn answer(&self, path: &str, headers: &HeaderMap) -> Response {
        let kept = path.starts_with("assets/");
        let mut response = match self.find(path) {
            Some(file) => content(file, headers),
            None if kept => {
                let message = "the web UI has no such file; it may be of another version";
                return ApiError::of(Code::NotFound, message).hint("load the page again").into_response();
            }
            None => self
                .find("index.html")
                .map_or_else(|| Html(NOT_BUILT).into_response(), |page| content(page, headers)),
        };
        let caching = if kept { "public, max-age=31536000, immutable" } else { "no-cache" };
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static(caching));
        guard(response.headers_mut(), policy(headers, self.import_map.as_deref()));
        response
    }
}

/// The digest of an element's text, as a content security policy writes it.
pub(super) fn digest_of(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}

fn content(file: &UiFile, headers: &HeaderMap) -> Response {
    let accepted = headers.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let takes = |coding: &str| {
        accepted.split(',').any(|one| {
            let mut parts = one.split(';').map(str::trim);
            parts.next() == Some(coding) && parts.all(|weight| weight != "q=0")
        })
    };
    let (bytes, coding) = match (file.brotli, file.gzip) {
        (Some(brotli), _) if takes("br") => (brotli, Some("br")),
        (_, Some(gzip)) if takes("gzip") => (gzip, Some("gzip")),
        _ => (file.plain, None),
    };
    let mut response = bytes.into_response();
    let answer = response.headers_mut();
    answer.insert(CONTENT_TYPE, HeaderValue::from_static(media_type(file.path)));
    answer.insert(VARY, HeaderValue::from_static("accept-encoding"));
    if let Some(coding) = coding {
        answer.insert(CONTENT_ENCODING, HeaderValue::from_static(coding));
    }
    response
}

fn media_type(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("woff2") => "font/woff2",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    const FILES: &[UiFile] = &[
        UiFile { path: "index.html", plain: b"page", gzip: Some(b"gz"), brotli: Some(b"br") },
        UiFile { path: "assets/a-1.js", plain: b"script", gzip: None, brotli: None },
    ];

    fn accepting(codings: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(codings))])
    }

    fn header<'r>(response: &'r Response, name: &str) -> Option<&'r str> {
        response.headers().get(name).map(|value| value.to_str().unwrap())
    }

    #[test]
    fn a_path_of_a_page_is_the_document_and_is_asked_for_again() {
        for path in ["", "sandboxes/abc", "settings/keys"] {
            let response = Ui::new(FILES).answer(path, &HeaderMap::new());
            assert_eq!(response.status(), StatusCode::OK);
            assert_eq!(header(&response, "content-type"), Some("text/html; charset=utf-8"));
            assert_eq!(header(&response, "cache-control"), Some("no-cache"));
            assert!(header(&response, "content-security-policy").unwrap().contains("script-src 'self';"));
        }
    }

    #[test]
    fn scripts_come_from_the_files_of_the_ui_alone() {
        let script_src = |host: &str| {
            let headers = HeaderMap::from_iter([(HOST, HeaderValue::try_from(host).unwrap())]);
            let response = Ui::new(FILES).answer("", &headers);
            let policy = header(&response, "content-security-policy").unwrap();
            policy.split("; ").find_map(|part| part.strip_prefix("script-src ")).unwrap().to_string()
        };
        for (host, expected) in [
            ("coffer.example", "coffer.example/ui/"),
            ("localhost:3000", "localhost:3000/ui/"),
            ("127.0.0.1:3000", "127.0.0.1:3000/ui/"),
            ("192.0.2.1:3000", "'self'"),
            ("[::1]:3000", "'self'"),
            ("a.b;script-src *", "'self'"),
            ("* 'unsafe-inline'", "'self'"),
            ("a.b:*", "'self'"),
        ] {
            assert_eq!(script_src(host), expected, "{host}");
        }
    }

    #[test]
    fn the_import_map_is_the_one_script_in_the_document() {
        let page = br#"<head><script type="importmap">{"integrity":{}}</script><script src="/ui/theme.js"></script>"#;
        let files: &'static [UiFile] = Box::leak(Box::new([UiFile { plain: page, ..FILES[0] }]));
        let response = Ui::new(files).answer("", &HeaderMap::new());
        let policy = header(&response, "content-security-policy").unwrap();
        let digest = digest_of(r#"{"integrity":{}}"#);
        assert!(policy.contains(&format!("script-src 'self' '{digest}';")), "{policy}");
    }

    #[test]
    fn files_with_a_digest_in_their_name_are_kept_and_missing_ones_are_no_page() {
        let response = Ui::new(FILES).answer("assets/a-1.js", &HeaderMap::new());
        assert_eq!(header(&response, "cache-control"), Some("public, max-age=31536000, immutable"));
        let response = Ui::new(FILES).answer("assets/b-2.js", &HeaderMap::new());
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
    }

    #[test]
    fn what_the_browser_takes_decides_the_coding() {
        for (codings, coding) in [
            ("gzip, deflate, br", Some("br")),
            ("gzip", Some("gzip")),
            ("br;q=0, gzip;q=0", None),
            ("", None),
        ] {
            let response = Ui::new(FILES).answer("", &accepting(codings));
            assert_eq!(header(&response, "content-encoding"), coding, "{codings}");
            assert_eq!(header(&response, "vary"), Some("accept-encoding"));
        }
    }

    #[test]
    fn without_files_a_page_says_how_to_build_them() {
        let response = Ui::new(&[]).answer("sandboxes", &HeaderMap::new());
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(header(&response, "content-type"), Some("text/html; charset=utf-8"));
    }
}
