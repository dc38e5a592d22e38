//! People of the project: their names, and links that sign them in.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::clock::rfc3339;
use coffer_core::{Code, KeyKind, PersonId, Role};
use coffer_store::PersonRow;
use http::StatusCode;

use crate::app::App;
use crate::auth::{Admin, Caller, Id, Read};
use crate::body::{Checked, MaybeChecked};
use crate::context::Context;
use crate::error::ApiError;
use crate::names::check_name;
use coffer_api_types::people::{ActorName, NewInvite, NewPerson, Person, PersonPatch};
use coffer_api_types::session::SignInLink;
use coffer_api_types::{ErrorShape, Page};

const MOST_PEOPLE: usize = 1000;
const USUAL_INVITE_S: i64 = 24 * 3600;
const LONGEST_INVITE_S: i64 = 7 * 24 * 3600;

fn shown(person: PersonRow) -> Person {
    Person {
        id: person.id.to_string(),
        name: person.name,
        role: person.role,
        created_at: rfc3339(person.created_ms),
    }
}

/// A link signs in as a person, whose approvals count.
fn by_person<N>(caller: &Caller<N>) -> Result<(), ApiError> {
    if caller.kind == KeyKind::Person {
        return Ok(());
    }
    Err(ApiError::of(Code::Forbidden, "only a person can change people")
        .hint("sign in as an admin of the project"))
}

/// The people of the project, by name.
#[utoipa::path(get, path = "/api/v1/people", tag = "keys", responses((status = 200, body = Page<Person>)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
) -> Result<Json<Page<Person>>, ApiError> {
    let people = app.store.people(&caller.scope).await.map_err(ApiError::store)?;
    Ok(Json(Page::new(people.into_iter().map(shown).collect(), None)))
}

/// Adds a person.
#[utoipa::path(
    post, path = "/api/v1/people", tag = "keys", request_body = NewPerson,
    responses((status = 201, body = Person), (status = 409, body = ErrorShape, description = "the name is taken"))
)]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    context: Context,
    Checked(NewPerson { name, role }): Checked<NewPerson>,
) -> Result<(StatusCode, Json<Person>), ApiError> {
    by_person(&caller)?;
    check_name(&name)?;
    if app.store.people(&caller.scope).await.map_err(ApiError::store)?.len() >= MOST_PEOPLE {
        return Err(ApiError::conflict(format!("a project has at most {MOST_PEOPLE} people")));
    }
    let added = app.store.add_person(&caller.scope, &name, role.unwrap_or(Role::Write)).await;
    let id = added.map_err(|error| ApiError::name(error, "person", &name))?;
    context.made(id);
    Ok((StatusCode::CREATED, Json(found(&app, &caller, id).await?)))
}

/// Renames a person.
#[utoipa::path(
    patch, path = "/api/v1/people/{person}", tag = "keys", params(("person" = String, Path)),
    request_body = PersonPatch,
    responses((status = 200, body = Person), (status = 409, body = ErrorShape, description = "the name is taken"))
)]
pub(super) async fn rename(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    Id(person): Id<PersonId>,
    Checked(PersonPatch { name }): Checked<PersonPatch>,
) -> Result<Json<Person>, ApiError> {
    by_person(&caller)?;
    check_name(&name)?;
    let renamed = app.store.rename_person(&caller.scope, person, &name).await;
    renamed.map_err(|error| ApiError::name(error, "person", &name))?;
    found(&app, &caller, person).await.map(Json)
}

/// Removes a person: ends their sessions, links and keys. Records keep the name.
#[utoipa::path(
    delete, path = "/api/v1/people/{person}", tag = "keys", params(("person" = String, Path)),
    responses((status = 204), (status = 409, body = ErrorShape, description = "it is the caller"))
)]
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    Id(person): Id<PersonId>,
) -> Result<StatusCode, ApiError> {
    by_person(&caller)?;
    if caller.whom().person() == Some(person) {
        return Err(
            ApiError::conflict("people cannot remove themselves").hint("ask another admin of the project")
        );
    }
    let removed = app.store.remove_person(&caller.scope, person).await.map_err(ApiError::store)?;
    if removed { Ok(StatusCode::NO_CONTENT) } else { Err(ApiError::nothing("person", person)) }
}

/// Creates a one-time link that signs this person in.
#[utoipa::path(
    post, path = "/api/v1/people/{person}/links", tag = "keys", params(("person" = String, Path)),
    request_body = Option<NewInvite>, responses((status = 201, body = SignInLink))
)]
pub(super) async fn invite(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    context: Context,
    Id(person): Id<PersonId>,
    MaybeChecked(NewInvite { expires_in_s }): MaybeChecked<NewInvite>,
) -> Result<(StatusCode, Json<SignInLink>), ApiError> {
    by_person(&caller)?;
    let seconds = expires_in_s.unwrap_or(USUAL_INVITE_S);
    if !(60..=LONGEST_INVITE_S).contains(&seconds) {
        return Err(ApiError::invalid("expires_in_s", format!("must be between 60 and {LONGEST_INVITE_S}")));
    }
    let made = app.store.create_link_of_person(&caller.scope, person, seconds * 1000).await;
    let (link, expires_ms) =
        made.map_err(ApiError::store)?.ok_or_else(|| ApiError::nothing("person", person))?;
    context.made(person);
    let shown = SignInLink { token: link.reveal().to_string(), expires_at: rfc3339(expires_ms) };
    Ok((StatusCode::CREATED, Json(shown)))
}

/// Names of the people and keys that events, comments and the audit log of the project mention, of former ones too.
#[utoipa::path(get, path = "/api/v1/actors", tag = "keys", responses((status = 200, body = Page<ActorName>)))]
pub(super) async fn actors(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
) -> Result<Json<Page<ActorName>>, ApiError> {
    let names = app.store.actor_names(&caller.scope).await.map_err(ApiError::store)?;
    let shown = names.into_iter().map(|named| ActorName { actor: named.actor.to_string(), name: named.name });
    Ok(Json(Page::new(shown.collect(), None)))
}

async fn found<N>(app: &App, caller: &Caller<N>, id: PersonId) -> Result<Person, ApiError> {
    let person = app.store.person(&caller.scope, id).await.map_err(ApiError::store)?;
    person.map(shown).ok_or_else(|| ApiError::nothing("person", id))
}
