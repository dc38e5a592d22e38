//! Git in a sandbox: clone, branch, status, diff, commit, push, pull request.

use std::future::Future;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::SandboxId;
use coffer_core::forge::BranchName;
use coffer_core::{GitOperationId, Millis};
use coffer_store::GitOperation as OperationRow;
use http::StatusCode;

use super::exec::check_user;
use super::page::Part;
use super::repositories::field;
use crate::app::App;
use crate::auth::{NamedId, Need, Read, Write};
use crate::body::{Checked, MaybeChecked};
use crate::error::ApiError;
use crate::query::Query;
use coffer_api_types::git::{
    Branched, Cloned, Committed, DiffQuery, GitOperation, NewBranch, NewClone, NewCommit, NewPullRequest,
    NewPush, PullRequest, Pushed, RepositoryQuery, WorkTree, WorkTreeDiff,
};
use coffer_api_types::{ErrorShape, Page, PageQuery};
use coffer_core::clock::rfc3339;
use coffer_fleet::Fleet;
use coffer_work::git::{
    BranchOrder, CloneOrder, CommitMessage, CommitOrder, DiffOrder, Git, GitError, PullOrder, PushOrder,
    Session, Submodules,
};

const LONGEST_PATH: usize = 4096;
const MOST_PATHS: usize = 1000;
const LONGEST_TITLE: usize = 256;
const LONGEST_TEXT: usize = 65_536;
const DEEPEST: u32 = 1_000_000;

fn shown(row: OperationRow) -> GitOperation {
    let time = |ms: Millis| rfc3339(ms);
    GitOperation {
        id: row.id.to_string(),
        kind: row.kind,
        repository: row.repository,
        state: row.state.as_str().to_string(),
        actor: row.actor,
        result: row.result,
        error_code: row.error_code,
        error: row.error,
        started_at: time(row.started_ms),
        ended_at: row.ended_ms.map(time),
    }
}

fn session<N: Need>(app: &App, named: &NamedId<N>) -> Result<Session, ApiError> {
    let scope = named.caller.scope;
    let record = app.fleet.find(&scope, named.id).ok_or_else(|| ApiError::no_sandbox(&named.text))?;
    Ok(Session { scope, record, actor: named.caller.actor(), key: Some(named.caller.key_id) })
}

/// Runs to the end even if the client disconnects: an open gate must be closed.
async fn whole<T, F>(
    fleet: Arc<Fleet>,
    session: Session,
    work: impl FnOnce(Session) -> F,
) -> Result<T, ApiError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, GitError>> + Send + 'static,
{
    let sandbox = session.record.id;
    let done = fleet.spawn_step(work(session)).await.unwrap_or(Err(GitError::Broken));
    done.map_err(|error| failed(&error, sandbox))
}

fn failed(error: &GitError, sandbox: SandboxId) -> ApiError {
    ApiError::git(error, &sandbox.to_string())
}

fn branch(name: &str, text: Option<&str>) -> Result<Option<BranchName>, ApiError> {
    text.map(|text| field(name, text)).transpose()
}

fn check_path(name: &str, path: &str) -> Result<(), ApiError> {
    let fits = (1..=LONGEST_PATH).contains(&path.len()) && !path.contains('\0') && !path.starts_with('-');
    if fits { Ok(()) } else { Err(ApiError::invalid(name, "is not a valid path")) }
}

fn git(app: &App) -> Arc<Git> {
    app.git.clone()
}

/// Clones a repository into the sandbox, or updates an existing clone.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/clone", tag = "git", params(("id" = String, Path)), request_body = NewClone,
    responses((status = 200, body = Cloned), (status = 409, body = ErrorShape))
)]
pub(super) async fn clone(
    State(app): State<Arc<App>>,
    named: NamedId<Write>,
    Checked(new): Checked<NewClone>,
) -> Result<Json<Cloned>, ApiError> {
    if let Some(path) = &new.path {
        check_path("path", path)?;
    }
    if new.depth.is_some_and(|depth| !(1..=DEEPEST).contains(&depth)) {
        return Err(ApiError::invalid("depth", format!("must be between 1 and {DEEPEST}")));
    }
    check_user(new.user.as_deref())?;
    let (git, session) = (git(&app), session(&app, &named)?);
    let order = CloneOrder {
        branch: branch("branch", new.branch.as_deref())?,
        repository: new.repository,
        path: new.path,
        depth: new.depth,
        submodules: if new.submodules { Submodules::All } else { Submodules::Leave },
        user: new.user.filter(|user| !user.is_empty()),
        signature: None,
    };
    whole(app.fleet.clone(), session, async move |session| git.clone_repository(&session, order).await)
        .await
        .map(Json)
}

/// Checks out a branch. An existing one, in the sandbox or on the forge, is used.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/branch", tag = "git", params(("id" = String, Path)), request_body = NewBranch,
    responses(
        (status = 200, body = Branched), (status = 404, body = ErrorShape, description = "also an unknown base"),
        (status = 409, body = ErrorShape)
    )
)]
pub(super) async fn create_branch(
    State(app): State<Arc<App>>,
    named: NamedId<Write>,
    Checked(new): Checked<NewBranch>,
) -> Result<Json<Branched>, ApiError> {
    let (git, session) = (git(&app), session(&app, &named)?);
    let order = BranchOrder {
        name: field("name", &new.name)?,
        base: branch("base", new.base.as_deref())?,
        repository: new.repository,
    };
    whole(app.fleet.clone(), session, async move |session| git.branch(&session, order).await).await.map(Json)
}

/// The state of a repository's work tree.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/status", tag = "git", params(("id" = String, Path), RepositoryQuery),
    responses((status = 200, body = WorkTree), (status = 409, body = ErrorShape))
)]
pub(super) async fn status(
    State(app): State<Arc<App>>,
    named: NamedId<Read>,
    Query(query): Query<RepositoryQuery>,
) -> Result<Json<WorkTree>, ApiError> {
    let session = session(&app, &named)?;
    let status = app.git.status(&session, query.repository.as_deref()).await;
    status.map(Json).map_err(|error| failed(&error, session.record.id))
}

/// Changes since the last commit, or since the merge base with a branch.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/diff", tag = "git", params(("id" = String, Path), DiffQuery),
    responses((status = 200, body = WorkTreeDiff), (status = 409, body = ErrorShape))
)]
pub(super) async fn diff(
    State(app): State<Arc<App>>,
    named: NamedId<Read>,
    Query(query): Query<DiffQuery>,
) -> Result<Json<WorkTreeDiff>, ApiError> {
    let session = session(&app, &named)?;
    let order = DiffOrder { repository: query.repository, base: branch("base", query.base.as_deref())? };
    let diff = app.git.diff(&session, order).await;
    diff.map(Json).map_err(|error| failed(&error, session.record.id))
}

/// Commits changes, under the name in the project's settings.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/commit", tag = "git", params(("id" = String, Path)), request_body = NewCommit,
    responses(
        (status = 201, body = Committed),
        (status = 409, body = ErrorShape, description = "`nothing_to_commit`, or `identity_missing`"),
        (status = 422, body = ErrorShape, description = "also `commit_message`: it breaks the project's rules")
    )
)]
pub(super) async fn commit(
    State(app): State<Arc<App>>,
    named: NamedId<Write>,
    Checked(new): Checked<NewCommit>,
) -> Result<(StatusCode, Json<Committed>), ApiError> {
    if new.paths.len() > MOST_PATHS {
        return Err(ApiError::invalid("paths", format!("may be at most {MOST_PATHS}")));
    }
    for path in &new.paths {
        check_path("paths", path)?;
    }
    let (git, session) = (git(&app), session(&app, &named)?);
    let order = CommitOrder {
        repository: new.repository,
        message: CommitMessage::Whole(new.message),
        paths: new.paths,
        signature: None,
    };
    let made =
        whole(app.fleet.clone(), session, async move |session| git.commit(&session, order).await).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Pushes one branch to the forge. The credential never enters the sandbox.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/push", tag = "git", params(("id" = String, Path)),
    request_body = Option<NewPush>,
    responses(
        (status = 200, body = Pushed),
        (status = 409, body = ErrorShape, description = "`push_rejected`, `branch_protected` or `token_expired`")
    )
)]
pub(super) async fn push(
    State(app): State<Arc<App>>,
    named: NamedId<Write>,
    MaybeChecked(new): MaybeChecked<NewPush>,
) -> Result<Json<Pushed>, ApiError> {
    let (git, session) = (git(&app), session(&app, &named)?);
    let branch = branch("branch", new.branch.as_deref())?;
    let order = PushOrder { repository: new.repository, branch, force: new.force };
    whole(app.fleet.clone(), session, async move |session| git.push(&session, order).await).await.map(Json)
}

/// Returns the open pull request of a branch, or opens a new one.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/pr", tag = "git", params(("id" = String, Path)),
    request_body = NewPullRequest,
    responses(
        (status = 200, body = PullRequest, description = "it was already open"), (status = 201, body = PullRequest),
        (status = 409, body = ErrorShape)
    )
)]
pub(super) async fn pull_request(
    State(app): State<Arc<App>>,
    named: NamedId<Write>,
    Checked(new): Checked<NewPullRequest>,
) -> Result<(StatusCode, Json<PullRequest>), ApiError> {
    let titled = (1..=LONGEST_TITLE).contains(&new.title.trim().chars().count());
    if !titled || new.title.contains(char::is_control) {
        return Err(ApiError::invalid("title", "must be 1 to 256 characters on one line"));
    }
    if new.body.len() > LONGEST_TEXT {
        return Err(ApiError::invalid("body", format!("may have at most {LONGEST_TEXT} bytes")));
    }
    let (git, session) = (git(&app), session(&app, &named)?);
    let order = PullOrder {
        head: branch("head", new.head.as_deref())?,
        base: branch("base", new.base.as_deref())?,
        repository: new.repository,
        title: new.title.trim().to_string(),
        body: new.body,
        draft: new.draft,
    };
    let found =
        whole(app.fleet.clone(), session, async move |session| git.pull(&session, order).await).await?;
    let status = if found.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(found)))
}

/// Lists the git operations in a sandbox, newest first.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/git", tag = "git", params(("id" = String, Path), PageQuery),
    responses((status = 200, body = Page<GitOperation>))
)]
pub(super) async fn operations(
    State(app): State<Arc<App>>,
    named: NamedId<Read>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<GitOperation>>, ApiError> {
    let (scope, part) = (named.caller.scope, Part::<GitOperationId>::of(page)?);
    let known = app.store.sandbox(&scope, named.id).await.map_err(ApiError::store)?;
    known.ok_or_else(|| ApiError::no_sandbox(&named.text))?;
    let rows = app.store.git_operations(&scope, named.id, part.after, part.to_fetch()).await;
    Ok(Json(part.page(rows.map_err(ApiError::store)?, |row| row.id.to_string(), shown)))
}
