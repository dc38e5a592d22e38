//! Transcripts of agents' work.
//!
//! Entries are named by the execution that they were read from and their number there, so writing them again
//! changes nothing. Readers resume by two counters that only grow: the place of an entry, and its last change.

use coffer_core::agent::transcript::EntryBody;
use coffer_core::{CompetitionId, Millis, ProjectId, RunId, TaskId};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};

use crate::columns::{bigint, from_json, id, json, number, storable, text};
use crate::error::Doing;
use crate::select::Select;
use crate::{Operator, ProjectScope, Store, StoreError};

const READ: &str = "read a transcript";
const WRITE: &str = "write a transcript";
const PRUNE: &str = "delete old transcripts";

/// Whose work a transcript is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TranscriptOf {
    Task(TaskId),
    /// An entry of a competition.
    Entry(CompetitionId, i64),
}

impl TranscriptOf {
    fn subject(self) -> String {
        match self {
            Self::Task(task) => task.to_string(),
            Self::Entry(competition, number) => format!("{competition}/{number}"),
        }
    }
}

/// The turn that entries belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnPlace {
    pub of: TranscriptOf,
    pub run: RunId,
    pub attempt: i64,
    pub turn: i64,
}

/// An entry to write, or a new version of one.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTranscriptEntry {
    pub source: String,
    pub number: u64,
    pub version: u64,
    pub subagent: bool,
    pub at_ms: Millis,
    pub body: EntryBody,
}

/// An entry on record.
#[derive(Debug, Clone, PartialEq)]
pub struct TranscriptEntry {
    pub sequence: i64,
    pub change: i64,
    pub run: RunId,
    pub attempt: i64,
    pub turn: i64,
    pub subagent: bool,
    pub body: EntryBody,
    pub at_ms: Millis,
    pub updated_ms: Millis,
}

/// Which entries to read.
#[derive(Debug, Clone, Copy, Default)]
pub struct TranscriptFilter {
    pub attempt: Option<i64>,
    pub turn: Option<i64>,
    /// Only those after this sequence.
    pub after: Option<i64>,
    pub limit: u32,
}

const COLUMNS: &str = "sequence, change, run_id, attempt, turn, subagent, body, at_ms, updated_ms";

impl Store {
    /// Writes entries; those that are on record in this or a later version stay as they are. Nothing happens if
    /// the task or the competition was deleted.
    pub async fn write_transcript(
        &self,
        scope: &ProjectScope,
        place: TurnPlace,
        entries: Vec<NewTranscriptEntry>,
    ) -> Result<(), StoreError> {
        let project = scope.project();
        let write = self.database().write(WRITE, move |connection| {
            Box::pin(async move { write(connection, project, place, &entries).await })
        });
        write.await
    }

    /// Entries in order.
    pub async fn transcript(
        &self,
        scope: &ProjectScope,
        of: TranscriptOf,
        filter: TranscriptFilter,
    ) -> Result<Vec<TranscriptEntry>, StoreError> {
        seen(scope, of)
            .filter_if("attempt = ?", filter.attempt)
            .filter_if("turn = ?", filter.turn)
            .oldest_first("sequence", filter.after, filter.limit)
            .all(self.database(), READ, read)
            .await
    }

    /// The last entries, in order.
    pub async fn transcript_end(
        &self,
        scope: &ProjectScope,
        of: TranscriptOf,
        filter: TranscriptFilter,
        limit: u32,
    ) -> Result<Vec<TranscriptEntry>, StoreError> {
        let mut rows = seen(scope, of)
            .filter_if("attempt = ?", filter.attempt)
            .filter_if("turn = ?", filter.turn)
            .newest_first("sequence", None::<i64>, limit)
            .all(self.database(), READ, read)
            .await?;
        rows.reverse();
        Ok(rows)
    }

    /// Entries that changed after a change, in the order of their last changes.
    pub async fn transcript_changes(
        &self,
        scope: &ProjectScope,
        of: TranscriptOf,
        after: i64,
        limit: u32,
    ) -> Result<Vec<TranscriptEntry>, StoreError> {
        seen(scope, of).oldest_first("change", Some(after), limit).all(self.database(), READ, read).await
    }

    /// The newest entry and change, and the newest entry that retention deleted.
    pub async fn transcript_position(
        &self,
        scope: &ProjectScope,
        of: TranscriptOf,
    ) -> Result<Option<TranscriptPosition>, StoreError> {
        let row = sqlx::query(
            "SELECT last_sequence, last_change, pruned_sequence FROM transcripts WHERE subject = $1 AND project_id = $2",
        )
        .bind(of.subject())
        .bind(scope.project())
        .fetch_optional(self.database().readers())
        .await
        .doing(READ)?;
        let position = |row: AnyRow| {
            Ok(TranscriptPosition {
                sequence: number(&row, "last_sequence")?,
                change: number(&row, "last_change")?,
                pruned: number(&row, "pruned_sequence")?,
            })
        };
        row.map(position).transpose()
    }

    /// How many entries and bytes other sources of this run have written.
    pub async fn transcript_size(
        &self,
        scope: &ProjectScope,
        of: TranscriptOf,
        run: RunId,
        but: &str,
    ) -> Result<(u64, u64), StoreError> {
        // SUM is a decimal in PostgreSQL.
        let row = sqlx::query(
            "SELECT COUNT(*) AS entries, CAST(COALESCE(SUM(bytes), 0) AS BIGINT) AS bytes FROM transcript_entries
             WHERE subject = $1 AND project_id = $2 AND run_id = $3 AND source <> $4",
        )
        .bind(of.subject())
        .bind(scope.project())
        .bind(run)
        .bind(but.to_string())
        .fetch_one(self.database().readers())
        .await
        .doing(READ)?;
        let count = |column| number(&row, column).map(|count| u64::try_from(count).unwrap_or(0));
        Ok((count("entries")?, count("bytes")?))
    }

    /// The newest version that a source has written; 0 before its first.
    pub async fn transcript_version(
        &self,
        scope: &ProjectScope,
        of: TranscriptOf,
        source: &str,
    ) -> Result<u64, StoreError> {
        let row = sqlx::query(
            "SELECT COALESCE(MAX(version), 0) AS version FROM transcript_entries
             WHERE subject = $1 AND project_id = $2 AND source = $3",
        )
        .bind(of.subject())
        .bind(scope.project())
        .bind(source.to_string())
        .fetch_one(self.database().readers())
        .await
        .doing(READ)?;
        number(&row, "version").map(|version| u64::try_from(version).unwrap_or(0))
    }

    /// Deletes up to `batch` of a project's entries that have not changed since, the oldest first.
    pub async fn prune_transcripts(
        &self,
        _: &Operator,
        project: ProjectId,
        before_ms: Millis,
        batch: u32,
    ) -> Result<u64, StoreError> {
        let prune = self.database().write(PRUNE, move |connection| {
            Box::pin(async move {
                let rows = sqlx::query(
                    "DELETE FROM transcript_entries WHERE (subject, sequence) IN (
                         SELECT subject, sequence FROM transcript_entries
                         WHERE project_id = $1 AND updated_ms < $2 ORDER BY updated_ms LIMIT $3)
                     RETURNING subject, sequence",
                )
                .bind(project)
                .bind(before_ms)
                .bind(i64::from(batch))
                .fetch_all(&mut *connection)
                .await
                .doing(PRUNE)?;
                for row in &rows {
                    sqlx::query(
                        "UPDATE transcripts SET pruned_sequence = $1 WHERE subject = $2 AND pruned_sequence < $1",
                    )
                    .bind(number(row, "sequence")?)
                    .bind(text(row, "subject")?)
                    .execute(&mut *connection)
                    .await
                    .doing(PRUNE)?;
                }
                Ok(u64::try_from(rows.len()).unwrap_or(0))
            })
        });
        prune.await
    }
}

/// How far a transcript is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TranscriptPosition {
    pub sequence: i64,
    pub change: i64,
    pub pruned: i64,
}

/// The entries that a caller sees: an agent sees those of its own tasks, and no competition.
fn seen(scope: &ProjectScope, of: TranscriptOf) -> Select {
    Select::new(COLUMNS, "transcript_entries")
        .filter("subject = ?", of.subject())
        .filter("project_id = ?", scope.project())
        .filter_if("subject IN (SELECT id FROM tasks WHERE agent_id = ?)", scope.agent())
}

async fn write(
    connection: &mut AnyConnection,
    project: ProjectId,
    place: TurnPlace,
    entries: &[NewTranscriptEntry],
) -> Result<(), StoreError> {
    let subject = place.of.subject();
    let (task, competition) = match place.of {
        TranscriptOf::Task(task) => (Some(task), None),
        TranscriptOf::Entry(competition, _) => (None, Some(competition)),
    };
    sqlx::query(
        "INSERT INTO transcripts (subject, project_id, task_id, competition_id, last_sequence, last_change,
             pruned_sequence)
         SELECT $1, $2, $3, $4, 0, 0, 0
         WHERE EXISTS (SELECT 1 FROM tasks WHERE id = $3 AND project_id = $2)
             OR EXISTS (SELECT 1 FROM competitions WHERE id = $4 AND project_id = $2)
         ON CONFLICT (subject) DO NOTHING",
    )
    .bind(subject.clone())
    .bind(project)
    .bind(task)
    .bind(competition)
    .execute(&mut *connection)
    .await
    .doing(WRITE)?;
    // Locks the transcript, so that the counters have no gaps and no twins.
    let row = sqlx::query(
        "UPDATE transcripts SET last_sequence = last_sequence WHERE subject = $1 AND project_id = $2
         RETURNING last_sequence, last_change",
    )
    .bind(subject.clone())
    .bind(project)
    .fetch_optional(&mut *connection)
    .await
    .doing(WRITE)?;
    let Some(row) = row else { return Ok(()) };
    let (mut sequence, mut change) = (number(&row, "last_sequence")?, number(&row, "last_change")?);
    for entry in entries {
        let (body, bytes) = (storable(&json(&entry.body)), bigint(entry.body.size() as u64));
        let changed = sqlx::query(
            "UPDATE transcript_entries SET version = $1, body = $2, bytes = $3, updated_ms = $4, change = $5
             WHERE subject = $6 AND source = $7 AND number = $8 AND version < $1",
        )
        .bind(bigint(entry.version))
        .bind(body.clone())
        .bind(bytes)
        .bind(entry.at_ms)
        .bind(change + 1)
        .bind(subject.clone())
        .bind(entry.source.clone())
        .bind(bigint(entry.number))
        .execute(&mut *connection)
        .await
        .doing(WRITE)?;
        if changed.rows_affected() > 0 {
            change += 1;
            continue;
        }
        let added = sqlx::query(
            "INSERT INTO transcript_entries (subject, sequence, change, project_id, run_id, attempt, turn, source,
                 number, version, subagent, body, bytes, at_ms, updated_ms)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $14)
             ON CONFLICT (subject, source, number) DO NOTHING",
        )
        .bind(subject.clone())
        .bind(sequence + 1)
        .bind(change + 1)
        .bind(project)
        .bind(place.run)
        .bind(place.attempt)
        .bind(place.turn)
        .bind(entry.source.clone())
        .bind(bigint(entry.number))
        .bind(bigint(entry.version))
        .bind(i64::from(entry.subagent))
        .bind(body)
        .bind(bytes)
        .bind(entry.at_ms)
        .execute(&mut *connection)
        .await
        .doing(WRITE)?;
        if added.rows_affected() > 0 {
            sequence += 1;
            change += 1;
        }
    }
    sqlx::query("UPDATE transcripts SET last_sequence = $1, last_change = $2 WHERE subject = $3")
        .bind(sequence)
        .bind(change)
        .bind(subject)
        .execute(connection)
        .await
        .doing(WRITE)?;
    Ok(())
}

fn read(row: &AnyRow) -> Result<TranscriptEntry, StoreError> {
    Ok(TranscriptEntry {
        sequence: number(row, "sequence")?,
        change: number(row, "change")?,
        run: id(row, "run_id")?,
        attempt: number(row, "attempt")?,
        turn: number(row, "turn")?,
        subagent: number(row, "subagent")? != 0,
        body: from_json(&text(row, "body")?, "body")?,
        at_ms: row.try_get("at_ms").doing(READ)?,
        updated_ms: row.try_get("updated_ms").doing(READ)?,
    })
}
