//! Authenticates callers and checks their role.
//!
//! A handler declares the role it needs by the type of its caller: `Caller<Read>`, `Caller<Write>`,
//! `Caller<Admin>`, or [`Operating`]; a handler that names none does not compile. `Named` finds the sandbox of
//! the path only if the caller may see it, so no handler can forget the check. [`kinds`] has the routes that
//! each kind of key may call; it is checked for every key. A session of the web UI is a key in two halves
//! ([`credential`]); a key in a header wins over it.

use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::{FromRequestParts, MatchedPath, RawPathParams};
use coffer_core::{KeyId, KeyKind, ProjectId, Role, SandboxId};
use coffer_store::{Actor, Authenticated, Operator, ProjectScope, Secret};
use http::Method;
use http::request::Parts;

use super::app::App;
use super::context::Of;
use super::credential::{self, Credential};
use super::error::ApiError;
use super::kinds;
use coffer_core::Code;
use coffer_fleet::Record;
use coffer_fleet::limits::Pace;
use coffer_proxy::Client;

/// The role that a handler needs of its caller.
pub(crate) trait Need: Send + Sync + 'static {
    const ROLE: Role;
}

/// May only read.
#[derive(Debug)]
pub(crate) enum Read {}
/// May create, use and destroy sandboxes.
#[derive(Debug)]
pub(crate) enum Write {}
/// May change the project itself.
#[derive(Debug)]
pub(crate) enum Admin {}

impl Need for Read {
    const ROLE: Role = Role::Read;
}
impl Need for Write {
    const ROLE: Role = Role::Write;
}
impl Need for Admin {
    const ROLE: Role = Role::Admin;
}

/// A request with a valid key of a project that has the needed role.
#[derive(Debug)]
pub(crate) struct Caller<N> {
    pub scope: ProjectScope,
    pub key_id: KeyId,
    /// The key of the request.
    pub key: Secret,
    pub role: Role,
    pub kind: KeyKind,
    by: Actor,
    needs: PhantomData<fn() -> N>,
}

impl<N: Need> FromRequestParts<Arc<App>> for Caller<N> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let (whom, key) = authenticate(parts, app).await?;
        let Authenticated::Project(principal) = whom else {
            return Err(ApiError::of(
                Code::Forbidden,
                "this is an operator's key, and operator keys have no project",
            )
            .hint("use a key of the project; `POST /api/v1/projects/{id}/keys` creates one"));
        };
        if principal.role < N::ROLE {
            let message = format!("this key may only {}, and this needs {}", principal.role, N::ROLE);
            return Err(ApiError::of(Code::Forbidden, message));
        }
        if N::ROLE == Role::Admin && principal.scope.agent().is_some() {
            // It could create a key that sees everything.
            return Err(ApiError::of(Code::Forbidden, "an agent's key cannot change its project"));
        }
        Ok(Self {
            scope: principal.scope,
            key_id: principal.key,
            key,
            role: principal.role,
            kind: principal.kind,
            by: principal.actor,
            needs: PhantomData,
        })
    }
}

impl<N> Caller<N> {
    /// The caller, as records of its actions name it.
    pub(crate) fn actor(&self) -> String {
        self.by.to_string()
    }

    /// Whether this is an operator's session in the project.
    pub(crate) fn is_visiting(&self) -> bool {
        matches!(self.by, Actor::Operator(_))
    }

    /// The caller as it was authenticated.
    pub(crate) fn whom(&self) -> coffer_store::Principal {
        coffer_store::Principal {
            scope: self.scope,
            key: self.key_id,
            role: self.role,
            kind: self.kind,
            actor: self.by,
        }
    }
}

/// A request with an operator's key, which sees every project.
#[derive(Debug)]
pub(crate) struct Operating {
    pub operator: Operator,
}

impl FromRequestParts<Arc<App>> for Operating {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        match authenticate(parts, app).await?.0 {
            Authenticated::Operator { .. } => Ok(Self { operator: app.store.operator() }),
            Authenticated::Project(_) => Err(ApiError::of(
                Code::Forbidden,
                "this needs an operator's key; this one belongs to a project",
            )),
        }
    }
}

/// A request with any valid key.
#[derive(Debug)]
pub(crate) struct Anyone(pub Authenticated);

impl FromRequestParts<Arc<App>> for Anyone {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        authenticate(parts, app).await.map(|(whom, _)| Self(whom))
    }
}

async fn authenticate(parts: &Parts, app: &App) -> Result<(Authenticated, Secret), ApiError> {
    let refused = |message| ApiError::of(Code::Unauthorized, message);
    let credential = credential::shown(&parts.headers)?;
    let credential = credential.ok_or_else(|| refused("no API key; send one as the header X-API-KEY"))?;
    let key = credential.text();
    let peer = parts.extensions.get::<Client>().map(|client| client.peer.ip());
    if let Some(peer) = peer {
        app.limiter.may_try(peer, key).map_err(ApiError::too_fast)?;
    }
    let Some((mut whom, key)) = credential.holder(app).await? else {
        if let Some(peer) = peer {
            app.limiter.refused(peer);
        }
        return Err(refused(credential.why_refused()));
    };
    if let Credential::Session { project: Some(project), .. } = &credential {
        whom = credential::in_project(app, whom, *project).await?;
    }
    if let Some(client) = parts.extensions.get::<Client>() {
        client.count_for(project_of(&whom)).map_err(ApiError::busy)?;
    }
    if let Some(context) = parts.extensions.get::<Arc<Of>>()
        && !context.is_authenticated()
    {
        // Before the caller is recorded: requests refused here would fill the audit log.
        app.limiter.admit(whom.key(), key, pace(parts)).map_err(ApiError::too_fast)?;
        context.authenticated(whom);
    }
    let route = parts.extensions.get::<MatchedPath>().map(MatchedPath::as_str);
    kinds::check(whom.kind(), &parts.method, route)?;
    Ok((whom, Secret::new(key)))
}

/// Authenticates a key that is not a header of the request, to begin a session with it.
pub(crate) async fn key_in_body(
    app: &App,
    client: Option<&Client>,
    key: &str,
) -> Result<Authenticated, ApiError> {
    let peer = client.map(|client| client.peer.ip());
    if let Some(peer) = peer {
        app.limiter.may_try(peer, key).map_err(ApiError::too_fast)?;
    }
    let known = app.store.authenticate(key).await.map_err(ApiError::store)?;
    known.ok_or_else(|| {
        if let Some(peer) = peer {
            app.limiter.refused(peer);
        }
        ApiError::of(Code::Unauthorized, "invalid API key")
    })
}

fn project_of(whom: &Authenticated) -> Option<ProjectId> {
    match whom {
        Authenticated::Project(principal) => Some(principal.scope.project()),
        Authenticated::Operator { .. } => None,
    }
}

fn pace(parts: &Parts) -> Pace {
    let route = parts.extensions.get::<MatchedPath>().map(MatchedPath::as_str);
    match route {
        Some(
            "/sandboxes"
            | "/v2/sandboxes"
            | "/api/v1/sandboxes"
            | "/sandboxes/{id}/fork"
            | "/api/v1/sandboxes/{id}/fork"
            | "/api/v1/sandboxes/fork"
            | "/sandboxes/{id}/snapshots"
            | "/api/v1/sandboxes/{id}/snapshots",
        ) if parts.method == Method::POST => Pace::Create,
        _ => Pace::Other,
    }
}

/// The sandbox that the path names, if the caller may see it.
#[derive(Debug)]
pub(crate) struct Named<N> {
    pub record: Arc<Record>,
    /// The id as the caller wrote it, for messages.
    pub id: String,
    needs: PhantomData<fn() -> N>,
}

impl<N: Need> FromRequestParts<Arc<App>> for Named<N> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let NamedId { id, text, caller } = NamedId::<N>::from_request_parts(parts, app).await?;
        let Some(record) = app.fleet.find(&caller.scope, id) else {
            return Err(not_here(app, &caller.scope, id, &text).await);
        };
        Ok(Self { record, id: text, needs: PhantomData })
    }
}

/// The error for a sandbox that this server does not hold: another server may hold it.
pub(crate) async fn not_here(app: &App, scope: &ProjectScope, id: SandboxId, text: &str) -> ApiError {
    let row = match app.store.sandbox(scope, id).await {
        Ok(row) => row,
        Err(error) => return ApiError::store(error),
    };
    match row.as_ref().and_then(|row| app.store.holder_elsewhere(row)) {
        Some(holder) => {
            let message = format!("sandbox '{id}' is held by installation '{holder}', not by this one");
            ApiError::of(Code::OtherInstallation, message).hint("ask the server of that installation")
        }
        None => ApiError::no_sandbox(text),
    }
}

/// The sandbox id in the path; the sandbox may have ended.
#[derive(Debug)]
pub(crate) struct NamedId<N> {
    pub id: SandboxId,
    pub text: String,
    pub caller: Caller<N>,
}

impl<N: Need> FromRequestParts<Arc<App>> for NamedId<N> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let text = sandbox_of_path(parts, app).await?;
        // Old clients append the former client id.
        let id = text.split('-').next().unwrap_or_default();
        let id = id.parse().map_err(|_| ApiError::no_sandbox(&text))?;
        if let Some(context) = parts.extensions.get::<Arc<Of>>() {
            context.about(id);
        }
        Ok(Self { id, text, caller })
    }
}

/// The last id in the path, of any kind; a malformed one is not found.
#[derive(Debug)]
pub(crate) struct Id<T>(pub T);

impl<T: FromStr + Send> FromRequestParts<Arc<App>> for Id<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let (kind, text) = last_of_path(parts, app).await?;
        let shown: String = text.chars().take(64).collect();
        text.parse().map(Self).map_err(|_| ApiError::nothing(&kind, shown))
    }
}

/// The part of the path that names the sandbox, whatever follows it.
async fn sandbox_of_path(parts: &mut Parts, app: &Arc<App>) -> Result<String, ApiError> {
    let params = RawPathParams::from_request_parts(parts, app)
        .await
        .map_err(|_| ApiError::bad_request("the path is not text"))?;
    let named = params.iter().find(|(name, _)| *name == "id").map(|(_, value)| value.to_string());
    named.ok_or_else(ApiError::internal)
}

/// The last named part of the path, with its name.
async fn last_of_path(parts: &mut Parts, app: &Arc<App>) -> Result<(String, String), ApiError> {
    let params = RawPathParams::from_request_parts(parts, app)
        .await
        .map_err(|_| ApiError::bad_request("the path is not text"))?;
    let last = params.iter().last().map(|(name, value)| (name.to_string(), value.to_string()));
    last.ok_or_else(ApiError::internal)
}
