//! Rows as the API shows them.

use coffer_build::{BuildError, CatalogueEntry};
use coffer_core::clock::rfc3339;
use coffer_core::{BuildSource, TemplateRef};
use coffer_store::{BuildRow, TemplateEntry, TemplateFilter, TemplateState};
use coffer_wire::node::TemplateInfo;

use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::template_builds::shown_id;
use crate::v1::catalogue;
use coffer_api_types::templates::{Template, TemplateBuild, TemplateBuildFailure};

/// The kinds of templates.
pub(super) const SERVER: &str = "server";
pub(super) const PROJECT: &str = "project";

/// A template of the server.
pub(super) fn of_server(app: &App, template: &TemplateInfo) -> Template {
    Template {
        id: template.name.clone(),
        name: template.name.clone(),
        kind: SERVER.to_string(),
        state: TemplateState::Ready.as_str().to_string(),
        summary: None,
        build: Some(template.build.clone()),
        is_default: template.name == app.default_template,
        user: Some(template.default_user.clone()),
        workdir: template.default_workdir.clone(),
        tags: vec![coffer_fleet::DEFAULT_TAG.to_string()],
        cpu_count: app.limits.cpu_count,
        memory_mib: app.limits.memory_mib,
        disk_mib: app.limits.disk_mib,
        added_bytes: None,
        build_count: 1,
        spawn_count: 0,
        last_spawned_at: None,
        created_by: None,
        created_at: None,
        updated_at: None,
        last_build: None,
    }
}

/// A template of the catalogue. Its ids belong to a project that nobody sees, so its name is its id.
pub(super) fn of_catalogue(app: &App, entry: CatalogueEntry) -> Template {
    let (definition, state) = (entry.definition, catalogue::state(&entry).to_string());
    let last_build = entry.newest.map(|row| {
        let build = shown_build(app, row);
        TemplateBuild { template_id: definition.name.clone(), created_by: None, ..build }
    });
    let ready = entry.ready.as_ref();
    Template {
        id: definition.name.clone(),
        name: definition.name.clone(),
        kind: SERVER.to_string(),
        state,
        summary: Some(definition.summary.clone()),
        build: ready.map(|row| shown_id(row.id)),
        is_default: definition.name == app.default_template,
        user: ready.map(|_| "user".to_string()),
        workdir: None,
        tags: ready.map(|_| coffer_fleet::DEFAULT_TAG.to_string()).into_iter().collect(),
        cpu_count: definition.cpus.unwrap_or(app.limits.cpu_count),
        memory_mib: definition.memory_mib.unwrap_or(app.limits.memory_mib),
        disk_mib: app.limits.disk_mib,
        added_bytes: None,
        build_count: u64::from(ready.is_some()),
        spawn_count: 0,
        last_spawned_at: None,
        created_by: None,
        created_at: ready.map(|row| rfc3339(row.created_ms)),
        updated_at: ready.map(|row| rfc3339(row.ended_ms.unwrap_or(row.created_ms))),
        last_build,
    }
}

/// A template of a project.
pub(super) fn of_project(app: &App, entry: TemplateEntry) -> Template {
    let (user, workdir) = match entry.defaults {
        Some(defaults) => (Some(defaults.user), defaults.workdir),
        None => (None, None),
    };
    let count = |number: i64| u64::try_from(number).unwrap_or(0);
    Template {
        id: entry.id.to_string(),
        is_default: entry.name == app.default_template,
        name: entry.name,
        kind: PROJECT.to_string(),
        state: entry.state.as_str().to_string(),
        summary: entry.summary,
        build: entry.build.map(shown_id),
        user,
        workdir,
        tags: entry.tags,
        cpu_count: entry.size.cpu_count.unwrap_or(app.limits.cpu_count),
        memory_mib: entry.size.memory_mib.unwrap_or(app.limits.memory_mib),
        disk_mib: entry.size.disk_mib.unwrap_or(app.limits.disk_mib),
        added_bytes: entry.snapshot.map(|_| count(entry.bytes)),
        build_count: count(entry.build_count),
        spawn_count: count(entry.spawn_count),
        last_spawned_at: entry.last_spawned_ms.map(rfc3339),
        created_by: entry.created_by,
        created_at: Some(rfc3339(entry.created_ms)),
        updated_at: Some(rfc3339(entry.updated_ms)),
        last_build: entry.last_build.map(|row| shown_build(app, row)),
    }
}

/// The template of the project with that id or name.
pub(super) async fn own<N>(app: &App, caller: &Caller<N>, template: &str) -> Result<TemplateEntry, ApiError> {
    let name = template.parse::<TemplateRef>().ok().map(|reference| reference.name);
    let filter = TemplateFilter { only: name.as_deref(), limit: 1, ..TemplateFilter::default() };
    let missing = || ApiError::from(BuildError::NotFound(template.chars().take(64).collect()));
    if name.is_none() {
        return Err(missing());
    }
    let found = app.store.template_entries(&caller.scope, &filter).await.map_err(ApiError::store)?;
    found.into_iter().next().ok_or_else(missing)
}

pub(super) fn shown_build(app: &App, row: BuildRow) -> TemplateBuild {
    let plan = row.plan.as_ref();
    let failure = row.failure.map(|failure| {
        let step = failure.step.as_deref().and_then(|step| step.parse::<usize>().ok());
        let line = step.and_then(|step| plan?.steps.get(step.checked_sub(1)?)?.line);
        TemplateBuildFailure { message: failure.message, step: failure.step, line }
    });
    TemplateBuild {
        id: shown_id(row.id),
        template_id: row.template.to_string(),
        template: row.template_name,
        state: row.state.as_str().to_string(),
        tags: row.tags,
        from: plan.map(|plan| match &plan.source {
            BuildSource::Image(name) => name.clone(),
            BuildSource::Template(name) => format!("template://{name}"),
            BuildSource::Archive(hash) => format!("archive://{hash}"),
        }),
        step_count: plan.map(|plan| plan.steps.len() as u64),
        cpu_count: row.size.cpu_count.unwrap_or(app.limits.cpu_count),
        memory_mib: row.size.memory_mib.unwrap_or(app.limits.memory_mib),
        disk_mib: row.size.disk_mib.unwrap_or(app.limits.disk_mib),
        failure,
        log_lines: u64::try_from(row.log_lines).unwrap_or(0),
        created_by: row.created_by,
        created_at: rfc3339(row.created_ms),
        started_at: row.started_ms.map(rfc3339),
        ended_at: row.ended_ms.map(rfc3339),
    }
}
