//! How our types look in columns.

use coffer_core::{Id, Lifetime, Limits, OnTimeout, SandboxState, StateName};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::Row;
use sqlx::any::AnyRow;

use crate::error::Doing;
use crate::{Placement, SandboxRow, Secret, StoreError, Transition};

const READ: &str = "read a row";

/// Reads an id.
pub(crate) fn id<K>(row: &AnyRow, column: &'static str) -> Result<Id<K>, StoreError> {
    let text: String = row.try_get(column).doing(READ)?;
    text.parse().map_err(|error| unreadable(column, error))
}

pub(crate) fn optional_id<K>(row: &AnyRow, column: &'static str) -> Result<Option<Id<K>>, StoreError> {
    let text: Option<String> = row.try_get(column).doing(READ)?;
    text.map(|text| text.parse().map_err(|error| unreadable(column, error))).transpose()
}

/// Text for people, as both databases take it: PostgreSQL has no NUL in a text.
pub(crate) fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

pub(crate) fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("maps have text keys and no type of ours fails to serialise")
}

fn from_json<T: DeserializeOwned>(text: &str, column: &'static str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| unreadable(column, error))
}

fn unreadable(what: &'static str, error: impl ToString) -> StoreError {
    StoreError::Unreadable { what, why: error.to_string() }
}

fn text(row: &AnyRow, column: &'static str) -> Result<String, StoreError> {
    row.try_get(column).doing(READ)
}

fn optional_text(row: &AnyRow, column: &'static str) -> Result<Option<String>, StoreError> {
    row.try_get(column).doing(READ)
}

fn number(row: &AnyRow, column: &'static str) -> Result<i64, StoreError> {
    row.try_get(column).doing(READ)
}

fn unsigned<T: TryFrom<i64>>(row: &AnyRow, column: &'static str) -> Result<T, StoreError> {
    let value = number(row, column)?;
    T::try_from(value).map_err(|_| unreadable(column, value))
}

/// A count for a BIGINT column; what is too large for it is the largest it holds.
pub(crate) fn bigint(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub(crate) const fn on_timeout_text(on_timeout: OnTimeout) -> &'static str {
    match on_timeout {
        OnTimeout::Destroy => "destroy",
        OnTimeout::Pause => "pause",
        OnTimeout::PauseFilesOnly => "pause_files_only",
    }
}

fn on_timeout(text: &str) -> Result<OnTimeout, StoreError> {
    [OnTimeout::Destroy, OnTimeout::Pause, OnTimeout::PauseFilesOnly]
        .into_iter()
        .find(|&known| on_timeout_text(known) == text)
        .ok_or_else(|| unreadable("on_timeout", text))
}

pub(crate) fn state_name(text: &str) -> Result<StateName, StoreError> {
    use StateName::{Creating, Error, Paused, Running, Terminated};
    [Creating, Running, Paused, Terminated, Error]
        .into_iter()
        .find(|known| known.as_str() == text)
        .ok_or_else(|| unreadable("state", text))
}

/// Every column that [`sandbox_row`] reads.
macro_rules! sandbox_columns {
    () => {
        "id, project_id, state_data, transitions, template, template_id, alias, metadata, env_vars_secret, \
         cpu_count, memory_mib, disk_mib, max_processes, created_ms, started_ms, deadline_ms, ended_ms, \
         timeout_s, on_timeout, auto_resume, secure, access_token_secret, traffic_token_secret, \
         network_secret, allow_internet_access, envd_version, placement, agent_id"
    };
}
pub(crate) use sandbox_columns;

pub(crate) fn sandbox_row(row: &AnyRow) -> Result<SandboxRow, StoreError> {
    let optional_json = |column| optional_text(row, column);
    Ok(SandboxRow {
        id: id(row, "id")?,
        project: id(row, "project_id")?,
        agent: optional_id(row, "agent_id")?,
        state: from_json(&text(row, "state_data")?, "state_data")?,
        placement: optional_json("placement")?
            .map(|text| from_json::<Placement>(&text, "placement"))
            .transpose()?,
        template: text(row, "template")?,
        template_id: text(row, "template_id")?,
        alias: optional_text(row, "alias")?,
        metadata: from_json(&text(row, "metadata")?, "metadata")?,
        env_vars: from_json(&text(row, "env_vars_secret")?, "env_vars_secret")?,
        limits: Limits {
            cpu_count: unsigned(row, "cpu_count")?,
            memory_mib: unsigned(row, "memory_mib")?,
            disk_mib: unsigned(row, "disk_mib")?,
            max_processes: unsigned(row, "max_processes")?,
        },
        lifetime: Lifetime {
            started_ms: number(row, "started_ms")?,
            deadline_ms: number(row, "deadline_ms")?,
            on_timeout: on_timeout(&text(row, "on_timeout")?)?,
        },
        timeout_s: number(row, "timeout_s")?,
        auto_resume: number(row, "auto_resume")? != 0,
        secure: number(row, "secure")? != 0,
        access_token: optional_text(row, "access_token_secret")?.map(Secret::from),
        traffic_token: optional_text(row, "traffic_token_secret")?.map(Secret::from),
        network: optional_json("network_secret")?
            .map(|text| from_json(&text, "network_secret"))
            .transpose()?,
        allow_internet_access: row
            .try_get::<Option<i64>, _>("allow_internet_access")
            .doing(READ)?
            .map(|allowed| allowed != 0),
        envd_version: text(row, "envd_version")?,
        created_ms: number(row, "created_ms")?,
        ended_ms: row.try_get("ended_ms").doing(READ)?,
    })
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
