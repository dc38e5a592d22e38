//! E2B's REST routes: which of them this server has, and how far.
//!
//! [`Routes`] records the paths of the router, and [`E2B_ROUTES`] says what each is worth. A test compares the two
//! and writes the table in `docs/e2b.md`. Routes that E2B's clients know and this server does not have are in the
//! same table, with what to use instead.

use std::sync::Arc;

use axum::Router;
use axum::routing::MethodRouter;
use coffer_core::Code;

use super::app::App;
use super::error::ApiError;

/// How far a route of E2B's is supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    Full,
    /// The note says what is missing.
    Partial,
    /// Not registered: refused with 501. The note says what it is, and what to use instead.
    Refused {
        what: &'static str,
    },
}

/// One or more methods of a path.
#[derive(Debug, Clone, Copy)]
pub struct E2bRoute {
    /// As in `GET POST`; `*` is every method.
    pub methods: &'static str,
    pub path: &'static str,
    pub support: Support,
    pub note: &'static str,
}

const fn full(methods: &'static str, path: &'static str, note: &'static str) -> E2bRoute {
    E2bRoute { methods, path, support: Support::Full, note }
}

const fn partial(methods: &'static str, path: &'static str, note: &'static str) -> E2bRoute {
    E2bRoute { methods, path, support: Support::Partial, note }
}

const fn refused(path: &'static str, what: &'static str, note: &'static str) -> E2bRoute {
    E2bRoute { methods: "*", path, support: Support::Refused { what }, note }
}

/// Every route that E2B's SDKs and command line can call. A row covers the path; refused ones also what is below.
pub const E2B_ROUTES: &[E2bRoute] = &[
    full("GET", "/health", ""),
    full("GET", "/sandboxes", "running ones, all at once"),
    partial("POST", "/sandboxes", "the default timeout is 15 s; otherwise as `POST /v2/sandboxes`"),
    full("GET", "/v2/sandboxes", "paging, `metadata`, `state`, `template`, `order`, `startedAfter`"),
    partial(
        "POST",
        "/v2/sandboxes",
        "`Idempotency-Key`; the default timeout is 300 s. `iam` and `network.egressProxy.tls` are refused (501). \
         `mcp` is taken, but there is no template `mcp-gateway`: name one that has the program",
    ),
    full("GET", "/sandboxes/metrics", ""),
    full("GET DELETE", "/sandboxes/{id}", ""),
    full("POST", "/sandboxes/{id}/timeout", ""),
    full("POST", "/sandboxes/{id}/refreshes", ""),
    full(
        "POST",
        "/sandboxes/{id}/pause",
        "keeps memory: on disk if the host has CRIU, else frozen; `memory: false` keeps only files, and a resume \
         boots again",
    ),
    full("POST", "/sandboxes/{id}/resume", ""),
    full("POST", "/sandboxes/{id}/connect", ""),
    full("POST", "/v2/sandboxes/{id}/connect", ""),
    partial(
        "PUT",
        "/sandboxes/{id}/network",
        "`allowOut`, `denyOut`, `dnsServers`, `allow_internet_access` and `egressProxy` (without `tls`) are enforced, \
         also for open connections; `rules` put headers, with secrets, into requests to their hosts \
         ([secrets.md](secrets.md)); answers do not contain their values. `GET /api/v1/sandboxes/{id}/network` lists \
         refused connections and the rule that refused them",
    ),
    full("GET", "/sandboxes/{id}/metrics", "a sample every 5 s, kept in memory"),
    full("GET", "/sandboxes/{id}/logs", ""),
    full("GET", "/v2/sandboxes/{id}/logs", "`cursor`, `direction`, `level`, `search`"),
    full(
        "POST",
        "/sandboxes/{id}/fork",
        "one result or error for each fork; over quota is 429, before the source is frozen",
    ),
    full(
        "POST",
        "/sandboxes/{id}/snapshots",
        "usable as `templateID` by id, `id:default`, `name`, or `project/name:tag`",
    ),
    full("GET", "/snapshots", ""),
    full("GET POST", "/secrets", "the secrets of `/api/v1/secrets`, by E2B's rules ([below](#secrets))"),
    full("GET POST DELETE", "/secrets/{secret}", "by id or name"),
    full("GET", "/templates", "the server's and the project's"),
    full("GET", "/v2/templates", "always one page"),
    full("GET", "/templates/aliases/{alias}", ""),
    full("POST", "/v2/templates", ""),
    full("POST", "/v3/templates", "requests a build"),
    full("GET", "/templates/{id}/files/{hash}", ""),
    full("PUT", "/templates/uploads/{token}", "where the link of an upload leads"),
    full("POST", "/v2/templates/{id}/builds/{build}", "starts a build"),
    full("GET", "/templates/{id}/builds/{build}/status", "with the log"),
    refused(
        "/templates/{id}/builds/{build}/logs",
        "logs of builds by themselves",
        "use `GET /templates/{id}/builds/{build}/status`",
    ),
    full("GET", "/templates/{id}", ""),
    full("DELETE", "/templates/{id}", "also snapshots; the server's own templates cannot be deleted"),
    partial("PATCH", "/templates/{id}", "no template can be public"),
    partial("PATCH", "/v2/templates/{id}", "no template can be public"),
    full("POST DELETE", "/templates/tags", ""),
    full("GET", "/templates/{id}/tags", ""),
    refused(
        "/templates/{id}/tags/{detail}",
        "counts, groups and histories of tags",
        "use `GET /templates/{id}/tags`",
    ),
    full("GET POST", "/volumes", "directories that outlive sandboxes ([volumes.md](volumes.md))"),
    full("GET DELETE", "/volumes/{id}", "one that a sandbox mounts is not deleted (409)"),
    full("GET PATCH DELETE", "/volumecontent/{id}/path", "with the volume's token"),
    full("GET POST", "/volumecontent/{id}/dir", "at most 10,000 entries"),
    full("GET PUT", "/volumecontent/{id}/file", "a file is replaced as a whole"),
    full("GET", "/teams", "the project of the key"),
    refused("/teams/{team}/metrics", "metrics of teams", "use `GET /api/v1/usage`"),
    refused("/default-templates", "lists of default templates", "use `GET /templates`"),
    refused("/access-tokens", "access tokens of accounts", "use a key: `POST /api/v1/keys`"),
    refused("/api-keys", "E2B's keys", "use `/api/v1/keys`"),
    refused("/events", "E2B's events and webhooks", "use `/api/v1/events` and `/api/v1/webhooks`"),
    refused("/nodes", "lists of nodes", "use `GET /api/v1/admin/host`"),
];

/// A router, and the paths in it.
#[derive(Debug, Default)]
pub(super) struct Routes {
    pub(super) router: Router<Arc<App>>,
    pub(super) paths: Vec<&'static str>,
}

impl Routes {
    pub(super) fn route(self, path: &'static str, methods: MethodRouter<Arc<App>>) -> Self {
        let mut paths = self.paths;
        paths.push(path);
        Self { router: self.router.route(path, methods), paths }
    }
}

/// The refusal for a path that E2B has and this server does not, if it is one.
pub(super) fn refusal(path: &str) -> Option<ApiError> {
    let is_at = |route: &&E2bRoute| {
        let mut parts = path.split('/');
        let same = |part: &str| parts.next().is_some_and(|asked| part.starts_with('{') || asked == part);
        route.path.split('/').all(same)
    };
    let refused = E2B_ROUTES.iter().filter(|route| matches!(route.support, Support::Refused { .. }));
    let route = refused.clone().find(is_at)?;
    let Support::Refused { what } = route.support else { return None };
    Some(ApiError::of(Code::NotSupported, format!("this server does not support {what}; {}", route.note)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_route_covers_what_is_below_it_and_nothing_else() {
        for path in ["/api-keys", "/api-keys/", "/api-keys/x", "/teams/x/metrics", "/teams/x/metrics/max"] {
            let (code, message, _) = refusal(path).expect(path).into_parts();
            assert!(code == Code::NotSupported && message.contains("; use "), "{path}: {message}");
        }
        for path in ["", "/", "/api-keysx", "/teams", "/teams/x", "/teams/x/y", "/sandboxes", "/v2/api-keys"]
        {
            assert_eq!(refusal(path), None, "{path}");
        }
    }
}
