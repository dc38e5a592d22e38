//! Lineages of sandboxes.

use std::collections::{HashMap, HashSet, VecDeque};

use coffer_core::{Millis, SandboxId, StateName};
use sqlx::Row;
use sqlx::any::AnyRow;

use crate::columns::{id, optional_id, state_name, storable};
use crate::error::Doing;
use crate::{Origin, Scope, Store, StoreError};

const READ: &str = "read a lineage";

/// Longer chains are cut at the old end.
const MOST_ANCESTORS: i64 = 1000;

/// A sandbox with its ancestors and all their descendants, as far as recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lineage {
    /// Parents before their children, children by creation.
    pub relatives: Vec<Relative>,
    /// Whether there are more.
    pub truncated: bool,
}

/// One sandbox of a lineage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relative {
    pub id: SandboxId,
    pub state: StateName,
    pub template: String,
    pub origin: Option<Origin>,
    pub created_ms: Millis,
    /// Steps from the oldest recorded ancestor.
    pub depth: u32,
}

impl Store {
    /// The oldest ancestor of a sandbox in scope, and everything that came from it, at most `most`; `None` if
    /// the scope does not see the sandbox.
    pub async fn lineage(
        &self,
        scope: &impl Scope,
        sandbox: SandboxId,
        most: u32,
    ) -> Result<Option<Lineage>, StoreError> {
        let Some(root) = self.root_of(scope, sandbox).await? else { return Ok(None) };
        let rows = sqlx::query(
            "WITH RECURSIVE family (id, depth) AS (
                 SELECT id, CAST(0 AS BIGINT) FROM sandboxes WHERE id = $1
                 UNION ALL
                 SELECT s.id, f.depth + 1 FROM sandboxes AS s JOIN family AS f ON s.parent_id = f.id
                 WHERE ($2 IS NULL OR s.project_id = $2 OR s.agent_id = $2) AND f.depth < $3
             )
             SELECT s.id, s.state, s.template, s.parent_id, s.snapshot_id, s.fork_position, s.created_ms, f.depth
             FROM family AS f JOIN sandboxes AS s ON s.id = f.id ORDER BY f.depth, s.id LIMIT $4",
        )
        .bind(root)
        .bind(scope.owner())
        .bind(MOST_ANCESTORS)
        .bind(i64::from(most) + 1)
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        let mut relatives = rows.iter().map(relative).collect::<Result<Vec<_>, _>>()?;
        let truncated = relatives.len() > most as usize;
        relatives.truncate(most as usize);
        Ok(Some(Lineage { relatives: families(relatives), truncated }))
    }

    async fn root_of(&self, scope: &impl Scope, sandbox: SandboxId) -> Result<Option<SandboxId>, StoreError> {
        let row = sqlx::query(
            "WITH RECURSIVE line (id, parent_id, depth) AS (
                 SELECT id, parent_id, CAST(0 AS BIGINT) FROM sandboxes
                 WHERE id = $1 AND ($2 IS NULL OR project_id = $2 OR agent_id = $2)
                 UNION ALL
                 SELECT s.id, s.parent_id, l.depth + 1 FROM sandboxes AS s JOIN line AS l ON s.id = l.parent_id
                 WHERE ($2 IS NULL OR s.project_id = $2 OR s.agent_id = $2) AND l.depth < $3
             )
             SELECT id FROM line ORDER BY depth DESC LIMIT 1",
        )
        .bind(sandbox)
        .bind(scope.owner())
        .bind(MOST_ANCESTORS)
        .fetch_optional(self.database().readers())
        .await
        .doing(READ)?;
        row.map(|row| id(&row, "id")).transpose()
    }
}

fn relative(row: &AnyRow) -> Result<Relative, StoreError> {
    let (parent, snapshot) = (optional_id(row, "parent_id")?, optional_id(row, "snapshot_id")?);
    let fork_position = row.try_get("fork_position").doing(READ)?;
    let depth: i64 = row.try_get("depth").doing(READ)?;
    Ok(Relative {
        id: id(row, "id")?,
        state: state_name(&row.try_get::<String, _>("state").doing(READ)?)?,
        template: storable(&row.try_get::<String, _>("template").doing(READ)?),
        origin: parent.zip(snapshot).map(|(parent, snapshot)| Origin { parent, snapshot, fork_position }),
        created_ms: row.try_get("created_ms").doing(READ)?,
        depth: u32::try_from(depth).unwrap_or(u32::MAX),
    })
}

/// Orders each family: a parent, then its first child with its descendants, then the next child.
fn families(relatives: Vec<Relative>) -> Vec<Relative> {
    let known: HashSet<SandboxId> = relatives.iter().map(|relative| relative.id).collect();
    let mut children: HashMap<Option<SandboxId>, VecDeque<Relative>> = HashMap::new();
    for relative in relatives {
        let parent = relative.origin.map(|origin| origin.parent).filter(|parent| known.contains(parent));
        children.entry(parent).or_default().push_back(relative);
    }
    let mut ordered = Vec::with_capacity(known.len());
    // A stack of remaining siblings, so that a long line needs no deep recursion.
    let mut waiting: Vec<VecDeque<Relative>> = children.remove(&None).into_iter().collect();
    while let Some(next) = waiting.last_mut() {
        match next.pop_front() {
            None => drop(waiting.pop()),
            Some(relative) => {
                let own = children.remove(&Some(relative.id));
                ordered.push(relative);
                waiting.extend(own);
            }
        }
    }
    ordered
}
