//! The audit log: which caller did what, and with what result.

use coffer_core::{AuditId, Millis, ProjectId};
use sqlx::Row;
use sqlx::any::AnyRow;

use crate::columns::{id, optional_id, storable};
use crate::error::Doing;
use crate::select::Select;
use crate::{Scope, Store, StoreError};

const READ: &str = "read the audit log";
const WRITE: &str = "write the audit log";
/// Longest text that a caller chose; longer ones are cut.
const LONGEST_TEXT: usize = 200;

/// A request that changed something, or was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRecord {
    pub id: AuditId,
    /// `None` if the caller is unknown.
    pub project: Option<ProjectId>,
    /// `key:<id>`, `agent:<id>`, `operator:<id>`, `token:<sandbox>` (a client with its token), `server` or
    /// `unknown`.
    pub actor: String,
    /// Such as `sandbox.create`.
    pub action: String,
    /// The id of the thing that it is about.
    pub subject: Option<String>,
    pub status: u16,
    /// The error's code, if it was refused.
    pub code: Option<String>,
    pub request_id: String,
    pub at_ms: Millis,
}

/// Which records to show; newest first.
#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    /// Only those before this one.
    pub before: Option<AuditId>,
    pub actor: Option<String>,
    pub action: Option<String>,
    pub subject: Option<String>,
    pub limit: u32,
}

const COLUMNS: &str = "id, project_id, actor, action, subject, status, code, request_id, at_ms";

impl Store {
    /// Writes records, all or none.
    pub async fn record_audit(&self, records: Vec<AuditRecord>) -> Result<(), StoreError> {
        let write = self.database().write(WRITE, move |connection| {
            Box::pin(async move {
                for record in records {
                    sqlx::query(
                        "INSERT INTO audit
                             (id, project_id, actor, action, subject, status, code, request_id, at_ms)
                         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (id) DO NOTHING",
                    )
                    .bind(record.id)
                    .bind(record.project)
                    .bind(cut(&record.actor))
                    .bind(cut(&record.action))
                    .bind(record.subject.as_deref().map(cut))
                    .bind(i64::from(record.status))
                    .bind(record.code.as_deref().map(cut))
                    .bind(cut(&record.request_id))
                    .bind(record.at_ms)
                    .execute(&mut *connection)
                    .await
                    .doing(WRITE)?;
                }
                Ok(())
            })
        });
        write.await
    }

    /// The records in scope that match the filter, newest first.
    pub async fn audit(
        &self,
        scope: &impl Scope,
        filter: &AuditFilter,
    ) -> Result<Vec<AuditRecord>, StoreError> {
        Select::new(COLUMNS, "audit")
            .filter_if("project_id = ?", scope.only())
            .filter_if("actor = ?", filter.actor.as_deref().map(cut))
            .filter_if("action = ?", filter.action.as_deref().map(cut))
            .filter_if("subject = ?", filter.subject.as_deref().map(cut))
            .newest_first("id", filter.before, filter.limit)
            .all(self.database(), READ, read)
            .await
    }
}

fn cut(text: &str) -> String {
    storable(&text[..text.floor_char_boundary(LONGEST_TEXT)])
}

fn read(row: &AnyRow) -> Result<AuditRecord, StoreError> {
    let status: i64 = row.try_get("status").doing(READ)?;
    Ok(AuditRecord {
        id: id(row, "id")?,
        project: optional_id(row, "project_id")?,
        actor: row.try_get("actor").doing(READ)?,
        action: row.try_get("action").doing(READ)?,
        subject: row.try_get("subject").doing(READ)?,
        status: u16::try_from(status)
            .map_err(|error| StoreError::Unreadable { what: "audit record", why: error.to_string() })?,
        code: row.try_get("code").doing(READ)?,
        request_id: row.try_get("request_id").doing(READ)?,
        at_ms: row.try_get("at_ms").doing(READ)?,
    })
}
