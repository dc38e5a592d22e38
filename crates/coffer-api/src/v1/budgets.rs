//! Budgets: how much the project, or one of its sandboxes, may cost.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::BudgetId;
use coffer_store::{Budget as BudgetRow, BudgetAction, BudgetPeriod, BudgetTerms};
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::page::Part;
use super::projects::wanted_version;
use crate::app::App;
use crate::auth::{Admin, Caller, Id, Read};
use crate::body::Checked;
use crate::context::Context;
use crate::error::ApiError;
use crate::query::Query;
use coffer_api_types::budgets::{Action, Budget, ChangedBudget, NewBudget, Period};
use coffer_api_types::{ErrorShape, Page, PageQuery};
use coffer_core::Code;
use coffer_core::clock::{now_ms, rfc3339};
use coffer_fleet::usage::first_day;

const LARGEST: f64 = 1e9;
const SMALLEST: f64 = 1e-9;
const MOST_WARNINGS: usize = 10;

fn checked(amount: f64, warn_at: Option<Vec<i64>>, action: Action) -> Result<BudgetTerms, ApiError> {
    if !(SMALLEST..=LARGEST).contains(&amount) {
        return Err(ApiError::invalid("amount", "must be more than 0 and at most a billion"));
    }
    let mut warn_at = warn_at.unwrap_or_else(|| vec![80]);
    if warn_at.len() > MOST_WARNINGS || warn_at.iter().any(|percent| !(1..100).contains(percent)) {
        let why = format!("must be at most {MOST_WARNINGS} percentages between 1 and 99");
        return Err(ApiError::invalid("warn_at", why));
    }
    warn_at.sort_unstable();
    warn_at.dedup();
    let action = match action {
        Action::Pause => BudgetAction::Pause,
        Action::End => BudgetAction::End,
    };
    #[expect(clippy::cast_possible_truncation, reason = "bounded above")]
    let amount_nanos = (amount * 1e9).round() as i64;
    Ok(BudgetTerms { amount_nanos, warn_at, action })
}

async fn shown(app: &App, budget: BudgetRow) -> Result<Budget, ApiError> {
    let first = first_day(budget.period, now_ms());
    let spent = app.store.spent(&app.store.operator(), &budget, first).await.map_err(ApiError::store)?;
    Ok(Budget {
        id: budget.id.to_string(),
        sandbox_id: budget.sandbox.map(|sandbox| sandbox.to_string()),
        period: match budget.period {
            BudgetPeriod::Day => Period::Day,
            BudgetPeriod::Month => Period::Month,
            BudgetPeriod::Total => Period::Total,
        },
        amount: budget.terms.amount_nanos as f64 / 1e9,
        action: match budget.terms.action {
            BudgetAction::Pause => Action::Pause,
            BudgetAction::End => Action::End,
        },
        spent: spent as f64 / 1e9,
        currency: app.fleet.usage.settings().currency.clone(),
        exceeded: spent >= budget.terms.amount_nanos,
        warn_at: budget.terms.warn_at,
        created_at: rfc3339(budget.created_ms),
    })
}

async fn tagged(app: &App, budget: BudgetRow) -> Result<(HeaderMap, Json<Budget>), ApiError> {
    let tag = HeaderValue::try_from(format!("\"{}\"", budget.version)).expect("digits in quotes");
    Ok((HeaderMap::from_iter([(header::ETAG, tag)]), Json(shown(app, budget).await?)))
}

/// Why no budget was changed.
async fn why_not(app: &App, caller: &Caller<Admin>, budget: BudgetId) -> ApiError {
    match app.store.budget(&caller.scope, budget).await {
        Ok(Some(_)) => ApiError::of(Code::PreconditionFailed, "the version in If-Match is out of date")
            .hint("read it again and repeat the change with its ETag"),
        Ok(None) => ApiError::nothing("budget", budget),
        Err(error) => ApiError::store(error),
    }
}

/// Creates a budget, for the project or for one sandbox.
#[utoipa::path(
    post, path = "/api/v1/budgets", tag = "usage", request_body = NewBudget,
    responses(
        (status = 201, body = Budget, headers(("ETag" = String))),
        (status = 404, body = ErrorShape, description = "no such sandbox"),
        (status = 409, body = ErrorShape, description = "a budget for this period exists")
    )
)]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    context: Context,
    Checked(request): Checked<NewBudget>,
) -> Result<(StatusCode, HeaderMap, Json<Budget>), ApiError> {
    let terms = checked(request.amount, request.warn_at, request.action)?;
    let period = match request.period {
        Period::Day => BudgetPeriod::Day,
        Period::Month => BudgetPeriod::Month,
        Period::Total => BudgetPeriod::Total,
    };
    let made = app.store.create_budget(&caller.scope, request.sandbox_id, period, terms).await;
    let made = made.map_err(|error| match (error, request.sandbox_id) {
        (coffer_store::NameError::Taken, _) => {
            ApiError::conflict(format!("a budget for each {} exists already", period.as_str()))
        }
        (error, sandbox) => {
            ApiError::name(error, "sandbox", sandbox.map(|id| id.to_string()).unwrap_or_default())
        }
    })?;
    context.made(made.id);
    app.fleet.heed_budgets().await.map_err(ApiError::store)?;
    let (headers, body) = tagged(&app, made).await?;
    Ok((StatusCode::CREATED, headers, body))
}

/// Lists the project's budgets with their spending, oldest first.
#[utoipa::path(
    get, path = "/api/v1/budgets", tag = "usage", params(PageQuery),
    responses((status = 200, body = Page<Budget>))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<Budget>>, ApiError> {
    let part = Part::of(page)?;
    let rows =
        app.store.budgets(&caller.scope, part.after, part.to_fetch()).await.map_err(ApiError::store)?;
    let page = part.page(rows, |row| row.id.to_string(), |row| row);
    let Page { items: rows, next } = page;
    let mut items = Vec::with_capacity(rows.len());
    for row in rows {
        items.push(shown(&app, row).await?);
    }
    Ok(Json(Page::new(items, next)))
}

/// One budget with its spending.
#[utoipa::path(
    get, path = "/api/v1/budgets/{budget}", tag = "usage", params(("budget" = String, Path)),
    responses((status = 200, body = Budget, headers(("ETag" = String))))
)]
pub(super) async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(budget): Id<BudgetId>,
) -> Result<(HeaderMap, Json<Budget>), ApiError> {
    let row = app.store.budget(&caller.scope, budget).await.map_err(ApiError::store)?;
    tagged(&app, row.ok_or_else(|| ApiError::nothing("budget", budget))?).await
}

/// Changes a budget. If it is raised far enough, sandboxes may run again, but they are not resumed.
#[utoipa::path(
    put, path = "/api/v1/budgets/{budget}", tag = "usage", request_body = ChangedBudget,
    params(
        ("budget" = String, Path),
        ("If-Match" = Option<String>, Header, description = "the ETag that the change is meant for")
    ),
    responses((status = 200, body = Budget, headers(("ETag" = String))), (status = 412, body = ErrorShape))
)]
pub(super) async fn replace(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    Id(budget): Id<BudgetId>,
    headers: HeaderMap,
    Checked(request): Checked<ChangedBudget>,
) -> Result<(HeaderMap, Json<Budget>), ApiError> {
    let terms = checked(request.amount, request.warn_at, request.action)?;
    let version = wanted_version(&headers)?;
    let changed = app.store.change_budget(&caller.scope, budget, version, terms).await;
    match changed.map_err(ApiError::store)? {
        Some(row) => {
            app.fleet.heed_budgets().await.map_err(ApiError::store)?;
            tagged(&app, row).await
        }
        None => Err(why_not(&app, &caller, budget).await),
    }
}

/// Deletes a budget; sandboxes that it stopped may run again.
#[utoipa::path(
    delete, path = "/api/v1/budgets/{budget}", tag = "usage",
    params(
        ("budget" = String, Path),
        ("If-Match" = Option<String>, Header, description = "the ETag that the change is meant for")
    ),
    responses((status = 204), (status = 412, body = ErrorShape))
)]
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    Id(budget): Id<BudgetId>,
    headers: HeaderMap,
) -> Result<StatusCode, ApiError> {
    let version = wanted_version(&headers)?;
    let removed = app.store.remove_budget(&caller.scope, budget, version).await.map_err(ApiError::store)?;
    if !removed {
        return Err(why_not(&app, &caller, budget).await);
    }
    app.fleet.heed_budgets().await.map_err(ApiError::store)?;
    Ok(StatusCode::NO_CONTENT)
}
