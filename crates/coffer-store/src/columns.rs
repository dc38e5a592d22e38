//! Converts our types to and from columns.

use coffer_core::life::Life;
use coffer_core::network::NetworkSettings;
use coffer_core::{
    Id, Lifetime, Limits, OnTimeout, ProjectId, SandboxId, SandboxPurpose, SandboxState, StateName,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::Row;
use sqlx::any::AnyRow;

use crate::error::Doing;
use crate::vault::{Sealed, Vault};
use crate::{Bounds, Origin, Placement, SandboxRow, Secret, StoreError, Transition};

const READ: &str = "read a row";

/// Reads an id.
pub(crate) fn id<K>(row: &AnyRow, column: &'static str) -> Result<Id<K>, StoreError> {
    row.try_get(column).map_err(|error| not_an_id(column, error))
}

pub(crate) fn optional_id<K>(row: &AnyRow, column: &'static str) -> Result<Option<Id<K>>, StoreError> {
    row.try_get(column).map_err(|error| not_an_id(column, error))
}

fn not_an_id(column: &'static str, error: sqlx::Error) -> StoreError {
    match error {
        sqlx::Error::ColumnDecode { source, .. } => unreadable(column, source),
        other => StoreError::from_sqlx(other, READ),
    }
}

/// Text for people that both databases accept: PostgreSQL has no NUL in text.
pub(crate) fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

pub(crate) fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("maps have text keys and no type of ours fails to serialise")
}

pub(crate) fn from_json<T: DeserializeOwned>(text: &str, column: &'static str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| unreadable(column, error))
}

pub(crate) fn unreadable(what: &'static str, error: impl ToString) -> StoreError {
    StoreError::Unreadable { what, why: error.to_string() }
}

pub(crate) fn text(row: &AnyRow, column: &'static str) -> Result<String, StoreError> {
    row.try_get(column).doing(READ)
}

pub(crate) fn optional_text(row: &AnyRow, column: &'static str) -> Result<Option<String>, StoreError> {
    row.try_get(column).doing(READ)
}

/// The states that allow `cause`, for `state IN (…)`.
pub(crate) fn states<L: Life>(cause: L::Cause) -> String {
    let names: Vec<String> = L::allowing(cause).map(|state| format!("'{}'", state.name())).collect();
    names.join(", ")
}

/// The state after `cause` by the state before, for `state = …`.
pub(crate) fn moves<L: Life>(cause: L::Cause) -> String {
    moves_of::<L>("state", cause)
}

/// The same where `state` alone would not say of which row.
pub(crate) fn moves_of<L: Life>(column: &str, cause: L::Cause) -> String {
    let step = |state: L| Some(format!("WHEN '{}' THEN '{}'", state.name(), state.after(cause).ok()?.name()));
    let steps: Vec<String> = L::allowing(cause).filter_map(step).collect();
    format!("CASE {column} {} ELSE {column} END", steps.join(" "))
}

/// The state that a life begins in, for the values of a new row.
pub(crate) fn first<L: Life>() -> String {
    format!("'{}'", L::STATES[0].name())
}

/// A column that holds one of a list of names.
pub(crate) fn name<T>(
    row: &AnyRow,
    column: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, StoreError> {
    let text = text(row, column)?;
    parse(&text).ok_or_else(|| unreadable(column, text))
}

pub(crate) fn number(row: &AnyRow, column: &'static str) -> Result<i64, StoreError> {
    row.try_get(column).doing(READ)
}

pub(crate) fn unsigned<T: TryFrom<i64>>(row: &AnyRow, column: &'static str) -> Result<T, StoreError> {
    let value = number(row, column)?;
    T::try_from(value).map_err(|_| unreadable(column, value))
}

/// A count for a BIGINT column; saturates.
pub(crate) fn bigint(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub(crate) fn state_name(text: &str) -> Result<StateName, StoreError> {
    StateName::parse(text).ok_or_else(|| unreadable("state", text))
}

/// Every column that [`sandbox_row`] reads.
macro_rules! sandbox_columns {
    () => {
        "id, project_id, state_data, transitions, template, template_id, alias, metadata, env_vars_secret, \
         cpu_count, memory_mib, disk_mib, max_processes, created_ms, started_ms, deadline_ms, ended_ms, \
         timeout_s, on_timeout, auto_resume, secure, access_token_secret, traffic_token_secret, \
         network_secret, allow_internet_access, envd_version, placement, agent_id, secret_names, \
         idle_s, max_lifetime_s, lease_s, lease_until_ms, installation, parent_id, snapshot_id, fork_position, \
         purpose, task_id, last_used_ms, volume_mounts"
    };
}
pub(crate) use sandbox_columns;

/// The purpose string that seals a sandbox's column.
pub(crate) fn purpose(sandbox: SandboxId, column: &str) -> String {
    format!("sandboxes/{sandbox}/{column}")
}

/// Opens the sealed columns of a row, and remembers whether any of them could not be opened.
struct Opening<'a> {
    vault: &'a Vault,
    row: &'a AnyRow,
    project: ProjectId,
    sandbox: SandboxId,
    sealed: bool,
}

impl Opening<'_> {
    /// `None` if the column is empty or sealed.
    fn text(&mut self, column: &'static str) -> Result<Option<String>, StoreError> {
        let Some(text) = optional_text(self.row, column)? else { return Ok(None) };
        match self.vault.open_text(self.project, &purpose(self.sandbox, column), &text) {
            Ok(text) => Ok(Some(text)),
            Err(Sealed) => {
                self.sealed = true;
                Ok(None)
            }
        }
    }

    /// A token that cannot be opened becomes a random one, not none: the sandbox must stay protected.
    fn token(&mut self, column: &'static str) -> Result<Option<Secret>, StoreError> {
        let before = std::mem::take(&mut self.sealed);
        let text = self.text(column)?;
        let stand_in = || hex::encode(rand::random::<[u8; 32]>());
        let token = if self.sealed { Some(stand_in()) } else { text };
        self.sealed |= before;
        Ok(token.map(Secret::from))
    }
}

pub(crate) fn sandbox_row(row: &AnyRow, vault: &Vault) -> Result<SandboxRow, StoreError> {
    let optional_json = |column| optional_text(row, column);
    let (project, sandbox) = (id(row, "project_id")?, id(row, "id")?);
    let mut opening = Opening { vault, row, project, sandbox, sealed: false };
    let env_vars = opening.text("env_vars_secret")?;
    let access_token = opening.token("access_token_secret")?;
    let traffic_token = opening.token("traffic_token_secret")?;
    let before = std::mem::take(&mut opening.sealed);
    let network = opening.text("network_secret")?;
    let allow_internet_access =
        row.try_get::<Option<i64>, _>("allow_internet_access").doing(READ)?.map(|allowed| allowed != 0);
    let network = match opening.sealed {
        // Unreadable settings become closed ones: the default would open the internet.
        true => NetworkSettings::closed(),
        false => network_settings(sandbox, network, allow_internet_access)?,
    };
    let sealed = opening.sealed | before;
    Ok(SandboxRow {
        id: sandbox,
        project,
        sealed,
        secrets: optional_json("secret_names")?
            .map(|text| from_json(&text, "secret_names"))
            .transpose()?
            .unwrap_or_default(),
        agent: optional_id(row, "agent_id")?,
        task: optional_id(row, "task_id")?,
        state: from_json(&text(row, "state_data")?, "state_data")?,
        placement: optional_json("placement")?
            .map(|text| from_json::<Placement>(&text, "placement"))
            .transpose()?,
        template: text(row, "template")?,
        template_id: text(row, "template_id")?,
        alias: optional_text(row, "alias")?,
        metadata: from_json(&text(row, "metadata")?, "metadata")?,
        env_vars: env_vars.map(|text| from_json(&text, "env_vars_secret")).transpose()?.unwrap_or_default(),
        limits: Limits {
            cpu_count: unsigned(row, "cpu_count")?,
            memory_mib: unsigned(row, "memory_mib")?,
            disk_mib: unsigned(row, "disk_mib")?,
            max_processes: unsigned(row, "max_processes")?,
        },
        lifetime: Lifetime {
            started_ms: number(row, "started_ms")?,
            deadline_ms: number(row, "deadline_ms")?,
            on_timeout: name(row, "on_timeout", OnTimeout::parse)?,
        },
        timeout_s: number(row, "timeout_s")?,
        auto_resume: number(row, "auto_resume")? != 0,
        secure: number(row, "secure")? != 0,
        access_token,
        traffic_token,
        network,
        allow_internet_access,
        envd_version: text(row, "envd_version")?,
        created_ms: number(row, "created_ms")?,
        ended_ms: row.try_get("ended_ms").doing(READ)?,
        last_used_ms: row.try_get("last_used_ms").doing(READ)?,
        bounds: Bounds {
            idle_s: row.try_get("idle_s").doing(READ)?,
            max_lifetime_s: row.try_get("max_lifetime_s").doing(READ)?,
            lease_s: row.try_get("lease_s").doing(READ)?,
        },
        lease_until_ms: row.try_get("lease_until_ms").doing(READ)?,
        installation: optional_text(row, "installation")?,
        origin: origin(row)?,
        purpose: name(row, "purpose", SandboxPurpose::parse)?,
        volumes: optional_json("volume_mounts")?
            .map(|text| from_json(&text, "volume_mounts"))
            .transpose()?
            .unwrap_or_default(),
    })
}

/// Parses network settings. One row that this version does not understand must not stop the server from
/// starting: that sandbox reaches nothing until its settings are replaced.
fn network_settings(
    sandbox: SandboxId,
    text: Option<String>,
    internet: Option<bool>,
) -> Result<NetworkSettings, StoreError> {
    let stored = text.map(|text| from_json(&text, "network_secret")).transpose()?;
    Ok(NetworkSettings::from_row(stored, internet).unwrap_or_else(|error| {
        tracing::error!(
            sandbox.id = %sandbox,
            "the network settings of sandbox {sandbox} cannot be read, so it may reach nothing until they are set \
             again (PUT /api/v1/sandboxes/{sandbox}/network): {error}"
        );
        NetworkSettings::closed()
    }))
}

fn origin(row: &AnyRow) -> Result<Option<Origin>, StoreError> {
    let (parent, snapshot) = (optional_id(row, "parent_id")?, optional_id(row, "snapshot_id")?);
    let fork_position = row.try_get("fork_position").doing(READ)?;
    let known = parent.zip(snapshot);
    Ok(known.map(|(parent, snapshot)| Origin { parent, snapshot, fork_position }))
}

pub(crate) fn transition(row: &AnyRow) -> Result<Transition, StoreError> {
    let from = optional_text(row, "from_state")?;
    Ok(Transition {
        position: number(row, "position")?,
        from: from.map(|name| state_name(&name)).transpose()?,
        to: from_json::<SandboxState>(&text(row, "state_data")?, "state_data")?,
        reason: text(row, "reason")?,
        at_ms: number(row, "at_ms")?,
    })
}

#[cfg(test)]
mod tests {
    use coffer_core::AgentId;
    use sqlx::{AnyConnection, Connection as _};

    use super::*;

    #[tokio::test]
    async fn an_id_is_stored_as_its_text_and_another_text_cannot_be_read() {
        sqlx::any::install_default_drivers();
        let mut connection = AnyConnection::connect("sqlite::memory:").await.unwrap();
        let sandbox = SandboxId::generate();
        let row = sqlx::query("SELECT $1 AS id, $2 AS none, 'mine' AS bad")
            .bind(sandbox)
            .bind(None::<AgentId>)
            .fetch_one(&mut connection)
            .await
            .unwrap();
        assert_eq!(text(&row, "id").unwrap(), sandbox.to_string());
        let (read, none): (SandboxId, Option<AgentId>) =
            (id(&row, "id").unwrap(), optional_id(&row, "none").unwrap());
        assert_eq!((read, none), (sandbox, None));
        let bad: Result<SandboxId, _> = id(&row, "bad");
        assert!(matches!(bad, Err(StoreError::Unreadable { what: "bad", .. })), "{bad:?}");
    }
}
