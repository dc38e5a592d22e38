//! Usage and cost of sandboxes.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::ProjectId;
use coffer_store::{Amounts, Scope, UsageFilter, UsageGroup, UsageLine};
use jiff::civil::Date;

use super::page::Part;
use crate::app::App;
use crate::auth::{Caller, Operating, Read};
use crate::error::ApiError;
use crate::query::Query;
use coffer_api_types::usage::{Prices, ProjectQuery, UsageEntry, UsageQuery};
use coffer_api_types::{Page, PageQuery};
use coffer_core::clock::now_ms;

const DAY_MS: i64 = 86_400_000;
const USUAL_DAYS: i64 = 30;

fn shown(line: UsageLine, group: UsageGroup, currency: &str) -> UsageEntry {
    let Amounts { running_ms, cpu_ms, memory_mib_ms, cpu_used_us, cost_nanos } = line.amounts;
    let key = |wanted| (group == wanted).then(|| line.key.clone());
    UsageEntry {
        day: key(UsageGroup::Day).as_deref().and_then(day_of_key),
        sandbox_id: key(UsageGroup::Sandbox),
        project_id: key(UsageGroup::Project),
        agent_id: line.agent.filter(|_| group == UsageGroup::Sandbox).map(|agent| agent.to_string()),
        running_seconds: running_ms as f64 / 1e3,
        cpu_seconds: cpu_ms as f64 / 1e3,
        memory_gib_seconds: memory_mib_ms as f64 / 1024e3,
        cpu_used_seconds: cpu_used_us as f64 / 1e6,
        cost: cost_nanos as f64 / 1e9,
        model_calls: line.models.calls,
        model_input_tokens: line.models.input_tokens,
        model_output_tokens: line.models.output_tokens,
        model_cost: line.models.cost_nanos as f64 / 1e9,
        currency: currency.to_string(),
    }
}

/// Keys of days are ten digits, so that they sort as text.
fn day_of_key(key: &str) -> Option<String> {
    let day = key.parse::<i64>().ok()? - 1_000_000_000;
    let start = jiff::Timestamp::from_millisecond(day * DAY_MS).ok()?;
    Some(start.to_zoned(jiff::tz::TimeZone::UTC).date().to_string())
}

fn day(name: &str, text: Option<&str>) -> Result<Option<i64>, ApiError> {
    let Some(text) = text else { return Ok(None) };
    let bad = || ApiError::invalid(name, "must be a day such as 2026-11-01");
    let date: Date = text.parse().map_err(|_| bad())?;
    let start = date.to_zoned(jiff::tz::TimeZone::UTC).map_err(|_| bad())?;
    Ok(Some(start.timestamp().as_millisecond().div_euclid(DAY_MS)))
}

async fn listed(
    app: &App,
    scope: &impl Scope,
    (page, query): (PageQuery, UsageQuery),
    groups: &[(&str, UsageGroup)],
    project: Option<ProjectId>,
) -> Result<Json<Page<UsageEntry>>, ApiError> {
    let part = Part::<String>::of(page)?;
    let named = query.group.as_deref().unwrap_or("day");
    let group = groups.iter().find(|(name, _)| *name == named).map(|(_, group)| *group);
    let group = group.ok_or_else(|| {
        let names: Vec<_> = groups.iter().map(|(name, _)| *name).collect();
        ApiError::invalid("group", format!("must be one of {}", names.join(", ")))
    })?;
    let to_day = day("to", query.to.as_deref())?.unwrap_or_else(|| now_ms().div_euclid(DAY_MS));
    let from_day = day("from", query.from.as_deref())?.unwrap_or(to_day - USUAL_DAYS);
    if from_day > to_day {
        return Err(ApiError::invalid("from", "must not be after to"));
    }
    let filter = UsageFilter {
        group,
        sandbox: query.sandbox,
        project,
        from_day,
        to_day,
        after: part.after.clone().filter(|key| key.bytes().all(|byte| byte.is_ascii_alphanumeric())),
        limit: part.to_fetch(),
    };
    let lines = app.store.usage(scope, &filter).await.map_err(ApiError::store)?;
    let currency = &app.fleet.usage.settings().currency;
    Ok(Json(part.page(lines, |line| line.key.clone(), |line| shown(line, group, currency))))
}

/// Usage of the project's sandboxes, or of an agent's own, by day or by sandbox.
#[utoipa::path(
    get, path = "/api/v1/usage", tag = "usage", params(PageQuery, UsageQuery),
    responses((status = 200, body = Page<UsageEntry>))
)]
pub(super) async fn own(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Query(page): Query<PageQuery>,
    Query(query): Query<UsageQuery>,
) -> Result<Json<Page<UsageEntry>>, ApiError> {
    let groups = [("day", UsageGroup::Day), ("sandbox", UsageGroup::Sandbox)];
    listed(&app, &caller.scope, (page, query), &groups, None).await
}

/// Usage of all projects' sandboxes. For operators; `project` selects one.
#[utoipa::path(
    get, path = "/api/v1/admin/usage", tag = "usage", params(PageQuery, UsageQuery, ProjectQuery),
    responses((status = 200, body = Page<UsageEntry>))
)]
pub(super) async fn all(
    State(app): State<Arc<App>>,
    caller: Operating,
    Query(page): Query<PageQuery>,
    Query(query): Query<UsageQuery>,
    Query(whose): Query<ProjectQuery>,
) -> Result<Json<Page<UsageEntry>>, ApiError> {
    let groups =
        [("day", UsageGroup::Day), ("sandbox", UsageGroup::Sandbox), ("project", UsageGroup::Project)];
    listed(&app, &caller.operator, (page, query), &groups, whose.project).await
}

/// The prices for usage. The operator sets them in `[usage]` of the configuration.
#[utoipa::path(
    get, path = "/api/v1/prices", tag = "usage",
    responses((status = 200, body = Prices))
)]
pub(super) async fn prices(State(app): State<Arc<App>>, _: Caller<Read>) -> Json<Prices> {
    let set = app.fleet.usage.settings();
    Json(Prices {
        currency: set.currency.clone(),
        cpu_second: set.cpu_second,
        memory_gib_second: set.memory_gib_second,
        sandbox_second: set.sandbox_second,
    })
}
