//! People of a project: their names, and the names of everybody whom records mention.

use std::collections::HashMap;

use coffer_core::{KeyId, KeyKind, Millis, PersonId, Role};
use sqlx::AnyConnection;
use sqlx::any::AnyRow;

use crate::columns::{id, number, optional_id, storable, text};
use crate::error::{Doing, NameError};
use crate::projects::lock_project;
use crate::{Actor, Principal, ProjectScope, Store, StoreError, now_ms};

/// Names that a list of actors has at most.
const MOST_NAMES: i64 = 2000;

/// A person of a project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersonRow {
    pub id: PersonId,
    pub name: String,
    pub role: Role,
    pub created_ms: Millis,
}

/// The name of an actor that records mention.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActorName {
    pub actor: Actor,
    pub name: String,
}

impl Store {
    /// The people of a project who have not left, by name.
    pub async fn people(&self, scope: &ProjectScope) -> Result<Vec<PersonRow>, StoreError> {
        let rows = sqlx::query(
            "SELECT id, name, role, created_ms FROM people WHERE project_id = $1 AND removed_ms IS NULL
             ORDER BY folded, id",
        )
        .bind(scope.project())
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter().map(person).collect()
    }

    /// A person, also one who has left.
    pub async fn person(
        &self,
        scope: &ProjectScope,
        person_id: PersonId,
    ) -> Result<Option<PersonRow>, StoreError> {
        let row =
            sqlx::query("SELECT id, name, role, created_ms FROM people WHERE id = $1 AND project_id = $2")
                .bind(person_id)
                .bind(scope.project())
                .fetch_optional(self.database().readers())
                .await
                .doing(READ)?;
        row.as_ref().map(person).transpose()
    }

    /// Adds a person. `Taken` if another one has the name.
    pub async fn add_person(
        &self,
        scope: &ProjectScope,
        name: &str,
        role: Role,
    ) -> Result<PersonId, NameError> {
        let (project, name) = (scope.project(), storable(name));
        let add = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                lock_project(connection, project, CHANGE).await?;
                insert(connection, &ProjectScope::new(project, None), &name, role).await
            })
        });
        add.await
    }

    /// Gives a person another name.
    pub async fn rename_person(
        &self,
        scope: &ProjectScope,
        person: PersonId,
        name: &str,
    ) -> Result<(), NameError> {
        let (project, name) = (scope.project(), storable(name));
        let rename = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                lock_project(connection, project, CHANGE).await?;
                rename(connection, &ProjectScope::new(project, None), person, &name).await
            })
        });
        rename.await
    }

    /// Ends a person's sessions, links and keys. The name stays on record. Returns whether the project had this person.
    pub async fn remove_person(&self, scope: &ProjectScope, person: PersonId) -> Result<bool, StoreError> {
        let project = scope.project();
        let remove = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                let removed = sqlx::query(
                    "UPDATE people SET removed_ms = $1 WHERE id = $2 AND project_id = $3 AND removed_ms IS NULL",
                )
                .bind(now)
                .bind(person)
                .bind(project)
                .execute(&mut *connection)
                .await
                .doing(CHANGE)?;
                if removed.rows_affected() == 0 {
                    return Ok(None);
                }
                let rows = sqlx::query(
                    "UPDATE api_keys SET revoked_ms = $1 WHERE person_id = $2 AND project_id = $3 AND revoked_ms IS NULL
                     RETURNING id",
                )
                .bind(now)
                .bind(person)
                .bind(project)
                .fetch_all(connection)
                .await
                .doing(CHANGE)?;
                rows.iter().map(|row| id(row, "id")).collect::<Result<Vec<KeyId>, _>>().map(Some)
            })
        });
        let ended = remove.await?;
        for key in ended.iter().flatten() {
            self.inner.keys.forget(*key);
        }
        Ok(ended.is_some())
    }

    /// Gives the holder of a person's key a name: renames the person, or records a new one for the key and what it began.
    /// Whoever came by a link of the server may also be a person who exists: that link is for whoever runs the server.
    pub async fn name_holder(&self, principal: &Principal, name: &str) -> Result<PersonId, NameError> {
        let (principal, name) = (*principal, storable(name));
        let scope = principal.scope;
        let named = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                lock_project(connection, scope.project(), CHANGE).await?;
                if principal.kind != KeyKind::Person {
                    return Err(NameError::NotFound);
                }
                let root = match principal.actor {
                    Actor::Person(person) => {
                        rename(connection, &scope, person, &name).await?;
                        return Ok((person, Vec::new()));
                    }
                    Actor::Key(root) => root,
                    Actor::Agent(_) | Actor::Operator(_) => return Err(NameError::NotFound),
                };
                // A session without a key came by a link of the server.
                let by_server = root == principal.key && is_session(connection, root).await?;
                let known = by_name(connection, &scope, &name).await?;
                let person = match known {
                    Some(person) if by_server && principal.role == Role::Admin => person,
                    Some(_) => return Err(NameError::Taken),
                    None => insert(connection, &scope, &name, principal.role).await?,
                };
                let rows = sqlx::query(
                    "UPDATE api_keys SET person_id = $1
                     WHERE project_id = $2 AND person_id IS NULL
                         AND (id = $3 OR id IN (SELECT key_id FROM sessions WHERE root_id = $3))
                     RETURNING id",
                )
                .bind(person)
                .bind(scope.project())
                .bind(root)
                .fetch_all(connection)
                .await
                .doing(CHANGE)?;
                let named = rows.iter().map(|row| id(row, "id")).collect::<Result<Vec<KeyId>, _>>()?;
                Ok((person, named))
            })
        });
        let (person, keys) = named.await?;
        for key in keys {
            self.inner.keys.forget(key);
        }
        Ok(person)
    }

    /// The persons who hold keys, by how records name each of the two: a person who got a name is the same one as before.
    pub async fn persons_of_keys(&self, scope: &ProjectScope) -> Result<HashMap<String, String>, StoreError> {
        let rows =
            sqlx::query("SELECT id, person_id FROM api_keys WHERE project_id = $1 AND person_id IS NOT NULL")
                .bind(scope.project())
                .fetch_all(self.database().readers())
                .await
                .doing(READ)?;
        let pair = |row: &AnyRow| {
            let (key, person) = (Actor::Key(id(row, "id")?), Actor::Person(id(row, "person_id")?));
            Ok((key.to_string(), person.to_string()))
        };
        rows.iter().map(pair).collect()
    }

    /// The names of people and keys that records of the project mention, also of those who have left; the newest if there
    /// are many.
    pub async fn actor_names(&self, scope: &ProjectScope) -> Result<Vec<ActorName>, StoreError> {
        let rows = sqlx::query(
            "SELECT id AS person_id, NULL AS key_id, name, created_ms FROM people WHERE project_id = $1
             UNION ALL
             SELECT NULL, k.id, COALESCE(p.name, r.name, k.name), k.created_ms
             FROM api_keys AS k LEFT JOIN people AS p ON p.id = k.person_id LEFT JOIN sessions AS s ON s.key_id = k.id
                 LEFT JOIN api_keys AS r ON r.id = s.root_id
             WHERE k.project_id = $1 AND k.agent_id IS NULL AND k.prefix NOT LIKE 'link_%'
             ORDER BY created_ms DESC LIMIT $2",
        )
        .bind(scope.project())
        .bind(MOST_NAMES)
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        let named = |row: &AnyRow| {
            let actor = match optional_id(row, "person_id")? {
                Some(person) => Actor::Person(person),
                None => Actor::Key(id(row, "key_id")?),
            };
            Ok(ActorName { actor, name: text(row, "name")? })
        };
        rows.iter().map(named).collect()
    }
}

const READ: &str = "read people";
const CHANGE: &str = "change people";

fn person(row: &AnyRow) -> Result<PersonRow, StoreError> {
    Ok(PersonRow {
        id: id(row, "id")?,
        name: text(row, "name")?,
        role: crate::columns::name(row, "role", |text| text.parse().ok())?,
        created_ms: number(row, "created_ms")?,
    })
}

fn folded(name: &str) -> String {
    name.trim().to_lowercase()
}

async fn insert(
    connection: &mut AnyConnection,
    scope: &ProjectScope,
    name: &str,
    role: Role,
) -> Result<PersonId, NameError> {
    if by_name(connection, scope, name).await?.is_some() {
        return Err(NameError::Taken);
    }
    let person = PersonId::generate();
    sqlx::query(
        "INSERT INTO people (id, project_id, name, folded, role, created_ms) VALUES ($1, $2, $3, $4, $5, $6)",
    )
    .bind(person)
    .bind(scope.project())
    .bind(name.trim())
    .bind(folded(name))
    .bind(role.as_str())
    .bind(now_ms())
    .execute(connection)
    .await
    .doing(CHANGE)?;
    Ok(person)
}

async fn rename(
    connection: &mut AnyConnection,
    scope: &ProjectScope,
    person: PersonId,
    name: &str,
) -> Result<(), NameError> {
    if by_name(connection, scope, name).await?.is_some_and(|other| other != person) {
        return Err(NameError::Taken);
    }
    let done = sqlx::query(
        "UPDATE people SET name = $1, folded = $2 WHERE id = $3 AND project_id = $4 AND removed_ms IS NULL",
    )
    .bind(name.trim())
    .bind(folded(name))
    .bind(person)
    .bind(scope.project())
    .execute(connection)
    .await
    .doing(CHANGE)?;
    if done.rows_affected() == 0 { Err(NameError::NotFound) } else { Ok(()) }
}

async fn by_name(
    connection: &mut AnyConnection,
    scope: &ProjectScope,
    name: &str,
) -> Result<Option<PersonId>, StoreError> {
    let row =
        sqlx::query("SELECT id FROM people WHERE project_id = $1 AND folded = $2 AND removed_ms IS NULL")
            .bind(scope.project())
            .bind(folded(name))
            .fetch_optional(connection)
            .await
            .doing(READ)?;
    row.as_ref().map(|row| id(row, "id")).transpose()
}

async fn is_session(connection: &mut AnyConnection, key: KeyId) -> Result<bool, StoreError> {
    let row = sqlx::query("SELECT 1 AS one FROM sessions WHERE key_id = $1")
        .bind(key)
        .fetch_optional(connection)
        .await
        .doing(READ)?;
    Ok(row.is_some())
}
