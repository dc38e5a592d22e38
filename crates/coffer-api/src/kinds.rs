//! Which kind of key may call which route: one table, checked for every key.
//!
//! The kind is checked before the role: if the table does not list a key's kind for a route, the key is
//! refused whatever its role. A route that is not in the table is refused to all. An agent runs code that its
//! task, a web page or a dependency may have written, so it gets only what its work needs: it cannot merge,
//! review, set statuses, change protection or network policy, import, or create projects, keys or
//! repositories.

use coffer_core::KeyKind;
use coffer_core::network::{Base, Policy};
use http::Method;

use super::error::ApiError;
use coffer_core::Code;
use coffer_fleet::MountWish;

/// A set of kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kinds {
    operator: bool,
    person: bool,
    service: bool,
    agent: bool,
}

/// Checks whether a key of this kind may create a sandbox with this network policy. An agent's sandbox has
/// the default policy, or a narrower one: an agent cannot change the policy of an existing sandbox either.
pub(super) fn check_reach(kind: KeyKind, reach: &Policy, default: Base) -> Result<(), ApiError> {
    if kind != KeyKind::Agent || reach.is_within(default) {
        return Ok(());
    }
    let message =
        format!("an agent's key cannot open more of the network than `{default}`, the default, to a sandbox");
    Err(ApiError::of(Code::Forbidden, message).hint(
        "leave `network` out, or have a person or a service change it: PUT /api/v1/sandboxes/{id}/network",
    ))
}

/// Checks whether a key of this kind may mount these volumes. What an agent writes could be run by other
/// sandboxes of the project.
pub(super) fn check_mounts(kind: KeyKind, mounts: &[MountWish]) -> Result<(), ApiError> {
    if kind != KeyKind::Agent || mounts.iter().all(|mount| mount.read_only) {
        return Ok(());
    }
    Err(ApiError::of(Code::Forbidden, "an agent's key mounts volumes only read-only").hint(
        "set `read_only` with POST /api/v1/sandboxes, or have a person or a service create the sandbox",
    ))
}

/// Every key.
const ALL: Kinds = Kinds { operator: true, person: true, service: true, agent: true };
/// Keys of a project.
const PROJECT: Kinds = Kinds { operator: false, ..ALL };
/// Keys of a project, except agents'.
const STAFF: Kinds = Kinds { agent: false, ..PROJECT };
/// Every key except agents'.
const NO_AGENT: Kinds = Kinds { agent: false, ..ALL };
/// Operators' keys.
const OPERATOR: Kinds = Kinds { operator: true, person: false, service: false, agent: false };

impl Kinds {
    const fn has(self, kind: KeyKind) -> bool {
        match kind {
            KeyKind::Operator => self.operator,
            KeyKind::Person => self.person,
            KeyKind::Service => self.service,
            KeyKind::Agent => self.agent,
        }
    }
}

/// Methods, route, kinds. `*` is every method; `GET` includes `HEAD`.
const TABLE: &[(&str, &str, Kinds)] = &[
    // E2B's REST API.
    ("GET POST", "/sandboxes", PROJECT),
    ("GET POST", "/v2/sandboxes", PROJECT),
    ("GET", "/sandboxes/metrics", PROJECT),
    ("GET DELETE", "/sandboxes/{id}", PROJECT),
    ("POST", "/sandboxes/{id}/timeout", PROJECT),
    ("POST", "/sandboxes/{id}/refreshes", PROJECT),
    ("POST", "/sandboxes/{id}/pause", PROJECT),
    ("POST", "/sandboxes/{id}/resume", PROJECT),
    ("POST", "/sandboxes/{id}/connect", PROJECT),
    ("POST", "/v2/sandboxes/{id}/connect", PROJECT),
    ("PUT", "/sandboxes/{id}/network", STAFF),
    ("GET", "/sandboxes/{id}/metrics", PROJECT),
    ("GET", "/sandboxes/{id}/logs", PROJECT),
    ("GET", "/v2/sandboxes/{id}/logs", PROJECT),
    ("POST", "/sandboxes/{id}/fork", PROJECT),
    ("POST", "/sandboxes/{id}/snapshots", PROJECT),
    ("GET", "/snapshots", PROJECT),
    ("GET", "/teams", PROJECT),
    ("GET", "/templates", PROJECT),
    ("GET", "/v2/templates", PROJECT),
    ("POST", "/v2/templates", STAFF),
    ("POST", "/v3/templates", STAFF),
    ("GET", "/templates/aliases/{alias}", PROJECT),
    ("POST DELETE", "/templates/tags", STAFF),
    ("GET", "/templates/{id}", PROJECT),
    // Agents delete their snapshots by it; the handler refuses them templates.
    ("DELETE", "/templates/{id}", PROJECT),
    ("PATCH", "/templates/{id}", STAFF),
    ("GET", "/templates/{id}/tags", PROJECT),
    ("GET", "/templates/{id}/files/{hash}", STAFF),
    ("GET", "/templates/{id}/builds/{build}/status", PROJECT),
    ("PATCH", "/v2/templates/{id}", STAFF),
    ("POST", "/v2/templates/{id}/builds/{build}", STAFF),
    // Content has tokens of its own. `GET` of one volume returns its token.
    ("GET", "/volumes", PROJECT),
    ("POST", "/volumes", STAFF),
    ("GET DELETE", "/volumes/{id}", STAFF),
    ("GET POST", "/secrets", STAFF),
    ("GET POST DELETE", "/secrets/{secret}", STAFF),
    // Git. An agent pushes only to the branches of its tasks.
    ("GET", "/git/{project}/{repository}/info/refs", PROJECT),
    ("POST", "/git/{project}/{repository}/git-upload-pack", PROJECT),
    ("POST", "/git/{project}/{repository}/git-receive-pack", PROJECT),
    ("POST", "/git/{project}/{repository}/info/lfs/objects/batch", PROJECT),
    ("GET PUT", "/git/{project}/{repository}/info/lfs/objects/{oid}", PROJECT),
    ("*", "/git/{project}/{repository}/info/lfs/{*rest}", PROJECT),
    // Tools for models. Each call of one is a request of its own with the same key, to a route of this table.
    ("GET POST DELETE", "/mcp", PROJECT),
    // The installation.
    ("GET", "/metrics", OPERATOR),
    ("GET", "/api/v1/host", PROJECT),
    // Agents use templates; what they would build, others would run.
    ("GET", "/api/v1/templates", PROJECT),
    ("POST", "/api/v1/templates", STAFF),
    ("GET", "/api/v1/templates/{template}", PROJECT),
    ("DELETE", "/api/v1/templates/{template}", STAFF),
    ("POST", "/api/v1/template-files", STAFF),
    ("GET", "/api/v1/template-files/{hash}", STAFF),
    ("GET", "/api/v1/template-builds", PROJECT),
    ("GET", "/api/v1/template-builds/{build}", PROJECT),
    ("POST", "/api/v1/template-builds/{build}/cancel", STAFF),
    ("GET", "/api/v1/template-builds/{build}/log", PROJECT),
    ("GET", "/api/v1/template-builds/{build}/stream", PROJECT),
    ("GET", "/api/v1/admin/catalogue", OPERATOR),
    ("GET", "/api/v1/admin/catalogue/{name}", OPERATOR),
    ("POST", "/api/v1/admin/catalogue/{name}/build", OPERATOR),
    ("GET", "/api/v1/admin/host", OPERATOR),
    ("GET", "/api/v1/admin/master-key", OPERATOR),
    ("POST", "/api/v1/admin/master-key/rotate", OPERATOR),
    ("GET", "/api/v1/admin/sandboxes", OPERATOR),
    ("GET", "/api/v1/admin/usage", OPERATOR),
    ("GET POST", "/api/v1/projects", OPERATOR),
    ("POST", "/api/v1/projects/{project}/keys", OPERATOR),
    ("GET PUT", "/api/v1/projects/{project}/quotas", OPERATOR),
    ("GET PUT", "/api/v1/projects/{project}/settings", OPERATOR),
    // The project.
    ("GET", "/api/v1/me", ALL),
    ("PUT", "/api/v1/me/name", STAFF),
    ("POST", "/api/v1/sign-in-links", STAFF),
    ("GET DELETE", "/api/v1/sessions", NO_AGENT),
    ("DELETE", "/api/v1/sessions/{session}", NO_AGENT),
    ("GET", "/api/v1/people", PROJECT),
    ("POST", "/api/v1/people", STAFF),
    ("PATCH DELETE", "/api/v1/people/{person}", STAFF),
    ("POST", "/api/v1/people/{person}/links", STAFF),
    ("GET", "/api/v1/actors", PROJECT),
    ("GET", "/api/v1/project", PROJECT),
    ("PATCH", "/api/v1/project", STAFF),
    ("GET", "/api/v1/project/settings", PROJECT),
    ("PUT", "/api/v1/project/settings", STAFF),
    ("GET", "/api/v1/quotas", PROJECT),
    ("GET POST", "/api/v1/keys", STAFF),
    ("DELETE", "/api/v1/keys/{key}", STAFF),
    ("POST", "/api/v1/keys/{key}/rotate", STAFF),
    ("GET", "/api/v1/agent-presets", PROJECT),
    ("GET", "/api/v1/agents", PROJECT),
    ("POST", "/api/v1/agents", STAFF),
    ("GET", "/api/v1/agents/{agent}", PROJECT),
    ("DELETE", "/api/v1/agents/{agent}", STAFF),
    ("PUT", "/api/v1/agents/{agent}/definition", STAFF),
    // It spends the key of whoever owns the agent.
    ("POST", "/api/v1/agents/{agent}/test", STAFF),
    ("PUT", "/api/v1/agent-presets/{preset}/agent", STAFF),
    ("GET", "/api/v1/secrets", STAFF),
    ("PUT DELETE", "/api/v1/secrets/{secret}", STAFF),
    ("GET", "/api/v1/volumes", PROJECT),
    ("POST", "/api/v1/volumes", STAFF),
    ("GET", "/api/v1/volumes/{volume}", PROJECT),
    ("DELETE", "/api/v1/volumes/{volume}", STAFF),
    ("GET", "/api/v1/policy", PROJECT),
    ("PUT", "/api/v1/policy", STAFF),
    ("POST", "/api/v1/policy/check", PROJECT),
    ("GET", "/api/v1/audit", STAFF),
    ("GET", "/api/v1/model-calls", PROJECT),
    ("GET", "/api/v1/model-calls/{call}", PROJECT),
    ("GET", "/api/v1/model-policy", PROJECT),
    ("PUT", "/api/v1/model-policy", STAFF),
    ("GET", "/api/v1/model-prices", PROJECT),
    ("GET POST", "/api/v1/budgets", STAFF),
    ("GET PUT DELETE", "/api/v1/budgets/{budget}", STAFF),
    ("GET", "/api/v1/usage", PROJECT),
    ("GET", "/api/v1/prices", PROJECT),
    ("GET POST", "/api/v1/webhooks", STAFF),
    ("GET PATCH DELETE", "/api/v1/webhooks/{webhook}", STAFF),
    ("POST", "/api/v1/webhooks/{webhook}/rotate", STAFF),
    ("POST", "/api/v1/webhooks/{webhook}/test", STAFF),
    ("GET", "/api/v1/webhooks/{webhook}/deliveries", STAFF),
    ("GET", "/api/v1/webhooks/{webhook}/deliveries/{delivery}", STAFF),
    ("POST", "/api/v1/webhooks/{webhook}/deliveries/{delivery}/redeliver", STAFF),
    ("GET", "/api/v1/events", PROJECT),
    ("GET", "/api/v1/events/stream", PROJECT),
    ("GET", "/api/v1/events/ws", PROJECT),
    ("GET", "/api/v1/logs", PROJECT),
    // It looks over all of the project, and agents see only their own.
    ("GET", "/api/v1/search", STAFF),
    // Sandboxes.
    ("GET POST", "/api/v1/sandboxes", PROJECT),
    ("GET DELETE", "/api/v1/sandboxes/{id}", PROJECT),
    ("POST", "/api/v1/sandboxes/{id}/pause", PROJECT),
    ("POST", "/api/v1/sandboxes/{id}/resume", PROJECT),
    ("POST", "/api/v1/sandboxes/{id}/timeout", PROJECT),
    ("POST", "/api/v1/sandboxes/{id}/heartbeat", PROJECT),
    ("GET", "/api/v1/sandboxes/{id}/history", PROJECT),
    ("GET", "/api/v1/sandboxes/{id}/lineage", PROJECT),
    ("GET", "/api/v1/sandboxes/{id}/metrics", PROJECT),
    ("GET", "/api/v1/sandboxes/{id}/network", PROJECT),
    ("PUT", "/api/v1/sandboxes/{id}/network", STAFF),
    ("POST", "/api/v1/sandboxes/{id}/snapshots", PROJECT),
    ("POST", "/api/v1/sandboxes/{id}/rollback", PROJECT),
    ("POST", "/api/v1/sandboxes/{id}/fork", PROJECT),
    ("GET", "/api/v1/snapshots", PROJECT),
    ("GET DELETE", "/api/v1/snapshots/{snapshot}", PROJECT),
    ("POST", "/api/v1/sandboxes/{id}/exec", PROJECT),
    ("POST", "/api/v1/sandboxes/{id}/execute", PROJECT),
    ("POST", "/api/v1/sandboxes/{id}/code", PROJECT),
    ("GET POST", "/api/v1/sandboxes/{id}/code/contexts", PROJECT),
    ("POST", "/api/v1/sandboxes/{id}/code/contexts/{context}/restart", PROJECT),
    ("DELETE", "/api/v1/sandboxes/{id}/code/contexts/{context}", PROJECT),
    ("GET", "/api/v1/sandboxes/{id}/code/notebook", PROJECT),
    ("GET", "/api/v1/sandboxes/{id}/executions", PROJECT),
    ("GET", "/api/v1/sandboxes/{id}/logs", PROJECT),
    ("GET", "/api/v1/sandboxes/{id}/stream", PROJECT),
    ("GET", "/api/v1/sandboxes/{id}/ws", PROJECT),
    ("GET", "/api/v1/sandboxes/{id}/processes", PROJECT),
    ("DELETE", "/api/v1/sandboxes/{id}/processes/{pid}", PROJECT),
    ("GET POST", "/api/v1/sandboxes/{id}/files", PROJECT),
    ("GET HEAD PUT DELETE", "/api/v1/sandboxes/{id}/files/{*path}", PROJECT),
    ("GET", "/api/v1/executions", PROJECT),
    ("GET", "/api/v1/executions/{execution}", PROJECT),
    ("GET", "/api/v1/executions/{execution}/output", PROJECT),
    // Git in sandboxes. An agent pushes, and opens pull requests from, only the branches of its tasks.
    ("POST", "/api/v1/sandboxes/{id}/clone", PROJECT),
    ("POST", "/api/v1/sandboxes/{id}/branch", PROJECT),
    ("POST", "/api/v1/sandboxes/{id}/commit", PROJECT),
    ("GET", "/api/v1/sandboxes/{id}/status", PROJECT),
    ("GET", "/api/v1/sandboxes/{id}/diff", PROJECT),
    ("GET", "/api/v1/sandboxes/{id}/git", PROJECT),
    ("POST", "/api/v1/sandboxes/{id}/push", PROJECT),
    ("POST", "/api/v1/sandboxes/{id}/pr", PROJECT),
    // Tasks and competitions.
    ("GET", "/api/v1/tasks", PROJECT),
    ("POST", "/api/v1/tasks", STAFF),
    ("GET", "/api/v1/tasks/{task}", PROJECT),
    ("PATCH DELETE", "/api/v1/tasks/{task}", STAFF),
    ("POST", "/api/v1/tasks/{task}/start", STAFF),
    ("POST", "/api/v1/tasks/{task}/cancel", STAFF),
    ("POST", "/api/v1/tasks/{task}/interrupt", STAFF),
    ("POST", "/api/v1/tasks/{task}/answer", STAFF),
    ("GET", "/api/v1/tasks/{task}/question", PROJECT),
    ("GET POST", "/api/v1/tasks/{task}/messages", PROJECT),
    ("GET", "/api/v1/tasks/{task}/attempts", PROJECT),
    ("GET", "/api/v1/attempts", PROJECT),
    ("GET POST", "/api/v1/schedules", STAFF),
    ("GET PATCH DELETE", "/api/v1/schedules/{schedule}", STAFF),
    ("POST", "/api/v1/schedules/{schedule}/run", STAFF),
    ("GET", "/api/v1/tasks/{task}/history", PROJECT),
    ("GET", "/api/v1/tasks/{task}/transcript", PROJECT),
    ("GET", "/api/v1/tasks/{task}/transcript/stream", PROJECT),
    ("GET", "/api/v1/runs/{run}/steps", PROJECT),
    ("GET", "/api/v1/queue", STAFF),
    ("GET POST", "/api/v1/sandboxes/fork", STAFF),
    ("GET", "/api/v1/sandboxes/fork/{fork}", STAFF),
    ("POST", "/api/v1/sandboxes/fork/{fork}/cancel", STAFF),
    ("GET", "/api/v1/sandboxes/fork/{fork}/compare", STAFF),
    ("GET", "/api/v1/sandboxes/fork/{fork}/entries/{entry}/diff", STAFF),
    ("GET", "/api/v1/sandboxes/fork/{fork}/entries/{entry}/transcript", STAFF),
    ("GET", "/api/v1/sandboxes/fork/{fork}/entries/{entry}/transcript/stream", STAFF),
    ("POST", "/api/v1/sandboxes/fork/{fork}/winner", STAFF),
    ("GET POST", "/api/v1/artifacts", PROJECT),
    ("POST", "/api/v1/artifacts/upload", PROJECT),
    ("GET", "/api/v1/artifacts/{artifact}", PROJECT),
    ("DELETE", "/api/v1/artifacts/{artifact}", STAFF),
    ("GET", "/api/v1/artifacts/{artifact}/content", PROJECT),
    // Forges.
    ("GET POST", "/api/v1/forge/connections", STAFF),
    ("GET DELETE", "/api/v1/forge/connections/{connection}", STAFF),
    ("GET", "/api/v1/forge/connections/{connection}/permissions", STAFF),
    ("GET", "/api/v1/forge/connections/{connection}/repositories", STAFF),
    ("GET", "/api/v1/repositories", PROJECT),
    ("POST", "/api/v1/repositories", STAFF),
    ("GET", "/api/v1/repositories/{repository}", PROJECT),
    ("PATCH DELETE", "/api/v1/repositories/{repository}", STAFF),
    ("POST", "/api/v1/repositories/{repository}/import", STAFF),
    ("GET", "/api/v1/repositories/{repository}/branches", PROJECT),
    ("GET", "/api/v1/repositories/{repository}/protections", PROJECT),
    ("GET", "/api/v1/repositories/{repository}/protections/{*branch}", PROJECT),
    ("PUT DELETE", "/api/v1/repositories/{repository}/protections/{*branch}", STAFF),
    ("GET", "/api/v1/repositories/{repository}/commits/{commit}/statuses", PROJECT),
    ("POST", "/api/v1/repositories/{repository}/commits/{commit}/statuses", STAFF),
    ("GET POST", "/api/v1/repositories/{repository}/pulls", PROJECT),
    ("GET", "/api/v1/repositories/{repository}/pulls/{number}", PROJECT),
    ("PATCH", "/api/v1/repositories/{repository}/pulls/{number}", STAFF),
    ("GET", "/api/v1/repositories/{repository}/pulls/{number}/diff", PROJECT),
    ("GET", "/api/v1/repositories/{repository}/pulls/{number}/mergeability", PROJECT),
    ("GET", "/api/v1/repositories/{repository}/compare", PROJECT),
    ("GET", "/api/v1/repositories/{repository}/file", PROJECT),
    ("POST", "/api/v1/repositories/{repository}/pulls/{number}/merge", STAFF),
    ("GET", "/api/v1/repositories/{repository}/pulls/{number}/comments", PROJECT),
    ("POST", "/api/v1/repositories/{repository}/pulls/{number}/comments", STAFF),
    ("GET", "/api/v1/repositories/{repository}/pulls/{number}/reviews", PROJECT),
    ("POST", "/api/v1/repositories/{repository}/pulls/{number}/reviews", STAFF),
    ("GET", "/api/v1/repositories/{repository}/pulls/{number}/line-comments", PROJECT),
    ("PATCH DELETE", "/api/v1/repositories/{repository}/pulls/{number}/line-comments/{comment}", STAFF),
    ("POST", "/api/v1/repositories/{repository}/pulls/{number}/line-comments/{comment}/replies", STAFF),
    ("GET", "/api/v1/repositories/{repository}/issues", PROJECT),
    ("POST", "/api/v1/repositories/{repository}/issues", STAFF),
    ("GET", "/api/v1/repositories/{repository}/issues/{number}", PROJECT),
    ("PATCH", "/api/v1/repositories/{repository}/issues/{number}", STAFF),
    ("GET", "/api/v1/repositories/{repository}/issues/{number}/comments", PROJECT),
    ("POST", "/api/v1/repositories/{repository}/issues/{number}/comments", STAFF),
];

/// Whether a key of that kind may call a route.
pub(super) fn may_call(kind: KeyKind, method: &Method, route: &str) -> bool {
    let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
    let named = |methods: &str| methods == "*" || methods.split(' ').any(|one| one == method);
    TABLE.iter().any(|(methods, path, kinds)| *path == route && named(methods) && kinds.has(kind))
}

/// Refuses a key whose kind may not call a route.
pub(super) fn check(kind: KeyKind, method: &Method, route: Option<&str>) -> Result<(), ApiError> {
    if route.is_some_and(|route| may_call(kind, method, route)) {
        return Ok(());
    }
    let refused = |message: String| ApiError::of(Code::Forbidden, message);
    Err(match kind {
        KeyKind::Operator => {
            refused("this is an operator's key, and operator keys have no project".to_string())
                .hint("use a key of the project; `POST /api/v1/projects/{id}/keys` creates one")
        }
        KeyKind::Agent => refused("an agent's key may not do this".to_string())
            .hint("docs/api.md lists what agents may call; ask a person of the project"),
        KeyKind::Person | KeyKind::Service => {
            refused("this needs an operator's key; this one belongs to a project".to_string())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_named_once_for_each_method() {
        let mut seen = std::collections::HashSet::new();
        for (methods, path, _) in TABLE {
            for method in methods.split(' ') {
                assert!(seen.insert((method, *path)), "{method} {path} is there twice");
            }
        }
    }

    #[test]
    fn agents_decide_over_nothing() {
        let repository = "/api/v1/repositories/{repository}";
        for (method, route) in [
            (Method::POST, format!("{repository}/pulls/{{number}}/merge")),
            (Method::POST, format!("{repository}/pulls/{{number}}/reviews")),
            (Method::PATCH, format!("{repository}/pulls/{{number}}/line-comments/{{comment}}")),
            (Method::POST, format!("{repository}/commits/{{commit}}/statuses")),
            (Method::PUT, format!("{repository}/protections/{{*branch}}")),
            (Method::DELETE, format!("{repository}/protections/{{*branch}}")),
            (Method::POST, format!("{repository}/import")),
            (Method::POST, "/api/v1/repositories".into()),
            (Method::POST, "/api/v1/keys".into()),
            (Method::POST, "/api/v1/sign-in-links".into()),
            (Method::POST, "/api/v1/people".into()),
            (Method::POST, "/api/v1/people/{person}/links".into()),
            (Method::PUT, "/api/v1/me/name".into()),
            (Method::POST, "/api/v1/projects".into()),
            (Method::PUT, "/api/v1/sandboxes/{id}/network".into()),
            (Method::PUT, "/sandboxes/{id}/network".into()),
        ] {
            assert!(!may_call(KeyKind::Agent, &method, &route), "{method} {route}");
        }
        for kind in [KeyKind::Operator, KeyKind::Person, KeyKind::Service, KeyKind::Agent] {
            assert!(!may_call(kind, &Method::GET, "/api/v1/nothing"), "{kind}");
            assert!(check(kind, &Method::GET, None).is_err(), "{kind}");
        }
    }
}
