//! Pull requests, issues and their comments, on any forge.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::KeyKind;
use coffer_core::forge::{BranchName, CommitId, DiffSide, IssueState, MergeMethod, PullState, Verdict};
use coffer_forge::{
    FilePath, IssueChange, LineChange, MergeOrder, NewInlineComment, NewPull, NewReview, NewStatus,
    PullChange, PullFilter,
};
use http::StatusCode;

use super::repositories::{Located, field, forge_part, listed};
use crate::app::App;
use crate::auth::{Read, Write};
use crate::body::{Checked, MaybeChecked};
use crate::error::ApiError;
use crate::query::Query;
use coffer_api_types::pulls::{
    ChangeIssue, ChangeLineComment, ChangePull, Comment, CommittedFile, CompareQuery, Diff, DiffQuery,
    FileQuery, GiveReview, InlineComment, Issue, IssueQuery, LineComment, Merge, Mergeability, OpenIssue,
    OpenPull, Pull, PullQuery, Review, Say, SetStatus, Status, Statuses,
};
use coffer_api_types::{Page, PageQuery};
use coffer_core::Code;
use coffer_work::git::Branches;

const LONGEST_TITLE: usize = 256;
const LONGEST_TEXT: usize = 65_536;
const LONGEST_PATH: usize = 4096;
const MOST_LINE_COMMENTS: usize = 100;

fn title(text: String) -> Result<String, ApiError> {
    let fits = (1..=LONGEST_TITLE).contains(&text.chars().count()) && !text.chars().any(char::is_control);
    if fits && !text.trim().is_empty() {
        return Ok(text);
    }
    Err(ApiError::invalid("title", format!("must have 1 to {LONGEST_TITLE} characters on one line")))
}

fn text(name: &str, text: String) -> Result<String, ApiError> {
    if text.len() <= LONGEST_TEXT {
        return Ok(text);
    }
    Err(ApiError::invalid(name, format!("must have at most {LONGEST_TEXT} bytes")))
}

fn said(body: String) -> Result<String, ApiError> {
    if body.trim().is_empty() {
        return Err(ApiError::invalid("body", "must not be empty"));
    }
    text("body", body)
}

fn optional<T: std::str::FromStr<Err: std::fmt::Display>>(
    name: &str,
    value: Option<&str>,
) -> Result<Option<T>, ApiError> {
    value.map(|value| field(name, value)).transpose()
}

/// Opens a pull request. A head and base can have only one: 409 names it in `details.number`.
#[utoipa::path(
    post, path = "/api/v1/repositories/{repository}/pulls", tag = "pulls",
    params(("repository" = String, Path)), request_body = OpenPull,
    responses((status = 201, body = Pull))
)]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    located: Located<Write>,
    Checked(new): Checked<OpenPull>,
) -> Result<(StatusCode, Json<Pull>), ApiError> {
    let new = NewPull {
        title: title(new.title)?,
        body: text("body", new.body)?,
        head: field("head", &new.head)?,
        base: optional("base", new.base.as_deref())?,
        draft: new.draft,
    };
    let branches = Branches::of(&app.store, &located.scope, &located.row).await;
    branches.map_err(ApiError::store)?.check(&new.head)?;
    let made = located.forge.create_pull(new).await.map_err(ApiError::forge)?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Pull requests, newest first.
#[utoipa::path(
    get, path = "/api/v1/repositories/{repository}/pulls", tag = "pulls",
    params(("repository" = String, Path), PullQuery, PageQuery),
    responses((status = 200, body = Page<Pull>))
)]
pub(super) async fn list(
    located: Located<Read>,
    Query(query): Query<PullQuery>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<Pull>>, ApiError> {
    let filter = PullFilter {
        state: optional::<PullState>("state", query.state.as_deref())?,
        head: optional::<BranchName>("head", query.head.as_deref())?,
        base: optional::<BranchName>("base", query.base.as_deref())?,
    };
    let all = located.forge.pulls(filter, forge_part(page)?).await;
    Ok(listed(all.map_err(ApiError::forge)?))
}

/// One pull request, with the current commits of its branches.
#[utoipa::path(
    get, path = "/api/v1/repositories/{repository}/pulls/{number}", tag = "pulls",
    params(("repository" = String, Path), ("number" = i64, Path)),
    responses((status = 200, body = Pull))
)]
pub(super) async fn detail(located: Located<Read>) -> Result<Json<Pull>, ApiError> {
    located.forge.pull(located.number()?).await.map(Json).map_err(ApiError::forge)
}

/// Changes, closes or reopens a pull request.
#[utoipa::path(
    patch, path = "/api/v1/repositories/{repository}/pulls/{number}", tag = "pulls",
    params(("repository" = String, Path), ("number" = i64, Path)), request_body = ChangePull,
    responses((status = 200, body = Pull))
)]
pub(super) async fn change(
    located: Located<Write>,
    Checked(change): Checked<ChangePull>,
) -> Result<Json<Pull>, ApiError> {
    let change = PullChange {
        title: change.title.map(title).transpose()?,
        body: change.body.map(|body| text("body", body)).transpose()?,
        base: optional("base", change.base.as_deref())?,
        draft: change.draft,
        open: change.state.map(|state| state == IssueState::Open),
    };
    located.forge.update_pull(located.number()?, change).await.map(Json).map_err(ApiError::forge)
}

/// The diff of a pull request: files with counts of lines, and the patch, both bounded.
#[utoipa::path(
    get, path = "/api/v1/repositories/{repository}/pulls/{number}/diff", tag = "pulls",
    params(("repository" = String, Path), ("number" = i64, Path), DiffQuery),
    responses((status = 200, body = Diff))
)]
pub(super) async fn diff(
    located: Located<Read>,
    Query(query): Query<DiffQuery>,
) -> Result<Json<Diff>, ApiError> {
    let mut diff = located.forge.diff(located.number()?).await.map_err(ApiError::forge)?;
    if query.stat == Some(true) {
        diff.patch.clear();
    }
    Ok(Json(diff))
}

/// Whether a pull request can be merged now: a merge is tried, and nothing is changed.
#[utoipa::path(
    get, path = "/api/v1/repositories/{repository}/pulls/{number}/mergeability", tag = "pulls",
    params(("repository" = String, Path), ("number" = i64, Path)),
    responses((status = 200, body = Mergeability))
)]
pub(super) async fn mergeability(located: Located<Read>) -> Result<Json<Mergeability>, ApiError> {
    located.forge.mergeability(located.number()?).await.map(Json).map_err(ApiError::forge)
}

/// The difference between two commits of a repository, bounded.
#[utoipa::path(
    get, path = "/api/v1/repositories/{repository}/compare", tag = "repositories",
    params(("repository" = String, Path), CompareQuery),
    responses((status = 200, body = Diff))
)]
pub(super) async fn compare(
    located: Located<Read>,
    Query(query): Query<CompareQuery>,
) -> Result<Json<Diff>, ApiError> {
    let (from, to): (CommitId, CommitId) = (field("from", &query.from)?, field("to", &query.to)?);
    located.forge.compare(&from, &to).await.map(Json).map_err(ApiError::forge)
}

/// A file as it is in a commit: its text, at most 2 MiB of it.
#[utoipa::path(
    get, path = "/api/v1/repositories/{repository}/file", tag = "repositories",
    params(("repository" = String, Path), FileQuery),
    responses((status = 200, body = CommittedFile))
)]
pub(super) async fn file(
    located: Located<Read>,
    Query(query): Query<FileQuery>,
) -> Result<Json<CommittedFile>, ApiError> {
    let (commit, path): (CommitId, FilePath) = (field("commit", &query.commit)?, field("path", &query.path)?);
    located.forge.file(&commit, &path).await.map(Json).map_err(ApiError::forge)
}

/// Merges a pull request. On 409 `merge_conflict`, `details.paths` names the files, and nothing has changed.
#[utoipa::path(
    post, path = "/api/v1/repositories/{repository}/pulls/{number}/merge", tag = "pulls",
    params(("repository" = String, Path), ("number" = i64, Path)), request_body = Merge,
    responses((status = 200, body = Pull))
)]
pub(super) async fn merge(
    located: Located<Write>,
    MaybeChecked(merge): MaybeChecked<Merge>,
) -> Result<Json<Pull>, ApiError> {
    let order = MergeOrder {
        method: merge.method.unwrap_or(MergeMethod::Merge),
        expected_head: optional("expected_head", merge.expected_head.as_deref())?,
        title: merge.title.map(title).transpose()?,
        message: merge.message.map(|message| text("message", message)).transpose()?,
    };
    located.forge.merge(located.number()?, order).await.map(Json).map_err(ApiError::forge)
}

/// Comments on a pull request as a whole.
#[utoipa::path(
    post, path = "/api/v1/repositories/{repository}/pulls/{number}/comments", tag = "pulls",
    params(("repository" = String, Path), ("number" = i64, Path)), request_body = Say,
    responses((status = 201, body = Comment))
)]
pub(super) async fn comment(
    located: Located<Write>,
    Checked(say): Checked<Say>,
) -> Result<(StatusCode, Json<Comment>), ApiError> {
    say_on(&located, say).await
}

/// The comments on a pull request as a whole, oldest first.
#[utoipa::path(
    get, path = "/api/v1/repositories/{repository}/pulls/{number}/comments", tag = "pulls",
    params(("repository" = String, Path), ("number" = i64, Path), PageQuery),
    responses((status = 200, body = Page<Comment>))
)]
pub(super) async fn comments(
    located: Located<Read>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<Comment>>, ApiError> {
    let all = located.forge.comments(located.number()?, forge_part(page)?).await;
    Ok(listed(all.map_err(ApiError::forge)?))
}

async fn say_on(located: &Located<Write>, say: Say) -> Result<(StatusCode, Json<Comment>), ApiError> {
    let body = said(say.body)?;
    let made = located.forge.comment(located.number()?, &body).await.map_err(ApiError::forge)?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Reviews a pull request: a verdict, and comments on lines of its diff, which are stored together or not at
/// all.
#[utoipa::path(
    post, path = "/api/v1/repositories/{repository}/pulls/{number}/reviews", tag = "pulls",
    params(("repository" = String, Path), ("number" = i64, Path)), request_body = GiveReview,
    responses((status = 201, body = Review))
)]
pub(super) async fn review(
    located: Located<Write>,
    Checked(new): Checked<GiveReview>,
) -> Result<(StatusCode, Json<Review>), ApiError> {
    if new.verdict == Verdict::Approve && located.kind != KeyKind::Person {
        return Err(ApiError::of(Code::Forbidden, "only people can approve, and this is a service's key")
            .hint("leave a comment, or use the key of a person (`\"kind\": \"person\"`)"));
    }
    if new.comments.len() > MOST_LINE_COMMENTS {
        return Err(ApiError::invalid("comments", format!("must be at most {MOST_LINE_COMMENTS}")));
    }
    if new.verdict != Verdict::Approve && new.body.trim().is_empty() && new.comments.is_empty() {
        return Err(ApiError::invalid("body", "must not be empty, unless there are comments"));
    }
    let line = |comment: LineComment| {
        if comment.path.is_empty() || comment.path.len() > LONGEST_PATH || comment.line == 0 {
            return Err(ApiError::invalid("comments", "must each have a path and a line from 1"));
        }
        Ok(NewInlineComment {
            path: comment.path,
            line: comment.line,
            side: comment.side.unwrap_or(DiffSide::Right),
            body: said(comment.body)?,
        })
    };
    let new = NewReview {
        verdict: new.verdict,
        body: text("body", new.body)?,
        commit: optional::<CommitId>("commit", new.commit.as_deref())?,
        comments: new.comments.into_iter().map(line).collect::<Result<_, _>>()?,
    };
    let made = located.forge.review(located.number()?, new).await.map_err(ApiError::forge)?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// The reviews of a pull request, oldest first.
#[utoipa::path(
    get, path = "/api/v1/repositories/{repository}/pulls/{number}/reviews", tag = "pulls",
    params(("repository" = String, Path), ("number" = i64, Path), PageQuery),
    responses((status = 200, body = Page<Review>))
)]
pub(super) async fn reviews(
    located: Located<Read>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<Review>>, ApiError> {
    let all = located.forge.reviews(located.number()?, forge_part(page)?).await;
    Ok(listed(all.map_err(ApiError::forge)?))
}

/// The comments on lines of a pull request, oldest first.
#[utoipa::path(
    get, path = "/api/v1/repositories/{repository}/pulls/{number}/line-comments", tag = "pulls",
    params(("repository" = String, Path), ("number" = i64, Path), PageQuery),
    responses((status = 200, body = Page<InlineComment>))
)]
pub(super) async fn line_comments(
    located: Located<Read>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<InlineComment>>, ApiError> {
    let all = located.forge.inline_comments(located.number()?, forge_part(page)?).await;
    Ok(listed(all.map_err(ApiError::forge)?))
}

/// Replies to a comment on a line, in its thread.
#[utoipa::path(
    post, path = "/api/v1/repositories/{repository}/pulls/{number}/line-comments/{comment}/replies", tag = "pulls",
    params(("repository" = String, Path), ("number" = i64, Path), ("comment" = String, Path)), request_body = Say,
    responses((status = 201, body = InlineComment))
)]
pub(super) async fn reply(
    located: Located<Write>,
    Checked(say): Checked<Say>,
) -> Result<(StatusCode, Json<InlineComment>), ApiError> {
    let (to, body) = (located.named::<String>("comment")?, said(say.body)?);
    let made = located.forge.reply(located.number()?, &to, &body).await.map_err(ApiError::forge)?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Edits a comment on a line, which its author can do, or resolves its thread or opens it again, which anybody can who
/// may comment.
#[utoipa::path(
    patch, path = "/api/v1/repositories/{repository}/pulls/{number}/line-comments/{comment}", tag = "pulls",
    params(("repository" = String, Path), ("number" = i64, Path), ("comment" = String, Path)),
    request_body = ChangeLineComment,
    responses((status = 200, body = InlineComment))
)]
pub(super) async fn change_line_comment(
    located: Located<Write>,
    Checked(change): Checked<ChangeLineComment>,
) -> Result<Json<InlineComment>, ApiError> {
    let change = match (change.body, change.resolved) {
        (Some(body), None) => LineChange::Body(said(body)?),
        (None, Some(resolved)) => LineChange::Resolved(resolved),
        _ => return Err(ApiError::invalid("body", "or `resolved` must be given, and not both")),
    };
    let id: String = located.named("comment")?;
    let changed = located.forge.change_line_comment(located.number()?, &id, change).await;
    changed.map(Json).map_err(ApiError::forge)
}

/// Deletes a comment on a line, which its author can do. Replies to it stay.
#[utoipa::path(
    delete, path = "/api/v1/repositories/{repository}/pulls/{number}/line-comments/{comment}", tag = "pulls",
    params(("repository" = String, Path), ("number" = i64, Path), ("comment" = String, Path)),
    responses((status = 204))
)]
pub(super) async fn delete_line_comment(located: Located<Write>) -> Result<StatusCode, ApiError> {
    let id: String = located.named("comment")?;
    located.forge.delete_line_comment(located.number()?, &id).await.map_err(ApiError::forge)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sets the result of one check for a commit.
#[utoipa::path(
    post, path = "/api/v1/repositories/{repository}/commits/{commit}/statuses", tag = "pulls",
    params(("repository" = String, Path), ("commit" = String, Path)), request_body = SetStatus,
    responses((status = 201, body = Status))
)]
pub(super) async fn set_status(
    located: Located<Write>,
    Checked(new): Checked<SetStatus>,
) -> Result<(StatusCode, Json<Status>), ApiError> {
    let commit: CommitId = located.named("commit")?;
    if new.description.chars().count() > 140 {
        return Err(ApiError::invalid("description", "must have at most 140 characters"));
    }
    let web = |url: &String| url.len() <= 2048 && (url.starts_with("https://") || url.starts_with("http://"));
    if new.target_url.as_ref().is_some_and(|url| !web(url)) {
        return Err(ApiError::invalid("target_url", "must be an http or https URL of at most 2048 bytes"));
    }
    let new = NewStatus {
        context: field("context", &new.context)?,
        state: new.state,
        description: new.description,
        target_url: new.target_url,
    };
    let set = located.forge.set_status(&commit, new).await.map_err(ApiError::forge)?;
    Ok((StatusCode::CREATED, Json(set)))
}

/// The results of all checks for a commit, and the combined one.
#[utoipa::path(
    get, path = "/api/v1/repositories/{repository}/commits/{commit}/statuses", tag = "pulls",
    params(("repository" = String, Path), ("commit" = String, Path)),
    responses((status = 200, body = Statuses))
)]
pub(super) async fn statuses(located: Located<Read>) -> Result<Json<Statuses>, ApiError> {
    let commit: CommitId = located.named("commit")?;
    located.forge.statuses(&commit).await.map(Json).map_err(ApiError::forge)
}

/// Opens an issue.
#[utoipa::path(
    post, path = "/api/v1/repositories/{repository}/issues", tag = "issues",
    params(("repository" = String, Path)), request_body = OpenIssue,
    responses((status = 201, body = Issue))
)]
pub(super) async fn create_issue(
    located: Located<Write>,
    Checked(new): Checked<OpenIssue>,
) -> Result<(StatusCode, Json<Issue>), ApiError> {
    let (title, body) = (title(new.title)?, text("body", new.body)?);
    let made = located.forge.create_issue(&title, &body).await.map_err(ApiError::forge)?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Issues, newest first.
#[utoipa::path(
    get, path = "/api/v1/repositories/{repository}/issues", tag = "issues",
    params(("repository" = String, Path), IssueQuery, PageQuery),
    responses((status = 200, body = Page<Issue>))
)]
pub(super) async fn issues(
    located: Located<Read>,
    Query(query): Query<IssueQuery>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<Issue>>, ApiError> {
    let state = optional::<IssueState>("state", query.state.as_deref())?;
    let all = located.forge.issues(state, forge_part(page)?).await;
    Ok(listed(all.map_err(ApiError::forge)?))
}

/// One issue.
#[utoipa::path(
    get, path = "/api/v1/repositories/{repository}/issues/{number}", tag = "issues",
    params(("repository" = String, Path), ("number" = i64, Path)),
    responses((status = 200, body = Issue))
)]
pub(super) async fn issue(located: Located<Read>) -> Result<Json<Issue>, ApiError> {
    located.forge.issue(located.number()?).await.map(Json).map_err(ApiError::forge)
}

/// Changes, closes or reopens an issue.
#[utoipa::path(
    patch, path = "/api/v1/repositories/{repository}/issues/{number}", tag = "issues",
    params(("repository" = String, Path), ("number" = i64, Path)), request_body = ChangeIssue,
    responses((status = 200, body = Issue))
)]
pub(super) async fn change_issue(
    located: Located<Write>,
    Checked(change): Checked<ChangeIssue>,
) -> Result<Json<Issue>, ApiError> {
    let change = IssueChange {
        title: change.title.map(title).transpose()?,
        body: change.body.map(|body| text("body", body)).transpose()?,
        state: change.state,
    };
    located.forge.update_issue(located.number()?, change).await.map(Json).map_err(ApiError::forge)
}

/// Comments on an issue.
#[utoipa::path(
    post, path = "/api/v1/repositories/{repository}/issues/{number}/comments", tag = "issues",
    params(("repository" = String, Path), ("number" = i64, Path)), request_body = Say,
    responses((status = 201, body = Comment))
)]
pub(super) async fn comment_issue(
    located: Located<Write>,
    Checked(say): Checked<Say>,
) -> Result<(StatusCode, Json<Comment>), ApiError> {
    say_on(&located, say).await
}

/// The comments on an issue, oldest first.
#[utoipa::path(
    get, path = "/api/v1/repositories/{repository}/issues/{number}/comments", tag = "issues",
    params(("repository" = String, Path), ("number" = i64, Path), PageQuery),
    responses((status = 200, body = Page<Comment>))
)]
pub(super) async fn issue_comments(
    located: Located<Read>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<Comment>>, ApiError> {
    let all = located.forge.comments(located.number()?, forge_part(page)?).await;
    Ok(listed(all.map_err(ApiError::forge)?))
}
