//! Competitions: several agents do the same work in forks of one sandbox, and one wins.

mod ask;
mod shape;

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use coffer_core::compete::CompetitionState;
use coffer_core::{CompetitionId, TaskId};
use coffer_store::{
    CompetitionError, CompetitionFilter, CompetitionRow, EntryPatch, EntryRow, NewCompetition as NewRow,
};
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::board::{self, by_people};
use super::page::Part;
use crate::app::App;
use crate::auth::{Caller, Id, Need, Read, Write};
use crate::body::{Checked, MaybeChecked};
use crate::context::Context;
use crate::error::ApiError;
use crate::query::Query;
pub(super) use ask::{check_size, checked_terms};
use coffer_api_types::competitions::{
    Cancel, CompareQuery, Comparison, Competition, CompetitionQuery, Diff, NewCompetition, Pick,
};
use coffer_api_types::{ErrorShape, Page, PageQuery};
use coffer_core::Code;

const LONGEST_REASON: usize = 1000;

pub(super) fn refusal(error: CompetitionError, competition: CompetitionId) -> ApiError {
    match error {
        CompetitionError::NotFound => ApiError::nothing("competition", competition),
        CompetitionError::NoEntry(number) => {
            ApiError::invalid("entry", format!("is {number}: the competition has no entry {number}"))
        }
        CompetitionError::CannotWin(number) => {
            ApiError::invalid("entry", format!("is {number}, which failed or changed nothing: it cannot win"))
                .hint("its `error` says why; pick one whose `can_win` is true")
        }
        CompetitionError::NotWaiting(state) if state.is_over() => {
            ApiError::conflict(format!("the competition is over: it is {}", state.as_str()))
        }
        CompetitionError::NotWaiting(state) => {
            ApiError::conflict(format!("the competition does not wait for a pick: it is {}", state.as_str()))
        }
        CompetitionError::NoAgent(agent) => {
            ApiError::invalid("entries.agent_id", format!("names no agent of this project: {agent}"))
        }
        CompetitionError::KeyReused => {
            ApiError::of(Code::IdempotencyKeyReused, "this Idempotency-Key was used for a different request")
        }
        CompetitionError::Task(error) => board::refusal(error, TaskId::generate()),
        CompetitionError::Store(error) => ApiError::store(error),
    }
}

async fn entries(
    app: &App,
    caller: &Caller<impl Need>,
    competition: CompetitionId,
) -> Result<Vec<EntryRow>, ApiError> {
    app.store.competition_entries(&caller.scope, competition).await.map_err(ApiError::store)
}

pub(super) async fn found(
    app: &App,
    caller: &Caller<impl Need>,
    competition: CompetitionId,
) -> Result<(CompetitionRow, Vec<EntryRow>), ApiError> {
    by_people(caller)?;
    let row = app.store.competition(&caller.scope, competition).await.map_err(ApiError::store)?;
    let row = row.ok_or_else(|| ApiError::nothing("competition", competition))?;
    Ok((row, entries(app, caller, competition).await?))
}

/// Starts a competition: one sandbox is prepared and forked, each agent works in its own fork, and the
/// winner's pull request is opened.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/fork", tag = "competitions", request_body = NewCompetition,
    params(("Idempotency-Key" = Option<String>, Header, description = "the same key and body start one competition")),
    responses(
        (status = 202, body = Competition, headers(("Location" = String))),
        (status = 404, body = ErrorShape, description = "no such repository or sandbox"),
        (status = 409, body = ErrorShape), (status = 421, body = ErrorShape),
        (status = 429, body = ErrorShape, description = "more entries than the quota `forks` allows")
    )
)]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    context: Context,
    headers: HeaderMap,
    Checked(request): Checked<NewCompetition>,
) -> Result<(StatusCode, HeaderMap, Json<Competition>), ApiError> {
    by_people(&caller)?;
    let idempotency = crate::check::idempotency_of(&headers, &caller.actor(), &request)?;
    let new = ask::checked(&app, &caller, request).await?;
    let new = NewRow { idempotency, ..new };
    let begun = app.store.create_competition(&caller.scope, new).await;
    let row = begun.map_err(|error| refusal(error, CompetitionId::generate()))?;
    app.tasks.wake();
    context.made(row.id);
    let entries = entries(&app, &caller, row.id).await?;
    let place = format!("/api/v1/sandboxes/fork/{}", row.id);
    let place = HeaderValue::try_from(place).expect("letters and digits");
    let headers = HeaderMap::from_iter([(header::LOCATION, place)]);
    Ok((StatusCode::ACCEPTED, headers, Json(shape::shown(row, entries))))
}

/// The competitions of this project, the newest first.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/fork", tag = "competitions", params(PageQuery, CompetitionQuery),
    responses((status = 200, body = Page<Competition>))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Query(page): Query<PageQuery>,
    Query(query): Query<CompetitionQuery>,
) -> Result<Json<Page<Competition>>, ApiError> {
    by_people(&caller)?;
    let part: Part<CompetitionId> = Part::of(page)?;
    let state = query.state.map(|text| CompetitionState::parse(&text).ok_or(()));
    let filter = CompetitionFilter {
        state: state
            .transpose()
            .map_err(|()| ApiError::invalid("state", "is not a state of competitions"))?,
        task: query.task_id,
        context_id: query.context_id,
        after: part.after,
        limit: part.to_fetch(),
    };
    let rows = app.store.competitions(&caller.scope, &filter).await.map_err(ApiError::store)?;
    let Page { items: rows, next } = part.page(rows, |row| row.id.to_string(), |row| row);
    let ids: Vec<CompetitionId> = rows.iter().map(|row| row.id).collect();
    let found = app.store.entries_of_competitions(&caller.scope, &ids).await;
    let mut entries = found.map_err(ApiError::store)?;
    let shown = |row: CompetitionRow| {
        let entries = entries.remove(&row.id).unwrap_or_default();
        shape::shown(row, entries)
    };
    Ok(Json(Page::new(rows.into_iter().map(shown).collect(), next)))
}

/// One competition.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/fork/{fork}", tag = "competitions", params(("fork" = String, Path)),
    responses((status = 200, body = Competition))
)]
pub(super) async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(competition): Id<CompetitionId>,
) -> Result<Json<Competition>, ApiError> {
    let (row, entries) = found(&app, &caller, competition).await?;
    Ok(Json(shape::shown(row, entries)))
}

pub(super) fn of_path(text: &str) -> Result<CompetitionId, ApiError> {
    let shown: String = text.chars().take(64).collect();
    text.parse().map_err(|_| ApiError::nothing("competition", shown))
}

/// An entry and its patch.
async fn patch_of<'e>(
    app: &App,
    caller: &Caller<Read>,
    competition: CompetitionId,
    entries: &'e [EntryRow],
    number: i64,
) -> Result<(&'e EntryRow, EntryPatch), ApiError> {
    let entry = entries.iter().find(|entry| entry.number == number);
    let entry = entry.ok_or_else(|| ApiError::nothing("entry", number))?;
    let patch = app.store.entry_patch(&caller.scope, competition, number).await.map_err(ApiError::store)?;
    let none = || {
        let why = match entry.diff {
            Some(_) => "they were deleted because of their age".to_string(),
            None => format!("it is {}", entry.state.as_str()),
        };
        ApiError::conflict(format!("entry {number} has no changes to show: {why}"))
    };
    Ok((entry, patch.ok_or_else(none)?))
}

/// The changes of an entry; they stay after the competition has ended.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/fork/{fork}/entries/{entry}/diff", tag = "competitions",
    params(("fork" = String, Path), ("entry" = i64, Path)),
    responses((status = 200, body = Diff), (status = 409, body = ErrorShape, description = "it has no changes yet"))
)]
pub(super) async fn diff(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Path((competition, entry)): Path<(String, String)>,
) -> Result<Json<Diff>, ApiError> {
    let competition = of_path(&competition)?;
    let number =
        entry.parse().map_err(|_| ApiError::of(Code::NotFound, "entry must be the number of an entry"))?;
    let (row, entries) = found(&app, &caller, competition).await?;
    let (entry, patch) = patch_of(&app, &caller, competition, &entries, number).await?;
    Ok(Json(Diff {
        number,
        label: entry.label.clone(),
        base_commit: row.base_commit,
        commit: entry.commit.clone(),
        patch: patch.text,
        truncated: patch.is_cut,
    }))
}

/// Compares two entries file by file.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/fork/{fork}/compare", tag = "competitions",
    params(("fork" = String, Path), CompareQuery),
    responses(
        (status = 200, body = Comparison),
        (status = 409, body = ErrorShape, description = "one of them has no changes yet")
    )
)]
pub(super) async fn compare(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(competition): Id<CompetitionId>,
    Query(query): Query<CompareQuery>,
) -> Result<Json<Comparison>, ApiError> {
    let (_, entries) = found(&app, &caller, competition).await?;
    let CompareQuery { left, right } = query;
    let (left, ours) = patch_of(&app, &caller, competition, &entries, left).await?;
    let (right, theirs) = patch_of(&app, &caller, competition, &entries, right).await?;
    Ok(Json(shape::compare((left, &ours), (right, &theirs))))
}

/// Picks the winner of a competition that waits for a pick; its pull request is opened.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/fork/{fork}/winner", tag = "competitions", params(("fork" = String, Path)),
    request_body = Pick,
    responses(
        (status = 202, body = Competition),
        (status = 409, body = ErrorShape, description = "it does not wait for a pick")
    )
)]
pub(super) async fn winner(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Id(competition): Id<CompetitionId>,
    Checked(pick): Checked<Pick>,
) -> Result<(StatusCode, Json<Competition>), ApiError> {
    by_people(&caller)?;
    let picked = app.store.pick_winner(&caller.scope, competition, pick.entry, &caller.actor()).await;
    let row = picked.map_err(|error| refusal(error, competition))?;
    app.tasks.wake();
    let entries = entries(&app, &caller, competition).await?;
    Ok((StatusCode::ACCEPTED, Json(shape::shown(row, entries))))
}

/// Cancels a competition: its sandboxes are destroyed, and its entries' changes so far stay on record.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/fork/{fork}/cancel", tag = "competitions", params(("fork" = String, Path)),
    request_body = Option<Cancel>,
    responses((status = 202, body = Competition), (status = 409, body = ErrorShape, description = "it is over"))
)]
pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Id(competition): Id<CompetitionId>,
    MaybeChecked(request): MaybeChecked<Cancel>,
) -> Result<(StatusCode, Json<Competition>), ApiError> {
    by_people(&caller)?;
    let reason = request.reason.unwrap_or_else(|| "cancelled".into());
    if reason.len() > LONGEST_REASON {
        return Err(ApiError::invalid("reason", format!("may have at most {LONGEST_REASON} bytes")));
    }
    let cancelled = app.store.cancel_competition(&caller.scope, competition, &reason).await;
    let row = cancelled.map_err(|error| refusal(error, competition))?;
    app.tasks.wake();
    let entries = entries(&app, &caller, competition).await?;
    Ok((StatusCode::ACCEPTED, Json(shape::shown(row, entries))))
}
