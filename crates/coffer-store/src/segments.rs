//! The index of the output log's files.

use coffer_core::{Millis, ProjectId, SandboxId};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};
use strum::{EnumString, IntoStaticStr, VariantArray};

use crate::columns::{id, name};
use crate::error::Doing;
use crate::{Scope, Store, StoreError};

const READ: &str = "read the index of the output log";
const WRITE: &str = "write the index of the output log";

/// The state of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum SegmentState {
    /// As it was written.
    Plain,
    /// Compressed.
    Archived,
    /// Deleted by retention.
    Pruned,
}

coffer_core::names!(SegmentState);

/// A file of a sandbox's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentRow {
    pub sandbox: SandboxId,
    pub project: ProjectId,
    /// Counts from 0.
    pub number: i64,
    pub state: SegmentState,
    /// The position of its first byte in the sandbox's log.
    pub first_position: i64,
    /// Bytes of records, before compression.
    pub bytes: i64,
    /// Bytes on disk.
    pub file_bytes: i64,
    pub first_ms: Millis,
    pub last_ms: Millis,
}

impl SegmentRow {
    /// The position after its last byte.
    pub const fn end(&self) -> i64 {
        self.first_position + self.bytes
    }
}

const COLUMNS: &str =
    "sandbox_id, number, project_id, state, first_position, bytes, file_bytes, first_ms, last_ms";

impl Store {
    /// The segments of a sandbox that end after `position`, in order.
    pub async fn segments(
        &self,
        scope: &impl Scope,
        sandbox: SandboxId,
        position: i64,
        limit: u32,
    ) -> Result<Vec<SegmentRow>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM output_segments WHERE sandbox_id = $1 AND first_position + bytes > $2
                 AND EXISTS (SELECT 1 FROM sandboxes AS s WHERE s.id = $1
                     AND ($3 IS NULL OR s.project_id = $3 OR s.agent_id = $3))
             ORDER BY number LIMIT $4"
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(sandbox)
            .bind(position)
            .bind(scope.owner())
            .bind(i64::from(limit))
            .fetch_all(self.database().readers())
            .await
            .doing(READ)?;
        rows.iter().map(read).collect()
    }

    /// The newest segment of a sandbox, in any state.
    pub async fn newest_segment(&self, sandbox: SandboxId) -> Result<Option<SegmentRow>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM output_segments WHERE sandbox_id = $1 ORDER BY number DESC LIMIT 1"
        );
        let row = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(sandbox)
            .fetch_optional(self.database().readers())
            .await
            .doing(READ)?;
        row.as_ref().map(read).transpose()
    }

    /// Segments in this state whose last record is older, the oldest first, without those that may still be
    /// written.
    ///
    /// Of one project, or of all projects without own settings; and only of sandboxes that this installation
    /// holds or held, because it has the files.
    pub async fn segments_older(
        &self,
        project: Option<ProjectId>,
        state: SegmentState,
        than_ms: Millis,
        limit: u32,
    ) -> Result<Vec<SegmentRow>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM output_segments AS o WHERE state = $1 AND last_ms < $2
                 AND (EXISTS (SELECT 1 FROM output_segments AS later
                         WHERE later.sandbox_id = o.sandbox_id AND later.number > o.number)
                     OR EXISTS (SELECT 1 FROM sandboxes AS s
                         WHERE s.id = o.sandbox_id AND s.state NOT IN ('creating', 'running', 'paused')))
                 AND ($4 IS NULL OR EXISTS (SELECT 1 FROM sandboxes AS s
                         WHERE s.id = o.sandbox_id AND COALESCE(s.installation, $4) = $4))
                 AND CASE WHEN $5 IS NULL
                     THEN NOT EXISTS (SELECT 1 FROM project_settings AS p WHERE p.project_id = o.project_id)
                     ELSE o.project_id = $5 END
             ORDER BY last_ms LIMIT $3"
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(state.as_str())
            .bind(than_ms)
            .bind(i64::from(limit))
            .bind(self.installation())
            .bind(project)
            .fetch_all(self.database().readers())
            .await
            .doing(READ)?;
        rows.iter().map(read).collect()
    }

    /// Records new states of segments, unless they were written since they were read.
    pub async fn change_segments(&self, changed: Vec<SegmentRow>) -> Result<(), StoreError> {
        let write = self.database().write(WRITE, move |connection| {
            Box::pin(async move {
                for segment in &changed {
                    sqlx::query(
                        "UPDATE output_segments SET state = $1, file_bytes = $2
                         WHERE sandbox_id = $3 AND number = $4 AND bytes = $5",
                    )
                    .bind(segment.state.as_str())
                    .bind(segment.file_bytes)
                    .bind(segment.sandbox)
                    .bind(segment.number)
                    .bind(segment.bytes)
                    .execute(&mut *connection)
                    .await
                    .doing(WRITE)?;
                }
                Ok(())
            })
        });
        write.await
    }

    /// The segments of a sandbox that are on disk, the oldest first.
    pub async fn segments_on_disk(&self, sandbox: SandboxId) -> Result<Vec<SegmentRow>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM output_segments WHERE sandbox_id = $1 AND state <> 'pruned' ORDER BY number"
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(sandbox)
            .fetch_all(self.database().readers())
            .await
            .doing(READ)?;
        rows.iter().map(read).collect()
    }
}

/// Writes a segment's current row.
pub(crate) async fn put(connection: &mut AnyConnection, row: &SegmentRow) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO output_segments
             (sandbox_id, number, project_id, state, first_position, bytes, file_bytes, first_ms, last_ms)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
         ON CONFLICT (sandbox_id, number) DO UPDATE SET state = $4, bytes = $6, file_bytes = $7, last_ms = $9",
    )
    .bind(row.sandbox)
    .bind(row.number)
    .bind(row.project)
    .bind(row.state.as_str())
    .bind(row.first_position)
    .bind(row.bytes)
    .bind(row.file_bytes)
    .bind(row.first_ms)
    .bind(row.last_ms)
    .execute(connection)
    .await
    .doing(WRITE)
    .map(drop)
}

fn read(row: &AnyRow) -> Result<SegmentRow, StoreError> {
    let number = |name: &str| row.try_get::<i64, _>(name).doing(READ);
    Ok(SegmentRow {
        sandbox: id(row, "sandbox_id")?,
        project: id(row, "project_id")?,
        number: number("number")?,
        state: name(row, "state", SegmentState::parse)?,
        first_position: number("first_position")?,
        bytes: number("bytes")?,
        file_bytes: number("file_bytes")?,
        first_ms: number("first_ms")?,
        last_ms: number("last_ms")?,
    })
}
