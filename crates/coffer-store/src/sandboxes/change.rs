//! Changes a sandbox: its state by compare-and-set, its deadline and its network.

use coffer_core::event::SandboxMoved;
use coffer_core::network::NetworkSettings;
use coffer_core::{Millis, OnTimeout, ProjectId, SandboxId, SandboxState, StateName};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};

use super::READ;
use crate::columns::{self, sandbox_columns, sandbox_row, state_name, storable};
use crate::database::Durability;
use crate::error::Doing;
use crate::{
    Asking, ChangeError, Changes, Deadline, Operator, Quotas, SandboxRow, Scope, Store, StoreError, events,
    now_ms, quotas,
};

/// Longest stored reason: reasons may contain text of a sandbox.
const LONGEST_REASON: usize = 2000;

const CHANGE: &str = "change a sandbox";

impl Store {
    /// Changes the state from `expected` to `new_state`, with its history and event, or fails with
    /// [`ChangeError::Raced`] if it is in another state.
    pub async fn transition(
        &self,
        scope: &impl Scope,
        sandbox: SandboxId,
        expected: StateName,
        new_state: SandboxState,
        reason: &str,
        changes: Changes,
    ) -> Result<SandboxRow, ChangeError> {
        let owner = scope.owner();
        let reason = bounded(reason);
        let vault = self.vault().clone();
        // A crash of the host ends running sandboxes; the create itself has been synced.
        let begins = expected == StateName::Creating && new_state.name() == StateName::Running;
        let durability = if begins { Durability::Cached } else { Durability::Synced };
        // Only a resume makes a live sandbox use more than before.
        let resumes = expected == StateName::Paused && new_state.name() == StateName::Running;
        let defaults = self.default_quotas();
        let transition = self.database().write_to(durability, CHANGE, move |connection| {
            Box::pin(async move {
                let at_ms = now_ms();
                let changed = sqlx::query(concat!(
                    "UPDATE sandboxes SET
                         state = $1, state_data = $2, ended_ms = $3, transitions = transitions + 1,
                         started_ms = COALESCE($4, started_ms), deadline_ms = COALESCE($5, deadline_ms),
                         timeout_s = COALESCE($6, timeout_s), on_timeout = COALESCE($7, on_timeout),
                         auto_resume = COALESCE($8, auto_resume), placement = COALESCE($9, placement),
                         last_used_ms = COALESCE($14, last_used_ms),
                         lease_until_ms = CASE WHEN $1 = 'running' THEN $13 + 1000 * lease_s ELSE lease_until_ms END
                     WHERE id = $10 AND state = $11 AND ($12 IS NULL OR project_id = $12 OR agent_id = $12)
                     RETURNING ",
                    sandbox_columns!()
                ))
                .bind(new_state.name().as_str())
                .bind(columns::json(&new_state))
                .bind((!new_state.is_live()).then_some(at_ms))
                .bind(changes.started_ms)
                .bind(changes.deadline_ms)
                .bind(changes.timeout_s)
                .bind(changes.on_timeout.map(OnTimeout::as_str))
                .bind(changes.auto_resume.map(i64::from))
                .bind(changes.placement.as_ref().map(columns::json))
                .bind(sandbox)
                .bind(expected.as_str())
                .bind(owner.clone())
                .bind(at_ms)
                .bind(changes.last_used_ms)
                .fetch_optional(&mut *connection)
                .await
                .doing(CHANGE)?;
                let Some(changed) = changed else {
                    return Err(why_not(connection, sandbox, owner).await);
                };
                let row = sandbox_row(&changed, &vault)?;
                if expected == StateName::Creating && new_state.name() == StateName::Error {
                    // It never ran: a retry with the same key is a new attempt.
                    sqlx::query("DELETE FROM idempotency_keys WHERE sandbox_id = $1")
                        .bind(sandbox)
                        .execute(&mut *connection)
                        .await
                        .doing(CHANGE)?;
                }
                let position = changed.try_get("transitions").doing(CHANGE)?;
                let step = Step { position, from: Some(expected), to: &new_state, reason: &reason, at_ms };
                let own = record_step(connection, row.project, sandbox, step).await?;
                if resumes {
                    let quotas = own.or(defaults);
                    let asking = Asking::ToResume;
                    let over = quotas::check(connection, row.project, quotas, &row.limits, asking).await?;
                    over.map_or(Ok(()), |over| Err(ChangeError::OverQuota(over)))?;
                }
                Ok(row)
            })
        });
        transition.await
    }

    /// Moves the deadline of a live sandbox and returns the one in force.
    pub async fn set_deadline(
        &self,
        scope: &impl Scope,
        sandbox: SandboxId,
        deadline: Deadline,
    ) -> Result<Millis, ChangeError> {
        self.move_clocks(scope, sandbox, deadline, None).await
    }

    /// Like [`set_deadline`](Self::set_deadline), and remembers the requested timeout.
    pub async fn set_timeout(
        &self,
        scope: &impl Scope,
        sandbox: SandboxId,
        timeout_s: i64,
        deadline: Deadline,
    ) -> Result<Millis, ChangeError> {
        self.move_clocks(scope, sandbox, deadline, Some(timeout_s)).await
    }

    async fn move_clocks(
        &self,
        scope: &impl Scope,
        sandbox: SandboxId,
        deadline: Deadline,
        timeout_s: Option<i64>,
    ) -> Result<Millis, ChangeError> {
        let owner = scope.owner();
        let (deadline_ms, never_earlier) = match deadline {
            Deadline::Exactly(ms) => (ms, 0i64),
            Deadline::NotBefore(ms) => (ms, 1),
        };
        let moved = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let moved = sqlx::query(
                    "UPDATE sandboxes SET
                         deadline_ms = CASE WHEN $2 = 1 AND deadline_ms > $1 THEN deadline_ms ELSE $1 END,
                         timeout_s = COALESCE($3, timeout_s)
                     WHERE id = $4 AND state IN ('creating', 'running', 'paused')
                         AND ($5 IS NULL OR project_id = $5 OR agent_id = $5)
                     RETURNING deadline_ms",
                )
                .bind(deadline_ms)
                .bind(never_earlier)
                .bind(timeout_s)
                .bind(sandbox)
                .bind(owner.clone())
                .fetch_optional(&mut *connection)
                .await
                .doing(CHANGE)?;
                match moved {
                    Some(row) => Ok(row.try_get("deadline_ms").doing(CHANGE)?),
                    None => Err(why_not(connection, sandbox, owner).await),
                }
            })
        });
        moved.await
    }

    /// Records when sandboxes were last used. An earlier time than the recorded one changes nothing.
    pub async fn record_use(&self, _: &Operator, used: Vec<(SandboxId, Millis)>) -> Result<(), StoreError> {
        const DOING: &str = "record when sandboxes were used";
        let recorded = self.database().write_to(Durability::Cached, DOING, move |connection| {
            Box::pin(async move {
                for (sandbox, at_ms) in &used {
                    sqlx::query(
                        "UPDATE sandboxes SET last_used_ms = $1
                         WHERE id = $2 AND (last_used_ms IS NULL OR last_used_ms < $1)",
                    )
                    .bind(*at_ms)
                    .bind(*sandbox)
                    .execute(&mut *connection)
                    .await
                    .doing(DOING)?;
                }
                Ok(())
            })
        });
        recorded.await
    }

    /// Replaces the network settings of a live sandbox.
    pub async fn set_network(
        &self,
        scope: &impl Scope,
        sandbox: SandboxId,
        network: NetworkSettings,
        allow_internet_access: Option<bool>,
    ) -> Result<(), ChangeError> {
        let owner = scope.owner();
        let vault = self.vault().clone();
        let set = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let project = sqlx::query("SELECT project_id FROM sandboxes WHERE id = $1")
                    .bind(sandbox)
                    .fetch_optional(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                let Some(project) = project else { return Err(ChangeError::NotFound) };
                let project = columns::id(&project, "project_id")?;
                let purpose = columns::purpose(sandbox, "network_secret");
                let network = vault.seal(project, &purpose, &columns::json(&network))?;
                let set = sqlx::query(
                    "UPDATE sandboxes SET network_secret = $1, allow_internet_access = $2
                     WHERE id = $3 AND state IN ('creating', 'running', 'paused')
                         AND ($4 IS NULL OR project_id = $4 OR agent_id = $4)",
                )
                .bind(network)
                .bind(allow_internet_access.map(i64::from))
                .bind(sandbox)
                .bind(owner.clone())
                .execute(&mut *connection)
                .await
                .doing(CHANGE)?;
                if set.rows_affected() == 0 {
                    return Err(why_not(connection, sandbox, owner).await);
                }
                Ok(())
            })
        });
        set.await
    }
}

/// Why no row was changed: it does not exist, or its state does not allow it.
async fn why_not(connection: &mut AnyConnection, sandbox: SandboxId, owner: Option<String>) -> ChangeError {
    let found: Result<Option<AnyRow>, _> = sqlx::query(
        "SELECT state FROM sandboxes WHERE id = $1 AND ($2 IS NULL OR project_id = $2 OR agent_id = $2)",
    )
    .bind(sandbox)
    .bind(owner)
    .fetch_optional(connection)
    .await
    .doing(READ);
    let found = found.and_then(|row| {
        row.map(|row| state_name(&row.try_get::<String, _>("state").doing(READ)?)).transpose()
    });
    match found {
        Ok(Some(found)) => ChangeError::Raced { found },
        Ok(None) => ChangeError::NotFound,
        Err(error) => error.into(),
    }
}

fn bounded(reason: &str) -> String {
    let end = reason.floor_char_boundary(LONGEST_REASON);
    storable(&reason[..end])
}

/// A state change to record.
pub(super) struct Step<'a> {
    pub(super) position: i64,
    pub(super) from: Option<StateName>,
    pub(super) to: &'a SandboxState,
    pub(super) reason: &'a str,
    pub(super) at_ms: Millis,
}

/// Writes the step to the sandbox's history and the project's event log. From then on it locks the project's
/// row, whose quotas it returns.
pub(super) async fn record_step(
    connection: &mut AnyConnection,
    project: ProjectId,
    sandbox: SandboxId,
    step: Step<'_>,
) -> Result<Quotas, StoreError> {
    sqlx::query(
        "INSERT INTO sandbox_transitions (sandbox_id, position, project_id, from_state, state_data, reason, at_ms)
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(sandbox)
    .bind(step.position)
    .bind(project)
    .bind(step.from.map(|from| from.as_str()))
    .bind(columns::json(step.to))
    .bind(step.reason)
    .bind(step.at_ms)
    .execute(&mut *connection)
    .await
    .doing(CHANGE)?;
    let moved = SandboxMoved { from: step.from, to: step.to.clone(), reason: step.reason.to_string() };
    events::record_holding(connection, project, sandbox, moved.event(), step.at_ms).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_reason_is_cut_and_storable() {
        let hostile = format!("\0{}", "é".repeat(LONGEST_REASON));
        let kept = bounded(&hostile);
        assert!(kept.starts_with('\u{fffd}') && !kept.contains('\0'));
        assert!(kept.len() <= LONGEST_REASON + '\u{fffd}'.len_utf8());
    }
}
