//! Secrets as E2B's clients manage and use them. They are the secrets of `/api/v1/secrets`.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::str::FromStr;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::clock::rfc3339;
use coffer_core::network::E2B_SECRET_REFERENCE;
use coffer_core::{ProjectId, SecretId};
use coffer_store::{
    BadSecretName, MOST_SECRETS, ProjectScope, Secret as Value, SecretError, SecretInfo, SecretName,
    SecretTerms, SecretValues,
};
use coffer_wire::e2b::{NetworkRule, NewSecret, Secret, SecretUpdate};
use http::{HeaderMap, StatusCode};

use super::app::App;
use super::auth::{Admin, Caller, Id, Read};
use super::body::Body;
use super::context::Context;
use super::error::ApiError;
use super::query::Pairs;

/// Begins every id, and no name that E2B's clients choose.
const ID_PREFIX: &str = "sec_";
const LARGEST_PAGE: i64 = 100;
/// The longest value that fits into an environment variable.
const LONGEST_VALUE: usize = 64 * 1024;
// E2B's bounds of metadata.
const MOST_METADATA: usize = 32;
const LONGEST_KEY: usize = 128;
const LONGEST_TEXT: usize = 1024;
const LONGEST_METADATA: usize = 8192;

/// A secret by its id or its name, as the path has it.
#[derive(Debug)]
pub(super) struct IdOrName(String);

impl FromStr for IdOrName {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_string()))
    }
}

impl IdOrName {
    async fn find(&self, app: &App, scope: &ProjectScope) -> Result<SecretInfo, ApiError> {
        let id = self.0.strip_prefix(ID_PREFIX).and_then(|text| text.parse::<SecretId>().ok());
        // A text that is neither has no secret; the database need not see it.
        let found = if id.is_some() || self.0.parse::<SecretName>().is_ok() {
            app.store.find_secret(scope, id, &self.0).await.map_err(ApiError::store)?
        } else {
            None
        };
        found.ok_or_else(|| self.nothing())
    }

    fn nothing(&self) -> ApiError {
        ApiError::nothing("secret", self.0.chars().take(64).collect::<String>())
    }
}

/// `POST /secrets`.
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    context: Context,
    Body(new): Body<NewSecret>,
) -> Result<(StatusCode, Json<Secret>), ApiError> {
    let name = checked_name(&new.name)?;
    let (value, terms) = checked(new.value, new.metadata)?;
    let created = app.store.create_secret(&caller.scope, &name, &value, terms).await;
    let info = created.map_err(|error| refused(error, name.as_str()))?;
    context.made(&name);
    app.fleet.secrets_changed();
    Ok((StatusCode::CREATED, Json(shown(info))))
}

/// `GET /secrets`: a page, by name.
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    query: Pairs,
) -> Result<(HeaderMap, Json<Vec<Secret>>), ApiError> {
    let limit = query.number("limit")?.unwrap_or(LARGEST_PAGE);
    if !(1..=LARGEST_PAGE).contains(&limit) {
        return Err(ApiError::bad_request(format!("limit must be between 1 and {LARGEST_PAGE}")));
    }
    let limit = usize::try_from(limit).map_err(|_| ApiError::internal())?;
    let after = query.text("nextToken").map(str::parse::<SecretName>).transpose();
    let after = after.map_err(|_| ApiError::bad_request("nextToken is not one that this server gave out"))?;
    // Fetch one more than is shown to learn whether there is a next page.
    let more = u32::try_from(limit + 1).map_err(|_| ApiError::internal())?;
    let found = app.store.secrets_after(&caller.scope, after.as_ref(), more).await;
    let mut found = found.map_err(ApiError::store)?;
    let mut headers = HeaderMap::new();
    if found.len() > limit {
        found.truncate(limit);
        let last = found.last().ok_or_else(ApiError::internal)?;
        headers.insert("x-next-token", last.name.parse().map_err(|_| ApiError::internal())?);
    }
    Ok((headers, Json(found.into_iter().map(shown).collect())))
}

/// `GET /secrets/{id or name}`.
pub(super) async fn show(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(named): Id<IdOrName>,
) -> Result<Json<Secret>, ApiError> {
    named.find(&app, &caller.scope).await.map(|info| Json(shown(info)))
}

/// `POST /secrets/{id or name}`: replaces the value.
pub(super) async fn update(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    context: Context,
    Id(named): Id<IdOrName>,
    Body(update): Body<SecretUpdate>,
) -> Result<Json<Secret>, ApiError> {
    let (value, terms) = checked(update.value, update.metadata)?;
    let SecretInfo { id, name, .. } = named.find(&app, &caller.scope).await?;
    context.made(&name);
    let replaced = app.store.replace_secret(&caller.scope, id, &value, terms).await;
    let info = replaced.map_err(|error| refused(error, &name))?;
    app.fleet.secrets_changed();
    Ok(Json(shown(info)))
}

/// `DELETE /secrets/{id or name}`.
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    context: Context,
    Id(named): Id<IdOrName>,
) -> Result<StatusCode, ApiError> {
    let SecretInfo { id, name, .. } = named.find(&app, &caller.scope).await?;
    context.made(&name);
    let deleted = app.store.delete_secret_by_id(&caller.scope, id).await.map_err(ApiError::store)?;
    app.fleet.secrets_changed();
    if deleted { Ok(StatusCode::NO_CONTENT) } else { Err(named.nothing()) }
}

/// Spells the names in E2B's references as the secrets have them: E2B's names are of any case, ours are not.
pub(super) async fn spell(
    app: &App,
    project: ProjectId,
    rules: Option<&mut BTreeMap<String, Vec<NetworkRule>>>,
) -> Result<(), ApiError> {
    let headers = rules.into_iter().flat_map(BTreeMap::values_mut).flatten();
    let headers = headers.filter_map(|rule| rule.transform.as_mut()?.headers.as_mut());
    let values = headers.flat_map(BTreeMap::values_mut);
    let texts: Vec<&mut String> = values.filter(|value| value.contains(E2B_SECRET_REFERENCE)).collect();
    if texts.is_empty() {
        return Ok(());
    }
    let secrets = app.store.secret_values(project).await.map_err(ApiError::store)?;
    let spellings: HashMap<String, &str> =
        secrets.names().map(|name| (name.to_ascii_lowercase(), name)).collect();
    for text in texts {
        *text = spelled(text, &secrets, &spellings);
    }
    Ok(())
}

fn spelled(text: &str, secrets: &SecretValues, spellings: &HashMap<String, &str>) -> String {
    let mut parts = text.split(E2B_SECRET_REFERENCE);
    let mut whole = parts.next().unwrap_or_default().to_string();
    for part in parts {
        whole.push_str(E2B_SECRET_REFERENCE);
        let (name, rest) = part.find('}').map_or(("", part), |end| part.split_at(end));
        let known =
            if secrets.get(name).is_some() { None } else { spellings.get(&name.to_ascii_lowercase()) };
        whole.push_str(known.copied().unwrap_or(name));
        whole.push_str(rest);
    }
    whole
}

/// E2B stores names in lower case.
fn checked_name(name: &str) -> Result<SecretName, ApiError> {
    let name = name.to_ascii_lowercase();
    if name.starts_with(ID_PREFIX) {
        return Err(ApiError::bad_request(format!("a secret's name must not begin with {ID_PREFIX}")));
    }
    name.parse().map_err(|error: BadSecretName| ApiError::bad_request(error.to_string()))
}

fn checked(
    value: String,
    metadata: Option<BTreeMap<String, String>>,
) -> Result<(Value, SecretTerms), ApiError> {
    check_value(&value).map_err(|wrong| ApiError::bad_request(format!("value {wrong}")))?;
    check_metadata(metadata.iter().flatten()).map_err(ApiError::bad_request)?;
    Ok((Value::new(value), SecretTerms { metadata, ..SecretTerms::default() }))
}

fn check_metadata<'a>(entries: impl Iterator<Item = (&'a String, &'a String)>) -> Result<(), String> {
    let (mut count, mut bytes) = (0, 0);
    for (key, text) in entries {
        count += 1;
        bytes += key.len() + text.len();
        if key.is_empty() || key.len() > LONGEST_KEY || text.len() > LONGEST_TEXT {
            return Err(format!(
                "metadata keys must have 1 to {LONGEST_KEY} bytes, and values at most {LONGEST_TEXT}"
            ));
        }
    }
    if count > MOST_METADATA || bytes > LONGEST_METADATA {
        return Err(format!(
            "metadata may have at most {MOST_METADATA} entries and {LONGEST_METADATA} bytes in all"
        ));
    }
    Ok(())
}

/// Says what is wrong with a value, if anything.
pub(super) fn check_value(value: &str) -> Result<(), String> {
    if (1..=LONGEST_VALUE).contains(&value.len()) && !value.contains('\0') {
        return Ok(());
    }
    Err(format!("must be 1 to {LONGEST_VALUE} bytes of text without NUL"))
}

/// A change that the store refused.
pub(super) fn refused(error: SecretError, name: &str) -> ApiError {
    match error {
        SecretError::TooMany => ApiError::conflict(format!("a project may have {MOST_SECRETS} secrets"))
            .hint("delete one that nothing uses"),
        SecretError::Taken => ApiError::conflict(format!("a secret named '{name}' exists already")),
        SecretError::NotFound => ApiError::nothing("secret", name),
        SecretError::Store(error) => ApiError::store(error),
    }
}

fn shown(info: SecretInfo) -> Secret {
    Secret {
        secret_id: format!("{ID_PREFIX}{}", info.id),
        name: info.name,
        current_version: info.version,
        metadata: info.metadata,
        created_at: rfc3339(info.created_ms),
        updated_at: rfc3339(info.updated_ms),
    }
}
