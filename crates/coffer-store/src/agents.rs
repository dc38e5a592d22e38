//! Agents: who may own sandboxes.

use coffer_core::{AgentId, Millis, ProjectId};
use sqlx::Row;
use sqlx::any::AnyRow;

use crate::columns::{id, storable};
use crate::error::{Doing, NameError};
use crate::{ProjectScope, Store, StoreError, now_ms};

const READ: &str = "read agents";

/// An agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRow {
    pub id: AgentId,
    pub project: ProjectId,
    pub name: String,
    pub created_ms: Millis,
}

impl Store {
    /// Makes an agent; of those that were not removed none may have the name.
    pub async fn create_agent(&self, scope: &ProjectScope, name: &str) -> Result<AgentRow, NameError> {
        const DOING: &str = "create an agent";
        let agent = AgentRow {
            id: AgentId::generate(),
            project: scope.project(),
            name: storable(name),
            created_ms: now_ms(),
        };
        let insert = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                let inserted = sqlx::query(
                    "INSERT INTO agents (id, project_id, name, created_ms) VALUES ($1, $2, $3, $4)
                     ON CONFLICT DO NOTHING",
                )
                .bind(agent.id.to_string())
                .bind(agent.project.to_string())
                .bind(agent.name.clone())
                .bind(agent.created_ms)
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
        let row = sqlx::query(
            "SELECT id, project_id, name, created_ms FROM agents
             WHERE id = $1 AND project_id = $2 AND ($3 IS NULL OR id = $3) AND removed_ms IS NULL",
        )
        .bind(agent.to_string())
        .bind(scope.project().to_string())
        .bind(scope.agent().map(|agent| agent.to_string()))
        .fetch_optional(self.database().readers())
        .await
        .doing(READ)?;
        row.as_ref().map(read).transpose()
    }

    /// Agents after `after`, oldest first; an agent sees itself.
    pub async fn agents(
        &self,
        scope: &ProjectScope,
        after: Option<AgentId>,
        limit: u32,
    ) -> Result<Vec<AgentRow>, StoreError> {
        let rows = sqlx::query(
            "SELECT id, project_id, name, created_ms FROM agents
             WHERE project_id = $1 AND ($2 IS NULL OR id = $2) AND ($3 IS NULL OR id > $3)
                 AND removed_ms IS NULL
             ORDER BY id LIMIT $4",
        )
        .bind(scope.project().to_string())
        .bind(scope.agent().map(|agent| agent.to_string()))
        .bind(after.map(|after| after.to_string()))
        .bind(i64::from(limit))
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter().map(read).collect()
    }

    /// Removes an agent and revokes its keys. Its sandboxes stay, and are the project's alone from then on.
    /// Says whether there was such an agent.
    pub async fn remove_agent(&self, scope: &ProjectScope, agent: AgentId) -> Result<bool, StoreError> {
        const DOING: &str = "remove an agent";
        let project = scope.project().to_string();
        let remove = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                let removed = sqlx::query(
                    "UPDATE agents SET removed_ms = $1
                     WHERE id = $2 AND project_id = $3 AND removed_ms IS NULL",
                )
                .bind(now)
                .bind(agent.to_string())
                .bind(project)
                .execute(&mut *connection)
                .await
                .doing(DOING)?;
                if removed.rows_affected() == 0 {
                    return Ok(false);
                }
                sqlx::query("UPDATE api_keys SET revoked_ms = $1 WHERE agent_id = $2 AND revoked_ms IS NULL")
                    .bind(now)
                    .bind(agent.to_string())
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

fn read(row: &AnyRow) -> Result<AgentRow, StoreError> {
    Ok(AgentRow {
        id: id(row, "id")?,
        project: id(row, "project_id")?,
        name: row.try_get("name").doing(READ)?,
        created_ms: row.try_get("created_ms").doing(READ)?,
    })
}
