//! Quotas and settings of projects, and leases of sandboxes.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::settings::Period;
use coffer_core::{LifetimePolicy, ProjectId};
use coffer_store::{
    GitSettings, ProjectQuotas, ProjectSettings, Quotas, Retention, Scope, TaskRules, VersionedSettings,
};
use http::{HeaderMap, HeaderValue, header};

use super::bounds::within;
use super::projects::{changed_meanwhile, wanted_version};
use super::sandboxes::{at_timeout, on_timeout};
use crate::app::App;
use crate::auth::{Admin, Caller, Id, Named, Operating, Read, Write};
use crate::body::Checked;
use crate::error::ApiError;
use coffer_api_types::ErrorShape;
use coffer_api_types::limits::{
    GitShape, Lease, QuotaState, QuotasShape, RetentionShape, Settings, SettingsShape, TaskRulesShape,
    UseShape,
};
use coffer_core::clock::rfc3339;

/// A century.
const MOST_DAYS: i64 = 36_500;
/// Of a name or an e-mail address.
const LONGEST_IDENTITY: usize = 200;

fn git_shape(git: GitSettings) -> GitShape {
    GitShape { name: git.name, email: git.email, commits: git.commits }
}

fn checked_git(shape: GitShape) -> Result<GitSettings, ApiError> {
    for (field, text) in [("git.name", &shape.name), ("git.email", &shape.email)] {
        let fits = |text: &String| {
            (1..=LONGEST_IDENTITY).contains(&text.trim().len())
                && !text.contains(|c: char| c.is_control() || "<>".contains(c))
        };
        if !text.as_ref().is_none_or(fits) {
            return Err(ApiError::invalid(field, "must be 1 to 200 characters without `<` and `>`"));
        }
    }
    shape.commits.check().map_err(|why| ApiError::invalid("git.commits", why.to_string()))?;
    Ok(GitSettings { name: shape.name, email: shape.email, commits: shape.commits })
}

fn rules_shape(rules: TaskRules) -> TaskRulesShape {
    let TaskRules { label, assignee, mention, agent, start_on_assign, start_on_move } = rules;
    TaskRulesShape { label, assignee, mention, agent_id: agent, start_on_assign, start_on_move }
}

fn checked_rules(shape: TaskRulesShape) -> Result<TaskRules, ApiError> {
    let is_login = |text: &String| {
        (1..=100).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_[]".contains(&b))
    };
    for (field, text) in [("tasks.assignee", &shape.assignee), ("tasks.mention", &shape.mention)] {
        if !text.as_ref().is_none_or(is_login) {
            return Err(ApiError::invalid(
                field,
                "must be a login of 1 to 100 letters, digits and dashes, without `@`",
            ));
        }
    }
    let is_label = |text: &String| {
        (1..=100).contains(&text.chars().count())
            && text.trim() == text
            && !text.chars().any(char::is_control)
    };
    if !shape.label.as_ref().is_none_or(is_label) {
        return Err(ApiError::invalid("tasks.label", "must have 1 to 100 characters"));
    }
    let TaskRulesShape { label, assignee, mention, agent_id, start_on_assign, start_on_move } = shape;
    let rules = TaskRules { label, assignee, mention, agent: agent_id, start_on_assign, start_on_move };
    if rules.listens() && rules.agent.is_none() {
        return Err(ApiError::invalid(
            "tasks.agent_id",
            "is needed: it says which agent works on such tasks",
        ));
    }
    Ok(rules)
}

fn checked_settings(shape: SettingsShape, policy: &LifetimePolicy) -> Result<ProjectSettings, ApiError> {
    let (longest_s, maximum_s) = (policy.longest_timeout_ms / 1000, policy.maximum_ms / 1000);
    within("timeout_s", shape.timeout_s, 1, longest_s)?;
    within("idle_s", shape.idle_s, 0, i64::MAX / 1000)?;
    within("max_lifetime_s", shape.max_lifetime_s, 1, maximum_s)?;
    if let (Some(timeout_s), Some(maximum_s)) = (shape.timeout_s, shape.max_lifetime_s)
        && timeout_s > maximum_s
    {
        return Err(ApiError::invalid("timeout_s", "must not be more than max_lifetime_s"));
    }
    let kept = shape.retention;
    for (name, days) in [
        ("retention.archive_logs_days", kept.archive_logs_days),
        ("retention.logs_days", kept.logs_days),
        ("retention.records_days", kept.records_days),
        ("retention.events_days", kept.events_days),
        ("retention.audit_days", kept.audit_days),
    ] {
        within(name, days, 1, MOST_DAYS)?;
    }
    Ok(ProjectSettings {
        timeout_s: shape.timeout_s,
        idle_s: shape.idle_s,
        max_lifetime_s: shape.max_lifetime_s,
        on_timeout: shape.on_timeout.map(on_timeout),
        retention: Retention {
            archive_logs_days: kept.archive_logs_days,
            logs_days: kept.logs_days,
            records_days: kept.records_days,
            events_days: kept.events_days,
            audit_days: kept.audit_days,
        },
        git: checked_git(shape.git)?,
        tasks: checked_rules(shape.tasks)?,
    })
}

fn shown(app: &App, found: VersionedSettings) -> (HeaderMap, Json<Settings>) {
    let (own, force) = (found.settings, app.limiter.of(found.project));
    let kept = force.retention;
    let idle_s = force.idle_s.or(app.policy.idle_ms.map(|ms| ms / 1000)).filter(|idle_s| *idle_s > 0);
    let in_force = SettingsShape {
        timeout_s: Some(force.timeout_s),
        idle_s,
        max_lifetime_s: Some(force.max_lifetime_s.unwrap_or(i64::MAX).min(app.policy.maximum_ms / 1000)),
        on_timeout: Some(at_timeout(force.on_timeout)),
        retention: RetentionShape {
            archive_logs_days: days(kept.archive_logs),
            logs_days: days(kept.logs),
            records_days: days(kept.records),
            events_days: days(kept.events),
            audit_days: days(kept.audit),
        },
        git: git_shape(own.git.clone()),
        tasks: rules_shape(own.tasks.clone()),
    };
    let own = SettingsShape {
        timeout_s: own.timeout_s,
        idle_s: own.idle_s,
        max_lifetime_s: own.max_lifetime_s,
        on_timeout: own.on_timeout.map(at_timeout),
        retention: RetentionShape {
            archive_logs_days: own.retention.archive_logs_days,
            logs_days: own.retention.logs_days,
            records_days: own.retention.records_days,
            events_days: own.retention.events_days,
            audit_days: own.retention.audit_days,
        },
        git: git_shape(own.git),
        tasks: rules_shape(own.tasks),
    };
    (tag(found.version), Json(Settings { own, in_force }))
}

/// Whole days, rounded down.
fn days(period: Period) -> Option<i64> {
    Some(period.as_millis() / 86_400_000)
}

fn tag(version: i64) -> HeaderMap {
    let tag = HeaderValue::try_from(format!("\"{version}\"")).expect("digits in quotes");
    HeaderMap::from_iter([(header::ETAG, tag)])
}

type Answer<T> = Result<(HeaderMap, Json<T>), ApiError>;

async fn read(app: &App, scope: &impl Scope, project: ProjectId) -> Answer<Settings> {
    let found = app.store.project_settings(scope, project).await.map_err(ApiError::store)?;
    found.map(|found| shown(app, found)).ok_or_else(|| ApiError::nothing("project", project))
}

async fn change(
    app: &App,
    scope: &impl Scope,
    project: ProjectId,
    headers: &HeaderMap,
    shape: SettingsShape,
) -> Answer<Settings> {
    let settings = checked_settings(shape, &app.policy)?;
    let version = wanted_version(headers)?;
    let there = app.store.project(scope, project).await.map_err(ApiError::store)?;
    there.ok_or_else(|| ApiError::nothing("project", project))?;
    if let Some(agent) = settings.tasks.agent {
        let inside = app.store.operator().acting_for(project, None);
        let known = app.store.agent(&inside, agent).await.map_err(ApiError::store)?;
        known.ok_or_else(|| {
            ApiError::invalid("tasks.agent_id", format!("names no agent of this project: {agent}"))
        })?;
    }
    let set = app.store.set_project_settings(scope, project, version, settings).await;
    let set = set.map_err(ApiError::store)?.ok_or_else(changed_meanwhile)?;
    app.limiter.set(project, set.settings.clone());
    Ok(shown(app, set))
}

/// The settings of the caller's project.
#[utoipa::path(
    get, path = "/api/v1/project/settings", tag = "limits",
    responses((status = 200, body = Settings, headers(("ETag" = String))), (status = 404, body = ErrorShape))
)]
pub(super) async fn own_settings(State(app): State<Arc<App>>, caller: Caller<Read>) -> Answer<Settings> {
    read(&app, &caller.scope, caller.scope.project()).await
}

/// Replaces the settings of the caller's project. They apply to sandboxes created from then on.
#[utoipa::path(
    put, path = "/api/v1/project/settings", tag = "limits", request_body = SettingsShape,
    params(("If-Match" = Option<String>, Header, description = "the ETag that the change is meant for")),
    responses(
        (status = 200, body = Settings, headers(("ETag" = String))), (status = 404, body = ErrorShape),
        (status = 412, body = ErrorShape)
    )
)]
pub(super) async fn set_own_settings(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    headers: HeaderMap,
    Checked(shape): Checked<SettingsShape>,
) -> Answer<Settings> {
    change(&app, &caller.scope, caller.scope.project(), &headers, shape).await
}

/// The settings of a project. For operators.
#[utoipa::path(
    get, path = "/api/v1/projects/{project}/settings", tag = "limits", params(("project" = String, Path)),
    responses((status = 200, body = Settings, headers(("ETag" = String))))
)]
pub(super) async fn settings(
    State(app): State<Arc<App>>,
    caller: Operating,
    Id(project): Id<ProjectId>,
) -> Answer<Settings> {
    read(&app, &caller.operator, project).await
}

/// Replaces the settings of a project. For operators.
#[utoipa::path(
    put, path = "/api/v1/projects/{project}/settings", tag = "limits", params(("project" = String, Path),
        ("If-Match" = Option<String>, Header, description = "the ETag that the change is meant for")),
    request_body = SettingsShape,
    responses((status = 200, body = Settings, headers(("ETag" = String))), (status = 412, body = ErrorShape))
)]
pub(super) async fn set_settings(
    State(app): State<Arc<App>>,
    caller: Operating,
    Id(project): Id<ProjectId>,
    headers: HeaderMap,
    Checked(shape): Checked<SettingsShape>,
) -> Answer<Settings> {
    change(&app, &caller.operator, project, &headers, shape).await
}

fn quota_shape(quotas: Quotas) -> QuotasShape {
    let Quotas { sandboxes, cpus, memory_mib, disk_mib, forks, runs, storage_mib } = quotas;
    QuotasShape { sandboxes, cpus, memory_mib, disk_mib, forks, runs, storage_mib }
}

async fn quota_state(app: &App, scope: &impl Scope, project: ProjectId) -> Answer<QuotaState> {
    // Rows of sandboxes that already answer may not be written yet.
    app.fleet.recorded().await;
    let found = app.store.quotas(scope, project).await.map_err(ApiError::store)?;
    let ProjectQuotas { own, in_force, in_use, version } =
        found.ok_or_else(|| ApiError::nothing("project", project))?;
    let used = UseShape {
        sandboxes: in_use.sandboxes,
        cpus: in_use.cpus,
        memory_mib: in_use.memory_mib,
        disk_mib: in_use.disk_mib,
        storage_mib: in_use.storage_mib,
    };
    Ok((tag(version), Json(QuotaState { limits: quota_shape(in_force), used, own: quota_shape(own) })))
}

/// Quotas and use of the caller's project.
#[utoipa::path(
    get, path = "/api/v1/quotas", tag = "limits",
    responses((status = 200, body = QuotaState), (status = 404, body = ErrorShape))
)]
pub(super) async fn own_quotas(State(app): State<Arc<App>>, caller: Caller<Read>) -> Answer<QuotaState> {
    quota_state(&app, &caller.scope, caller.scope.project()).await
}

/// Quotas and use of a project. For operators.
#[utoipa::path(
    get, path = "/api/v1/projects/{project}/quotas", tag = "limits", params(("project" = String, Path)),
    responses((status = 200, body = QuotaState, headers(("ETag" = String))))
)]
pub(super) async fn quotas(
    State(app): State<Arc<App>>,
    caller: Operating,
    Id(project): Id<ProjectId>,
) -> Answer<QuotaState> {
    quota_state(&app, &caller.operator, project).await
}

/// Sets the quotas of a project. For operators. Existing sandboxes and records stay.
#[utoipa::path(
    put, path = "/api/v1/projects/{project}/quotas", tag = "limits", params(("project" = String, Path),
        ("If-Match" = Option<String>, Header, description = "the ETag that the change is meant for")),
    request_body = QuotasShape,
    responses((status = 200, body = QuotaState, headers(("ETag" = String))), (status = 412, body = ErrorShape))
)]
pub(super) async fn set_quotas(
    State(app): State<Arc<App>>,
    caller: Operating,
    Id(project): Id<ProjectId>,
    headers: HeaderMap,
    Checked(shape): Checked<QuotasShape>,
) -> Answer<QuotaState> {
    let QuotasShape { sandboxes, cpus, memory_mib, disk_mib, forks, runs, storage_mib } = shape;
    let each = [
        ("sandboxes", sandboxes),
        ("cpus", cpus),
        ("memory_mib", memory_mib),
        ("disk_mib", disk_mib),
        ("forks", forks),
        ("runs", runs),
        ("storage_mib", storage_mib),
    ];
    for (name, limit) in each {
        within(name, limit, 0, i64::MAX)?;
    }
    let version = wanted_version(&headers)?;
    let there = app.store.project(&caller.operator, project).await.map_err(ApiError::store)?;
    there.ok_or_else(|| ApiError::nothing("project", project))?;
    let quotas = Quotas { sandboxes, cpus, memory_mib, disk_mib, forks, runs, storage_mib };
    let set =
        app.store.set_quotas(&caller.operator, project, version, quotas).await.map_err(ApiError::store)?;
    set.ok_or_else(changed_meanwhile)?;
    quota_state(&app, &caller.operator, project).await
}

/// Extends the lease of a running sandbox by another `lease_s` seconds.
///
/// Without a heartbeat in time, a sandbox created with `lease_s` ends or pauses, as its `on_timeout` says.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/heartbeat", tag = "sandboxes", params(("id" = String, Path)),
    responses(
        (status = 200, body = Lease), (status = 409, body = ErrorShape, description = "it has no lease, or is busy")
    )
)]
pub(super) async fn heartbeat(
    State(app): State<Arc<App>>,
    named: Named<Write>,
) -> Result<Json<Lease>, ApiError> {
    let lease_s = named.record.live().row.bounds.lease_s;
    let renewed = app.fleet.heartbeat(named.record).await;
    let until_ms = renewed.map_err(|error| ApiError::fleet(error, &named.id))?;
    let (Some(lease_s), Some(until_ms)) = (lease_s, until_ms) else {
        return Err(ApiError::conflict("the sandbox has no lease")
            .hint("create it with `lease_s` to end it when heartbeats stop"));
    };
    Ok(Json(Lease { lease_s, expires_at: rfc3339(until_ms) }))
}
