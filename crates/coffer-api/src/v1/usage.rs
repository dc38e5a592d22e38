//! Usage and cost of sandboxes.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use coffer_core::ProjectId;
use coffer_store::{Amounts, Scope, UsageFilter, UsageGroup, UsageLine};
use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_DISPOSITION, CONTENT_TYPE};
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
    let total_nanos =
        line.amounts.cost_nanos.saturating_add(line.models.cost_nanos).saturating_add(line.reported_nanos);
    let named = |wanted| (group == wanted && !line.key.is_empty()).then(|| line.key.clone());
    let agent = line.agent.filter(|_| group == UsageGroup::Sandbox).map(|agent| agent.to_string());
    let Amounts { running_ms, cpu_ms, memory_mib_ms, cpu_used_us, cost_nanos } = line.amounts;
    let key = |wanted| (group == wanted).then(|| line.key.clone());
    UsageEntry {
        day: key(UsageGroup::Day).as_deref().and_then(day_of_key),
        sandbox_id: key(UsageGroup::Sandbox),
        project_id: key(UsageGroup::Project),
        agent_id: agent.or_else(|| named(UsageGroup::Agent)),
        task_id: named(UsageGroup::Task),
        model: named(UsageGroup::Model),
        repository: named(UsageGroup::Repository),
        label: line.label.clone(),
        running_seconds: running_ms as f64 / 1e3,
        cpu_seconds: cpu_ms as f64 / 1e3,
        memory_gib_seconds: memory_mib_ms as f64 / 1024e3,
        cpu_used_seconds: cpu_used_us as f64 / 1e6,
        cost: cost_nanos as f64 / 1e9,
        model_calls: line.models.calls,
        model_input_tokens: line.models.input_tokens,
        model_output_tokens: line.models.output_tokens,
        model_cost: line.models.cost_nanos as f64 / 1e9,
        reported_cost: line.reported_nanos as f64 / 1e9,
        total_cost: total_nanos as f64 / 1e9,
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

/// The longest range of days; the longest table.
const MOST_DAYS: i64 = 400;
const MOST_CSV_LINES: u32 = 10_000;

/// Columns of a table: the key of the line, then its figures.
const CSV_HEAD: &str = "key,label,total_cost,sandbox_cost,model_cost,reported_cost,currency,model_calls,\
    model_input_tokens,model_output_tokens,running_seconds,cpu_seconds,memory_gib_seconds";

fn csv(lines: Vec<UsageLine>, group: UsageGroup, currency: &str) -> String {
    let mut table = format!("{CSV_HEAD}\r\n");
    for line in lines {
        let key = if group == UsageGroup::Day {
            day_of_key(&line.key).unwrap_or_default()
        } else {
            line.key.clone()
        };
        let entry = shown(line, group, currency);
        let label = cell(entry.label.as_deref().unwrap_or_default());
        let _ = write!(
            table,
            "{},{label},{},{},{},{},{},{},{},{},{},{},{}\r\n",
            cell(&key),
            entry.total_cost,
            entry.cost,
            entry.model_cost,
            entry.reported_cost,
            cell(&entry.currency),
            entry.model_calls,
            entry.model_input_tokens,
            entry.model_output_tokens,
            entry.running_seconds,
            entry.cpu_seconds,
            entry.memory_gib_seconds,
        );
    }
    table
}

/// A cell of text. Spreadsheets run what begins like a formula, and titles and names are anybody's.
fn cell(text: &str) -> String {
    let is_formula = text.trim_start_matches(' ').starts_with(['=', '+', '-', '@', '\t', '\r', '\n']);
    let guard = if is_formula { "'" } else { "" };
    format!("\"{guard}{}\"", text.replace('"', "\"\"").replace(['\r', '\n'], " "))
}

/// Whether a table is wanted.
fn wants_csv(query: &UsageQuery, headers: &HeaderMap) -> Result<bool, ApiError> {
    match query.format.as_deref() {
        Some("csv") => Ok(true),
        Some("json") => Ok(false),
        Some(_) => Err(ApiError::invalid("format", "must be json or csv")),
        None => Ok(headers.get(ACCEPT).is_some_and(|accept| accept.as_bytes().starts_with(b"text/csv"))),
    }
}

async fn listed(
    app: &App,
    scope: &impl Scope,
    headers: &HeaderMap,
    (page, query): (PageQuery, UsageQuery),
    groups: &[(&str, UsageGroup)],
    project: Option<ProjectId>,
) -> Result<Response, ApiError> {
    let is_csv = wants_csv(&query, headers)?;
    let part = Part::<String>::of(page)?;
    let named = query.group_by.as_deref().or(query.group.as_deref()).unwrap_or("day");
    let group = groups.iter().find(|(name, _)| *name == named).map(|(_, group)| *group);
    let group = group.ok_or_else(|| {
        let names: Vec<_> = groups.iter().map(|(name, _)| *name).collect();
        ApiError::invalid("group_by", format!("must be one of {}", names.join(", ")))
    })?;
    let to_day = day("to", query.to.as_deref())?.unwrap_or_else(|| now_ms().div_euclid(DAY_MS));
    let from_day = day("from", query.from.as_deref())?.unwrap_or(to_day - USUAL_DAYS);
    if from_day > to_day {
        return Err(ApiError::invalid("from", "must not be after to"));
    }
    if to_day - from_day >= MOST_DAYS {
        return Err(ApiError::invalid("from", format!("must be at most {MOST_DAYS} days before to")));
    }
    if query.sandbox.is_some() && group == UsageGroup::Model {
        return Err(ApiError::invalid("sandbox", "cannot be selected by model"));
    }
    let filter = UsageFilter {
        group,
        sandbox: query.sandbox,
        project,
        from_day,
        to_day,
        // PostgreSQL has no such text.
        after: part.after.clone().filter(|key| !key.contains('\0')),
        limit: if is_csv { MOST_CSV_LINES } else { part.to_fetch() },
    };
    let lines = app.store.usage(scope, &filter).await.map_err(ApiError::store)?;
    let currency = &app.fleet.usage.settings().currency;
    if is_csv {
        let headers = [
            (CONTENT_TYPE, "text/csv; charset=utf-8".to_string()),
            (CONTENT_DISPOSITION, format!("attachment; filename=\"usage-by-{named}.csv\"")),
        ];
        return Ok((headers, csv(lines, group, currency)).into_response());
    }
    Ok(Json(part.page(lines, |line| line.key.clone(), |line| shown(line, group, currency))).into_response())
}

/// What everybody may group by.
const GROUPS: [(&str, UsageGroup); 6] = [
    ("day", UsageGroup::Day),
    ("sandbox", UsageGroup::Sandbox),
    ("agent", UsageGroup::Agent),
    ("model", UsageGroup::Model),
    ("task", UsageGroup::Task),
    ("repository", UsageGroup::Repository),
];

/// Usage and cost of the project, or of an agent's own sandboxes, by day, sandbox, agent, model, task or repository.
#[utoipa::path(
    get, path = "/api/v1/usage", tag = "usage", params(PageQuery, UsageQuery),
    responses((status = 200, content((Page<UsageEntry> = "application/json"), (String = "text/csv"))))
)]
pub(super) async fn own(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    headers: HeaderMap,
    Query(page): Query<PageQuery>,
    Query(query): Query<UsageQuery>,
) -> Result<Response, ApiError> {
    listed(&app, &caller.scope, &headers, (page, query), &GROUPS, None).await
}

/// Usage of all projects' sandboxes. For operators; `project` selects one.
#[utoipa::path(
    get, path = "/api/v1/admin/usage", tag = "usage", params(PageQuery, UsageQuery, ProjectQuery),
    responses((status = 200, content((Page<UsageEntry> = "application/json"), (String = "text/csv"))))
)]
pub(super) async fn all(
    State(app): State<Arc<App>>,
    caller: Operating,
    headers: HeaderMap,
    Query(page): Query<PageQuery>,
    Query(query): Query<UsageQuery>,
    Query(whose): Query<ProjectQuery>,
) -> Result<Response, ApiError> {
    let groups = [&GROUPS[..], &[("project", UsageGroup::Project)]].concat();
    listed(&app, &caller.operator, &headers, (page, query), &groups, whose.project).await
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cell_of_a_table_is_a_formula() {
        for (text, shown) in [
            ("Fix the sum", "\"Fix the sum\""),
            ("say \"hi\", twice", "\"say \"\"hi\"\", twice\""),
            ("=HYPERLINK(\"http://x\")", "\"'=HYPERLINK(\"\"http://x\"\")\""),
            ("+1", "\"'+1\""),
            ("-1", "\"'-1\""),
            ("@SUM(A1)", "\"'@SUM(A1)\""),
            ("  =1", "\"'  =1\""),
            ("\t=1", "\"'\t=1\""),
            ("\r\n=1", "\"'  =1\""),
            ("a\r\nb", "\"a  b\""),
            ("", "\"\""),
        ] {
            assert_eq!(cell(text), shown, "{text:?}");
        }
    }
}
