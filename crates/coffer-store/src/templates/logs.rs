//! Logs of builds, bounded in lines and bytes.

use coffer_core::{BuildId, BuildLogLevel, Millis};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, AssertSqlSafe};

use super::{CHANGE, READ};
use crate::columns::{name, number, optional_text, storable, text};
use crate::error::Doing;
use crate::{Operator, ProjectScope, Store, StoreError};

/// Most lines of a build's log; further ones are dropped, and the last line says so.
pub const MOST_LOG_LINES: i64 = 20_000;
/// Most bytes of a build's log.
pub const MOST_LOG_BYTES: i64 = 8 << 20;

/// A line of a build's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildLogLine {
    pub at_ms: Millis,
    pub level: BuildLogLevel,
    /// `base`, `finalize` or the number of the step.
    pub step: Option<String>,
    pub message: String,
}

/// Selects lines of a log.
#[derive(Debug, Clone, Copy)]
pub struct BuildLogPage {
    /// How many matching lines to leave out.
    pub offset: i64,
    pub limit: u32,
    /// This level and the ones above.
    pub level: BuildLogLevel,
}

impl Store {
    /// Appends lines to a build's log. Lines beyond the bounds are dropped.
    pub async fn append_build_log(
        &self,
        _: &Operator,
        build: BuildId,
        lines: Vec<BuildLogLine>,
    ) -> Result<(), StoreError> {
        let append = self
            .database()
            .write(CHANGE, move |connection| Box::pin(async move { append(connection, build, lines).await }));
        append.await
    }

    /// A page of a build's log.
    pub async fn build_log(
        &self,
        scope: &ProjectScope,
        build: BuildId,
        page: BuildLogPage,
    ) -> Result<Vec<BuildLogLine>, StoreError> {
        let sql = format!(
            "SELECT l.at_ms, l.level, l.step, l.message FROM template_build_logs AS l
             JOIN template_builds AS b ON b.id = l.build_id
             WHERE l.build_id = $1 AND b.project_id = $2 AND l.level IN ({})
             ORDER BY l.number LIMIT $3 OFFSET $4",
            levels_from(page.level)
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(build)
            .bind(scope.project())
            .bind(i64::from(page.limit))
            .bind(page.offset.max(0))
            .fetch_all(self.database().readers())
            .await
            .doing(READ)?;
        rows.iter().map(read).collect()
    }
}

impl Store {
    /// Lines of a build's log after a position, with their positions.
    pub async fn build_log_after(
        &self,
        scope: &ProjectScope,
        build: BuildId,
        after: i64,
        level: BuildLogLevel,
        limit: u32,
    ) -> Result<Vec<(i64, BuildLogLine)>, StoreError> {
        let sql = format!(
            "SELECT l.number, l.at_ms, l.level, l.step, l.message FROM template_build_logs AS l
             JOIN template_builds AS b ON b.id = l.build_id
             WHERE l.build_id = $1 AND b.project_id = $2 AND l.number > $3 AND l.level IN ({})
             ORDER BY l.number LIMIT $4",
            levels_from(level)
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(build)
            .bind(scope.project())
            .bind(after)
            .bind(i64::from(limit))
            .fetch_all(self.database().readers())
            .await
            .doing(READ)?;
        rows.iter().map(|row| Ok((number(row, "number")?, read(row)?))).collect()
    }
}

/// A level and those above, as SQL.
fn levels_from(least: BuildLogLevel) -> String {
    let levels = BuildLogLevel::ALL.iter().filter(|level| **level >= least);
    levels.map(|level| format!("'{}'", level.as_str())).collect::<Vec<_>>().join(", ")
}

async fn append(
    connection: &mut AnyConnection,
    build: BuildId,
    lines: Vec<BuildLogLine>,
) -> Result<(), StoreError> {
    let row = sqlx::query("SELECT log_lines, log_bytes FROM template_builds WHERE id = $1")
        .bind(build)
        .fetch_optional(&mut *connection)
        .await
        .doing(CHANGE)?;
    // The template was deleted.
    let Some(row) = row else { return Ok(()) };
    let (mut number_of, mut bytes) = (number(&row, "log_lines")?, number(&row, "log_bytes")?);
    for mut line in lines {
        if number_of > MOST_LOG_LINES || bytes > MOST_LOG_BYTES {
            break;
        }
        if number_of == MOST_LOG_LINES || bytes + line.message.len() as i64 > MOST_LOG_BYTES {
            line.level = BuildLogLevel::Warn;
            line.message = "the log is full; further lines are not kept".to_string();
            // Nothing fits after it.
            bytes = MOST_LOG_BYTES;
        }
        bytes += line.message.len() as i64 + 1;
        sqlx::query(
            "INSERT INTO template_build_logs (build_id, number, at_ms, level, step, message)
             VALUES ($1, $2, $3, $4, $5, $6)",
        )
        .bind(build)
        .bind(number_of)
        .bind(line.at_ms)
        .bind(line.level.as_str())
        .bind(line.step)
        .bind(storable(&line.message))
        .execute(&mut *connection)
        .await
        .doing(CHANGE)?;
        number_of += 1;
    }
    sqlx::query("UPDATE template_builds SET log_lines = $1, log_bytes = $2 WHERE id = $3")
        .bind(number_of)
        .bind(bytes)
        .bind(build)
        .execute(connection)
        .await
        .doing(CHANGE)?;
    Ok(())
}

fn read(row: &AnyRow) -> Result<BuildLogLine, StoreError> {
    Ok(BuildLogLine {
        at_ms: number(row, "at_ms")?,
        level: name(row, "level", BuildLogLevel::parse)?,
        step: optional_text(row, "step")?,
        message: text(row, "message")?,
    })
}
