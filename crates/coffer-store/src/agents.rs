//! Agents: owners of sandboxes, and their definitions.

use coffer_core::agent::AgentDefinition;
use coffer_core::event::{AgentDefined, Event};
use coffer_core::{AgentId, Millis, ProjectId, SandboxId};
use sqlx::Row;
use sqlx::any::AnyRow;

use crate::columns::{id, storable};
use crate::error::{Doing, NameError};
use crate::select::Select;
use crate::{Operator, ProjectScope, Store, StoreError, events, now_ms};

const READ: &str = "read agents";

/// An agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRow {
    pub id: AgentId,
    pub project: ProjectId,
    pub name: String,
    /// Its definition; `None` if it only owns sandboxes.
    pub definition: Option<AgentDefinition>,
    /// Whether its definition is sealed under a missing key.
    pub sealed: bool,
    /// Raised by every change of the definition.
    pub version: i64,
    pub created_ms: Millis,
}

/// A new agent.
#[derive(Debug, Clone)]
pub struct NewAgent {
    pub name: String,
    pub definition: Option<AgentDefinition>,
}

impl From<&str> for NewAgent {
    /// An agent without a definition, which only acts by its keys.
    fn from(name: &str) -> Self {
        Self { name: name.to_string(), definition: None }
    }
}

/// Why an agent was not changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AgentError {
    #[error("agent not found")]
    NotFound,
    #[error("the agent has changed since it was read")]
    Changed,
    #[error(transparent)]
    Store(#[from] StoreError),
}

const COLUMNS: &str = "id, project_id, name, definition_secret, version, created_ms";

fn purpose(agent: AgentId) -> String {
    format!("agents/{agent}/definition_secret")
}

impl Store {
    /// Creates an agent; its name must be unique among those that were not deleted.
    pub async fn create_agent(
        &self,
        scope: &ProjectScope,
        new: impl Into<NewAgent>,
    ) -> Result<AgentRow, NameError> {
        const DOING: &str = "create an agent";
        let NewAgent { name, definition } = new.into();
        let agent = AgentRow {
            id: AgentId::generate(),
            project: scope.project(),
            name: storable(&name),
            definition,
            sealed: false,
            version: 1,
            created_ms: now_ms(),
        };
        let sealed = self.seal_definition(&agent).await?;
        let insert = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                let inserted = sqlx::query(
                    "INSERT INTO agents (id, project_id, name, created_ms, definition_secret)
                     VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING",
                )
                .bind(agent.id)
                .bind(agent.project)
                .bind(agent.name.clone())
                .bind(agent.created_ms)
                .bind(sealed)
                .execute(connection)
                .await
                .doing(DOING)?;
                if inserted.rows_affected() == 0 { Err(NameError::Taken) } else { Ok(agent) }
            })
        });
        insert.await
    }

    /// The agent of that id, if the scope sees it.
    pub async fn agent(&self, scope: &ProjectScope, agent: AgentId) -> Result<Option<AgentRow>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM agents
             WHERE id = $1 AND project_id = $2 AND ($3 IS NULL OR id = $3) AND removed_ms IS NULL"
        );
        let row = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(agent)
            .bind(scope.project())
            .bind(scope.agent())
            .fetch_optional(self.database().readers())
            .await
            .doing(READ)?;
        row.as_ref().map(|row| self.read_agent(row)).transpose()
    }

    /// The agent of that name, if the scope sees it.
    pub async fn agent_named(
        &self,
        scope: &ProjectScope,
        name: &str,
    ) -> Result<Option<AgentRow>, StoreError> {
        let found = Select::new(COLUMNS, "agents")
            .filter("project_id = ?", scope.project())
            .filter_if("id = ?", scope.agent())
            .filter("name = ?", storable(name))
            .filter_by("removed_ms IS NULL")
            .oldest_first("id", None::<AgentId>, 1)
            .all(self.database(), READ, |row| self.read_agent(row))
            .await?;
        Ok(found.into_iter().next())
    }

    /// The agents that work or worked in live sandboxes: their own values must be redacted there.
    pub async fn agents_in_sandboxes(&self, _: &Operator) -> Result<Vec<(SandboxId, AgentRow)>, StoreError> {
        // SQLite keeps the order of a CROSS JOIN: the few live sandboxes first, not every attempt.
        let rows = sqlx::query(
            "SELECT w.sandbox_id AS sandbox_id, a.id AS id, a.project_id AS project_id, a.name AS name,
                 a.definition_secret AS definition_secret, a.version AS version, a.created_ms AS created_ms
             FROM (SELECT s.id AS sandbox_id, t.agent_id AS agent_id
                   FROM sandboxes AS s CROSS JOIN task_attempts AS t
                   WHERE t.sandbox_id = s.id AND s.state IN ('creating', 'running', 'paused')
                   UNION SELECT s.id, e.agent_id
                   FROM sandboxes AS s CROSS JOIN competition_entries AS e
                   WHERE e.sandbox_id = s.id AND s.state IN ('creating', 'running', 'paused')) AS w
                 JOIN agents AS a ON a.id = w.agent_id
             WHERE a.definition_secret IS NOT NULL",
        )
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter().map(|row| Ok((id(row, "sandbox_id")?, self.read_agent(row)?))).collect()
    }

    /// Replaces an agent's definition, if its version matches.
    pub async fn define_agent(
        &self,
        scope: &ProjectScope,
        agent: AgentId,
        version: Option<i64>,
        definition: AgentDefinition,
    ) -> Result<AgentRow, AgentError> {
        const DOING: &str = "define an agent";
        let before = self.agent(scope, agent).await?.ok_or(AgentError::NotFound)?;
        let defined = AgentRow { definition: Some(definition), ..before };
        let sealed = self.seal_definition(&defined).await?;
        let project = scope.project();
        let define = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                let row = sqlx::query(
                    "UPDATE agents SET definition_secret = $1, version = version + 1
                     WHERE id = $2 AND project_id = $3 AND removed_ms IS NULL AND ($4 IS NULL OR version = $4)
                     RETURNING version",
                )
                .bind(sealed)
                .bind(agent)
                .bind(project)
                .bind(version)
                .fetch_optional(&mut *connection)
                .await
                .doing(DOING)?;
                let version: i64 = row.ok_or(AgentError::Changed)?.try_get("version").doing(DOING)?;
                let preset = defined.definition.as_ref().map(|definition| definition.preset);
                let event = Event::AgentDefined(AgentDefined { version, preset });
                events::record(connection, project, agent, event, now_ms()).await?;
                Ok(AgentRow { version, sealed: false, ..defined })
            })
        });
        define.await
    }

    async fn seal_definition(&self, agent: &AgentRow) -> Result<Option<String>, StoreError> {
        let Some(definition) = &agent.definition else { return Ok(None) };
        self.vault().ready(self.database(), agent.project).await?;
        self.vault().seal(agent.project, &purpose(agent.id), &crate::columns::json(definition)).map(Some)
    }

    fn read_agent(&self, row: &AnyRow) -> Result<AgentRow, StoreError> {
        let (agent, project): (AgentId, ProjectId) = (id(row, "id")?, id(row, "project_id")?);
        let sealed: Option<String> = row.try_get("definition_secret").doing(READ)?;
        let opened = sealed.map(|text| self.vault().open_text(project, &purpose(agent), &text));
        let (definition, sealed) = match opened {
            None => (None, false),
            Some(Err(_)) => (None, true),
            Some(Ok(text)) => (Some(text), false),
        };
        let unreadable =
            |error: serde_json::Error| StoreError::Unreadable { what: "agent", why: error.to_string() };
        Ok(AgentRow {
            id: agent,
            project,
            name: row.try_get("name").doing(READ)?,
            definition: definition.map(|text| serde_json::from_str(&text).map_err(unreadable)).transpose()?,
            sealed,
            version: row.try_get("version").doing(READ)?,
            created_ms: row.try_get("created_ms").doing(READ)?,
        })
    }

    /// Agents after `after`, oldest first; an agent sees itself.
    pub async fn agents(
        &self,
        scope: &ProjectScope,
        after: Option<AgentId>,
        limit: u32,
    ) -> Result<Vec<AgentRow>, StoreError> {
        Select::new(COLUMNS, "agents")
            .filter("project_id = ?", scope.project())
            .filter_if("id = ?", scope.agent())
            .filter_by("removed_ms IS NULL")
            .oldest_first("id", after, limit)
            .all(self.database(), READ, |row| self.read_agent(row))
            .await
    }

    /// Deletes an agent and revokes its keys. Its sandboxes stay and belong to the project. Returns whether
    /// it existed.
    pub async fn remove_agent(&self, scope: &ProjectScope, agent: AgentId) -> Result<bool, StoreError> {
        const DOING: &str = "remove an agent";
        let project = scope.project();
        let remove = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                let removed = sqlx::query(
                    "UPDATE agents SET removed_ms = $1
                     WHERE id = $2 AND project_id = $3 AND removed_ms IS NULL",
                )
                .bind(now)
                .bind(agent)
                .bind(project)
                .execute(&mut *connection)
                .await
                .doing(DOING)?;
                if removed.rows_affected() == 0 {
                    return Ok(false);
                }
                sqlx::query("UPDATE api_keys SET revoked_ms = $1 WHERE agent_id = $2 AND revoked_ms IS NULL")
                    .bind(now)
                    .bind(agent)
                    .execute(connection)
                    .await
                    .doing(DOING)?;
                Ok(true)
            })
        });
        let removed = remove.await?;
        self.inner.keys.forget_agent(agent);
        Ok(removed)
    }
}
