//! Requests for builds.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_build::dockerfile::{self, DockerfileOptions};
use coffer_build::{BuildError, Submission};
use coffer_core::{BuildPlan, BuildStep, BuildStepKind, StartCommand};
use coffer_store::{NewBuild, ProjectScope, TemplateSize};
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::show::shown_build;
use crate::app::App;
use crate::auth::{Caller, Write};
use crate::body::Checked;
use crate::context::Context;
use crate::error::ApiError;
use crate::template_builds::{MOST_TAGS, own_name, tag_of};
use coffer_api_types::ErrorShape;
use coffer_api_types::templates::{NewTemplateBuild, NewTemplateStep, RegistryLogin, RequestedTemplateBuild};

const LONGEST_SUMMARY: usize = 500;
const SMALLEST_MEMORY_MIB: u64 = 128;
const SMALLEST_DISK_MIB: u64 = 64;
const LARGEST_MIB: u64 = 1 << 24;
const MOST_CPUS: u32 = 1024;

/// Requests a build, which runs in the background: from a Dockerfile, or from a base and steps.
///
/// Files that `COPY` steps or `archive://` need are uploaded before, with `POST /api/v1/template-files`. The build's log is
/// at `/api/v1/template-builds/{build}/log`.
#[utoipa::path(
    post, path = "/api/v1/templates", tag = "templates", request_body = NewTemplateBuild,
    responses(
        (status = 202, body = RequestedTemplateBuild, headers(("Location" = String))),
        (status = 409, body = ErrorShape, description = "the name is that of a template of the server")
    )
)]
pub(in crate::v1) async fn build(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    context: Context,
    Checked(new): Checked<NewTemplateBuild>,
) -> Result<(StatusCode, HeaderMap, Json<RequestedTemplateBuild>), ApiError> {
    let named = new.name.as_deref().map(|name| own_name(&caller.scope, name)).transpose();
    let named = named.map_err(|error| ApiError::invalid("name", error.into_parts().1))?;
    let mut tags: Vec<String> = named.iter().filter_map(|named| named.tag.clone()).collect();
    for tag in &new.tags {
        tags.push(tag_of(tag).map_err(|error| ApiError::invalid("tags", error.into_parts().1))?);
    }
    tags.sort();
    tags.dedup();
    if tags.len() > MOST_TAGS {
        return Err(ApiError::invalid("tags", format!("may have at most {MOST_TAGS} entries")));
    }
    let is_odd = |letter: char| letter.is_control();
    if new.summary.as_ref().is_some_and(|text| text.len() > LONGEST_SUMMARY || text.contains(is_odd)) {
        let why = format!("must have at most {LONGEST_SUMMARY} bytes and no control characters");
        return Err(ApiError::invalid("summary", why));
    }
    let size = size(&app, &new)?;
    let registry = match &new.registry {
        Some(login) => Some(registry(&app, &caller.scope, login).await?),
        None => None,
    };
    let summary = new.summary.clone();
    let (plan, warnings) = plan(new)?;
    let new = NewBuild {
        name: named.map(|named| named.name),
        tags,
        size,
        summary,
        created_by: Some(caller.key_id.to_string()),
    };
    let submission = Submission { new, plan, registry, warnings: warnings.clone() };
    let row = app.builds.submit(&caller.scope, submission).await?;
    context.made(row.template);
    let build = shown_build(&app, row);
    let place = format!("/api/v1/template-builds/{}", build.id);
    let place = HeaderValue::try_from(place).expect("letters, digits and dashes");
    let headers = HeaderMap::from_iter([(header::LOCATION, place)]);
    Ok((StatusCode::ACCEPTED, headers, Json(RequestedTemplateBuild { build, warnings })))
}

fn size(app: &App, new: &NewTemplateBuild) -> Result<TemplateSize, ApiError> {
    let mib = |field: &str, size: Option<u64>, least: u64| match size {
        Some(size) if !(least..=LARGEST_MIB).contains(&size) => {
            Err(ApiError::invalid(field, format!("must be {least} to {LARGEST_MIB}")))
        }
        size => Ok(size),
    };
    if new.cpu_count.is_some_and(|count| !(1..=MOST_CPUS).contains(&count)) {
        return Err(ApiError::invalid("cpu_count", format!("must be 1 to {MOST_CPUS}")));
    }
    // What equals the default stays the default, whatever that will be.
    let memory_mib = mib("memory_mib", new.memory_mib, SMALLEST_MEMORY_MIB)?;
    let disk_mib = mib("disk_mib", new.disk_mib, SMALLEST_DISK_MIB)?;
    Ok(TemplateSize {
        cpu_count: new.cpu_count.filter(|count| *count != app.limits.cpu_count),
        memory_mib: memory_mib.filter(|size| *size != app.limits.memory_mib),
        disk_mib: disk_mib.filter(|size| *size != app.limits.disk_mib),
    })
}

/// The credentials of a registry, as E2B's clients send them.
async fn registry(app: &App, scope: &ProjectScope, login: &RegistryLogin) -> Result<String, ApiError> {
    let names = BTreeMap::from([("password".to_string(), login.secret.clone())]);
    let values = app.store.read_secrets(scope.project()).await.map_err(ApiError::store)?;
    let found = coffer_fleet::secret_variables(&names, &values);
    let found = found.map_err(|error| ApiError::invalid("registry", error.to_string()))?;
    let password = found.into_values().next().unwrap_or_default();
    let login = serde_json::json!({ "type": "registry", "username": login.username, "password": password });
    Ok(login.to_string())
}

/// What the build does, and what of its Dockerfile has no effect.
fn plan(new: NewTemplateBuild) -> Result<(BuildPlan, Vec<String>), ApiError> {
    if let Some(hash) = new.context.as_ref().filter(|hash| !coffer_build::is_hash(hash)) {
        let shown: String = hash.chars().take(80).collect();
        return Err(ApiError::invalid("context", format!("'{shown}' is not the hash of an upload")));
    }
    let (mut plan, warnings) = match (new.dockerfile, new.from) {
        (Some(text), None) if new.steps.is_empty() => {
            let options =
                DockerfileOptions { args: new.args, context: new.context, platform: new.platform.clone() };
            let read = dockerfile::parse(&text, &options).map_err(BuildError::from)?;
            let warnings = read.warnings.iter();
            let warnings = warnings.map(|warning| format!("line {}: {}", warning.line, warning.message));
            let warnings = warnings.collect();
            (read.plan, warnings)
        }
        (Some(_), _) => {
            return Err(ApiError::invalid("dockerfile", "excludes `from` and `steps`"));
        }
        (None, Some(from)) => {
            let context = new.context.as_deref();
            let steps = new.steps.into_iter().enumerate();
            let steps = steps.map(|(index, step)| typed(index + 1, step, context));
            let plan = BuildPlan {
                source: dockerfile::source(&from),
                steps: steps.collect::<Result<_, ApiError>>()?,
                start: None,
                force: false,
                platform: new.platform,
            };
            (plan, Vec::new())
        }
        (None, None) => {
            return Err(ApiError::invalid("dockerfile", "or `from` must be given"));
        }
    };
    plan.force = new.force;
    let filled = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
    let own = plan.start.take().unwrap_or_default();
    let start = StartCommand {
        command: filled(new.start_command).or(own.command),
        ready: filled(new.ready_command).or(own.ready),
    };
    plan.start = (start.command.is_some() || start.ready.is_some()).then_some(start);
    for step in plan.steps.iter_mut().filter(|step| step.kind == BuildStepKind::Run) {
        for name in &new.secrets {
            // A shell cannot read a variable with a dash or a dot in its name.
            let variable = name.replace(['-', '.'], "_");
            step.secrets.entry(variable).or_insert_with(|| name.clone());
        }
    }
    Ok((plan, warnings))
}

fn typed(number: usize, step: NewTemplateStep, context: Option<&str>) -> Result<BuildStep, ApiError> {
    let NewTemplateStep { kind, args, files, force, secrets } = step;
    let named = BuildStepKind::parse(&kind.to_ascii_uppercase()).ok_or_else(|| {
        let known: Vec<&str> = BuildStepKind::ALL.iter().map(|kind| kind.as_str()).collect();
        ApiError::invalid("steps", format!("step {number} must have a kind of {}", known.join(", ")))
    })?;
    let files = files.or_else(|| context.map(String::from)).filter(|_| named == BuildStepKind::Copy);
    Ok(BuildStep { files_hash: files, force, secrets, ..BuildStep::new(named, args) })
}
