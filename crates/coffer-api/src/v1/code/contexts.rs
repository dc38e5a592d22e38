//! Contexts: kernels of a sandbox's code interpreter, each with a state of its own.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_guest::Wake;
use coffer_guest::interpreter::Context;
use http::StatusCode;

use super::language;
use crate::app::App;
use crate::auth::{Id, Named, Read, Write};
use crate::body::MaybeChecked;
use crate::error::ApiError;
use crate::query::Query;
use coffer_api_types::code::{CodeContext, NewCodeContext};
use coffer_api_types::exec::WatchQuery;
use coffer_api_types::{ErrorShape, Page};
use coffer_fleet::code::CodeError;

const LONGEST_PATH: usize = 4096;

fn shown(context: Context) -> CodeContext {
    // The sandbox chose these.
    let short =
        |text: String| text.chars().filter(|letter| !letter.is_control()).take(LONGEST_PATH).collect();
    CodeContext { id: short(context.id), language: short(context.language), cwd: short(context.cwd) }
}

fn refusal<N>(named: &Named<N>) -> impl Fn(CodeError) -> ApiError {
    |error| error.explain(&named.id).into()
}

/// Lists the contexts of a sandbox's code interpreter.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/code/contexts", tag = "code", params(("id" = String, Path), WatchQuery),
    responses((status = 200, body = Page<CodeContext>), (status = 409, body = ErrorShape))
)]
pub(in crate::v1) async fn list(
    State(app): State<Arc<App>>,
    named: Named<Read>,
    Query(watch): Query<WatchQuery>,
) -> Result<Json<Page<CodeContext>>, ApiError> {
    let wake = if watch.watch == Some(true) { Wake::LooksOn } else { Wake::ByPolicy };
    let contexts = app.code.contexts(&named.record, wake).await.map_err(refusal(&named))?;
    Ok(Json(Page::new(contexts.into_iter().map(shown).collect(), None)))
}

/// Creates a context, with a kernel of its own.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/code/contexts", tag = "code", request_body = NewCodeContext,
    params(("id" = String, Path)),
    responses((status = 201, body = CodeContext), (status = 409, body = ErrorShape, description = "also: there are too many"))
)]
pub(in crate::v1) async fn create(
    State(app): State<Arc<App>>,
    named: Named<Write>,
    MaybeChecked(new): MaybeChecked<NewCodeContext>,
) -> Result<(StatusCode, Json<CodeContext>), ApiError> {
    let language = language(new.language.as_deref())?;
    if new.cwd.as_ref().is_some_and(|cwd| cwd.is_empty() || cwd.len() > LONGEST_PATH || cwd.contains('\0')) {
        return Err(ApiError::invalid(
            "cwd",
            format!("must be a path of 1 to {LONGEST_PATH} bytes without NUL"),
        ));
    }
    let made = app.code.create_context(&named.record, language, new.cwd.as_deref()).await;
    Ok((StatusCode::CREATED, Json(shown(made.map_err(refusal(&named))?))))
}

/// Gives a context a new kernel: its state is lost, its id and directory stay.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/code/contexts/{context}/restart", tag = "code",
    params(("id" = String, Path), ("context" = String, Path)),
    responses((status = 204), (status = 409, body = ErrorShape))
)]
pub(in crate::v1) async fn restart(
    State(app): State<Arc<App>>,
    named: Named<Write>,
    Id(context): Id<String>,
) -> Result<StatusCode, ApiError> {
    app.code.restart_context(&named.record, &context).await.map_err(refusal(&named))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Removes a context with its kernel.
#[utoipa::path(
    delete, path = "/api/v1/sandboxes/{id}/code/contexts/{context}", tag = "code",
    params(("id" = String, Path), ("context" = String, Path)),
    responses((status = 204), (status = 409, body = ErrorShape))
)]
pub(in crate::v1) async fn remove(
    State(app): State<Arc<App>>,
    named: Named<Write>,
    Id(context): Id<String>,
) -> Result<StatusCode, ApiError> {
    app.code.remove_context(&named.record, &context).await.map_err(refusal(&named))?;
    Ok(StatusCode::NO_CONTENT)
}
