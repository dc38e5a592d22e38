//! Records, finds and changes sandboxes.

mod change;
mod insert;
mod list;

use coffer_core::SandboxId;

use crate::columns::{id, sandbox_columns, sandbox_row, transition};
use crate::error::Doing;
use crate::{Operator, SandboxRow, Scope, Store, StoreError, Transition};

const READ: &str = "read a sandbox";

impl Store {
    /// The sandbox, if it exists and the scope sees it.
    pub async fn sandbox(
        &self,
        scope: &impl Scope,
        sandbox: SandboxId,
    ) -> Result<Option<SandboxRow>, StoreError> {
        let row = sqlx::query(concat!(
            "SELECT ",
            sandbox_columns!(),
            " FROM sandboxes WHERE id = $1 AND ($2 IS NULL OR project_id = $2 OR agent_id = $2)"
        ))
        .bind(sandbox)
        .bind(scope.owner())
        .fetch_optional(self.database().readers())
        .await
        .doing(READ)?;
        row.as_ref().map(|row| sandbox_row(row, self.vault())).transpose()
    }

    /// Every sandbox for which the engine of this installation may have resources, of all projects, oldest
    /// first.
    pub async fn live_sandboxes(&self, _: &Operator) -> Result<Vec<SandboxRow>, StoreError> {
        let rows = sqlx::query(concat!(
            "SELECT ",
            sandbox_columns!(),
            " FROM sandboxes WHERE state IN ('creating', 'running', 'paused')
                 AND ($1 IS NULL OR installation = $1) ORDER BY id"
        ))
        .bind(self.installation())
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter().map(|row| sandbox_row(row, self.vault())).collect()
    }

    /// The ids of [`live_sandboxes`](Self::live_sandboxes), which are cheap to query often.
    pub async fn live_ids(&self, _: &Operator) -> Result<Vec<SandboxId>, StoreError> {
        let rows = sqlx::query(
            "SELECT id FROM sandboxes WHERE state IN ('creating', 'running', 'paused')
                 AND ($1 IS NULL OR installation = $1)",
        )
        .bind(self.installation())
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter().map(|row| id(row, "id")).collect()
    }

    /// The state changes of a sandbox, oldest first; empty if the scope has no such sandbox.
    pub async fn transitions(
        &self,
        scope: &impl Scope,
        sandbox: SandboxId,
    ) -> Result<Vec<Transition>, StoreError> {
        let rows = sqlx::query(
            "SELECT t.position, t.from_state, t.state_data, t.reason, t.at_ms
             FROM sandbox_transitions AS t JOIN sandboxes AS s ON s.id = t.sandbox_id
             WHERE t.sandbox_id = $1 AND ($2 IS NULL OR s.project_id = $2 OR s.agent_id = $2)
             ORDER BY t.position",
        )
        .bind(sandbox)
        .bind(scope.owner())
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter().map(transition).collect()
    }
}
