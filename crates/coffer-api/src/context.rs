//! The context of a request: its id, its caller, and its line in the audit log.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use coffer_core::{AuditId, ProjectId, SandboxId};
use coffer_proxy::Attribution;
use coffer_store::{AuditRecord, Authenticated};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode};
use tracing::Instrument as _;
use tracing::field::{Empty, display};

use super::app::App;
use super::error::{ApiError, Shape, Unrendered};
use coffer_core::clock::now_ms;
use coffer_telemetry as telemetry;
use coffer_telemetry::Active;

/// The route whose calls make requests of their own.
pub(super) const MCP: &str = "/mcp";

/// One request. Extractors fill in what they learn.
#[derive(Debug)]
pub(crate) struct Of {
    /// Also the id of its audit record: it sorts by time.
    pub request_id: AuditId,
    whom: OnceLock<Authenticated>,
    /// The project and the name of the caller's token, if it has one of those that open one thing.
    token: OnceLock<(ProjectId, String)>,
    subject: OnceLock<String>,
    sandbox: OnceLock<SandboxId>,
}

impl Of {
    pub(super) fn authenticated(&self, whom: Authenticated) {
        if let Authenticated::Project(principal) = &whom {
            let span = tracing::Span::current();
            span.record("project.id", display(principal.scope.project()));
            if let Some(agent) = principal.scope.agent() {
                span.record("agent.id", display(agent));
            }
        }
        let _ = self.whom.set(whom);
    }

    /// The caller has no key but the token of one thing, by a name of it that is not secret.
    pub(super) fn by_token(&self, project: ProjectId, of: impl ToString) {
        tracing::Span::current().record("project.id", display(project));
        let of = of.to_string();
        let _ = self.token.set((project, format!("token:{of}")));
        let _ = self.subject.set(of);
    }

    /// Whether the caller is known.
    pub(super) fn is_authenticated(&self) -> bool {
        self.whom.get().is_some()
    }

    /// The sandbox that it is about.
    pub(super) fn about(&self, sandbox: SandboxId) {
        tracing::Span::current().record("sandbox.id", display(sandbox));
        let _ = self.sandbox.set(sandbox);
    }

    /// Sets the thing that the request created, if the path does not name its subject.
    pub(crate) fn made(&self, subject: impl ToString) {
        let _ = self.subject.set(subject.to_string());
    }

    fn project(&self) -> Option<ProjectId> {
        match self.whom.get() {
            Some(Authenticated::Project(principal)) => Some(principal.scope.project()),
            Some(Authenticated::Operator { .. }) => None,
            None => self.token.get().map(|(project, _)| *project),
        }
    }

    /// The caller and the subject.
    fn attribution(&self) -> Attribution {
        let agent = match self.whom.get() {
            Some(Authenticated::Project(principal)) => principal.scope.agent(),
            Some(Authenticated::Operator { .. }) | None => None,
        };
        let made = || self.subject.get().and_then(|made| made.parse().ok());
        Attribution { project: self.project(), agent, sandbox: self.sandbox.get().copied().or_else(made) }
    }

    fn actor(&self) -> String {
        match self.whom.get() {
            None => self.token.get().map_or_else(|| "unknown".to_string(), |(_, name)| name.clone()),
            Some(Authenticated::Operator { key }) => format!("operator:{key}"),
            Some(Authenticated::Project(principal)) => principal.actor.to_string(),
        }
    }
}

/// The request, for handlers that add to its record.
#[derive(Debug)]
pub(crate) struct Context(Arc<Of>);

impl std::ops::Deref for Context {
    type Target = Of;

    fn deref(&self) -> &Of {
        &self.0
    }
}

impl<S: Sync> FromRequestParts<S> for Context {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts.extensions.get::<Arc<Of>>().cloned().map(Self).ok_or_else(ApiError::internal)
    }
}

/// Gives a request its id, its span and the shape of its answer, and records its outcome.
pub(super) async fn accompany(
    State(app): State<Arc<App>>,
    shape: Shape,
    mut request: Request,
    next: Next,
) -> Response {
    let context = Arc::new(Of {
        request_id: AuditId::generate(),
        whom: OnceLock::new(),
        token: OnceLock::new(),
        subject: OnceLock::new(),
        sandbox: OnceLock::new(),
    });
    request.extensions_mut().insert(context.clone());
    // Unknown paths are refused in the shape of the API that the path belongs to.
    let shape =
        if shape == Shape::E2b && super::error::is_own(request.uri().path()) { Shape::Own } else { shape };
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_string());
    let named = route.as_deref().and_then(|route| named_in(route, request.uri().path()));
    let id = context.request_id;
    let began = Instant::now();
    let mut traced = begin_trace(&app, &request, &method, route.as_deref());
    // Extractors record the caller in this span, so every log line of the request has it.
    let span = tracing::info_span!(
        "request", request.id = %id, %method, route = route.as_deref(), project.id = Empty, agent.id = Empty,
        sandbox.id = Empty
    );
    let work = telemetry::within(traced.context(), next.run(request).instrument(span));
    let answer = coffer_engine::on_behalf_of(Some(id.to_string().into()), work).await;
    let (mut answer, refusal) = Unrendered::render(answer, shape, id);
    let metrics = &app.telemetry.metrics;
    metrics.answered(&method, route.as_deref(), answer.status(), began.elapsed());
    if let Some(code) = &refusal {
        metrics.refused(code);
    }
    end_trace(&mut traced, &context, id, answer.status(), refusal.as_deref());
    let shown = HeaderValue::try_from(id.to_string()).expect("an id is letters and digits");
    answer.headers_mut().insert("x-request-id", shown);
    // For the access log line that the port writes.
    answer.extensions_mut().insert(context.attribution());
    // Refusals of unauthenticated clients go only to the log: any client could fill the disk with them.
    let stranger = context.whom.get().is_none() && context.token.get().is_none();
    if stranger && answer.status() == StatusCode::UNAUTHORIZED {
        tracing::debug!(request.id = %id, %method, "refused a request without a valid key");
    }
    let changes = is_told(&method, answer.status())
        // The requests that a tool makes are recorded, each with its route and subject.
        && !(route.as_deref() == Some(MCP) && answer.status().is_success());
    if !stranger && (changes || route.as_deref().is_some_and(|route| READS.contains(&route))) {
        let record = AuditRecord {
            id,
            project: context.project(),
            actor: context.actor(),
            action: format!("{method} {}", route.as_deref().unwrap_or("unknown")),
            subject: context.subject.get().cloned().or(named),
            status: answer.status().as_u16(),
            code: refusal,
            request_id: id.to_string(),
            at_ms: now_ms(),
        };
        if changes {
            app.audit.write(record).await;
        } else {
            app.audit.write_read(record);
        }
    }
    answer
}

/// Begins the request's span, as a child of the client's if the request names one.
fn begin_trace(app: &App, request: &Request, method: &Method, route: Option<&str>) -> Active {
    let traces = &app.telemetry.traces;
    let parent = request.headers().get("traceparent").filter(|_| traces.are_on());
    let parent = parent.and_then(|value| telemetry::parse_traceparent(value.to_str().ok()?));
    let mut traced = traces.request(|| format!("{method} {}", route.unwrap_or("unknown")), parent);
    traced.set("http.request.method", || method.as_str().into());
    traced.set("http.route", || route.unwrap_or("unknown").into());
    traced
}

fn end_trace(traced: &mut Active, context: &Of, id: AuditId, status: StatusCode, refusal: Option<&str>) {
    traced.set("request.id", || id.to_string().into());
    traced.set("http.response.status_code", || i64::from(status.as_u16()).into());
    if let Some(Authenticated::Project(principal)) = context.whom.get() {
        traced.set("project.id", || principal.scope.project().to_string().into());
        if let Some(agent) = principal.scope.agent() {
            traced.set("agent.id", || agent.to_string().into());
            traced.set("user.id", || agent.to_string().into());
        }
    }
    let made = || context.subject.get().and_then(|made| made.parse::<SandboxId>().ok());
    if let Some(sandbox) = context.sandbox.get().copied().or_else(made) {
        traced.set("sandbox.id", || sandbox.to_string().into());
        traced.set("session.id", || sandbox.to_string().into());
    }
    if let Some(code) = refusal {
        traced.set("error.type", || code.into());
    }
    if status.is_server_error() {
        traced.fail(|| status.to_string());
    }
}

/// Routes that return contents of sandboxes: files, logs, output, artifacts. Reads of these are recorded.
const READS: [&str; 17] = [
    "/api/v1/sandboxes/{id}/files",
    "/api/v1/sandboxes/{id}/files/{*path}",
    "/api/v1/sandboxes/{id}/logs",
    "/api/v1/sandboxes/{id}/stream",
    "/api/v1/sandboxes/{id}/diff",
    "/api/v1/sandboxes/{id}/executions",
    "/api/v1/executions/{execution}",
    "/api/v1/executions/{execution}/output",
    "/api/v1/logs",
    "/api/v1/artifacts/{artifact}",
    "/api/v1/artifacts/{artifact}/content",
    "/sandboxes/{id}/logs",
    "/v2/sandboxes/{id}/logs",
    "/git/{project}/{repository}/info/lfs/objects/{oid}",
    "/api/v1/sandboxes/fork/{fork}/entries/{entry}/diff",
    "/volumecontent/{id}/dir",
    "/volumecontent/{id}/file",
];

/// Whether a request is recorded: it could change something, or it was not allowed.
fn is_told(method: &Method, status: StatusCode) -> bool {
    let looks_only = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    let not_allowed = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN, StatusCode::TOO_MANY_REQUESTS];
    !looks_only || not_allowed.contains(&status)
}

/// The part of the path at the route's first parameter.
fn named_in(route: &str, path: &str) -> Option<String> {
    let place = route.split('/').position(|part| part.starts_with('{'))?;
    path.split('/').nth(place).map(str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_of_a_route_is_what_it_is_about() {
        assert_eq!(named_in("/sandboxes/{id}/pause", "/sandboxes/abc/pause").as_deref(), Some("abc"));
        assert_eq!(named_in("/api/v1/keys/{key}", "/api/v1/keys/k1").as_deref(), Some("k1"));
        assert_eq!(named_in("/sandboxes", "/sandboxes"), None);
    }

    #[test]
    fn looks_are_told_only_where_they_were_not_allowed() {
        assert!(is_told(&Method::POST, StatusCode::CREATED));
        assert!(is_told(&Method::GET, StatusCode::FORBIDDEN));
        assert!(!is_told(&Method::GET, StatusCode::NOT_FOUND));
    }
}
