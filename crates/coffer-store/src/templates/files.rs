//! Uploaded files of `COPY` steps, and the links by which clients upload them.

use coffer_core::{Millis, ProjectId};
use sha2::{Digest as _, Sha256};

use super::{CHANGE, READ};
use crate::columns::{id, number, storable, text};
use crate::error::Doing;
use crate::{Operator, Store, StoreError, now_ms};

/// Uploaded files, by the client's name for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateFiles {
    pub project: ProjectId,
    pub hash: String,
    pub sha256: String,
    pub size_bytes: i64,
}

/// What a link may upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadGrant {
    pub project: ProjectId,
    pub hash: String,
}

impl Store {
    /// The files that a project uploaded under that name. They count as used now.
    pub async fn template_files(
        &self,
        project: ProjectId,
        hash: &str,
    ) -> Result<Option<TemplateFiles>, StoreError> {
        let (here, hash) = (self.installation().unwrap_or_default(), storable(hash));
        let find = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let row = sqlx::query(
                    "UPDATE template_files SET used_ms = $1
                     WHERE project_id = $2 AND hash = $3 AND installation = $4
                     RETURNING project_id, hash, sha256, size_bytes",
                )
                .bind(now_ms())
                .bind(project)
                .bind(hash)
                .bind(here)
                .fetch_optional(connection)
                .await
                .doing(READ)?;
                row.as_ref().map(read).transpose()
            })
        });
        find.await
    }

    /// Records uploaded files. Returns what had that name before.
    pub async fn keep_template_files(
        &self,
        files: TemplateFiles,
    ) -> Result<Option<TemplateFiles>, StoreError> {
        let here = self.installation().unwrap_or_default();
        let keep = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let before = sqlx::query(
                    "DELETE FROM template_files WHERE project_id = $1 AND hash = $2 AND installation = $3
                     RETURNING project_id, hash, sha256, size_bytes",
                )
                .bind(files.project)
                .bind(storable(&files.hash))
                .bind(here.clone())
                .fetch_optional(&mut *connection)
                .await
                .doing(CHANGE)?;
                sqlx::query(
                    "INSERT INTO template_files (project_id, hash, installation, sha256, size_bytes, used_ms)
                     VALUES ($1, $2, $3, $4, $5, $6)",
                )
                .bind(files.project)
                .bind(storable(&files.hash))
                .bind(here)
                .bind(files.sha256)
                .bind(files.size_bytes)
                .bind(now_ms())
                .execute(&mut *connection)
                .await
                .doing(CHANGE)?;
                before.as_ref().map(read).transpose()
            })
        });
        keep.await
    }

    /// Forgets files that were not used since `before_ms`; the caller deletes the bytes.
    pub async fn forget_template_files(
        &self,
        _: &Operator,
        before_ms: Millis,
    ) -> Result<Vec<TemplateFiles>, StoreError> {
        let here = self.installation().unwrap_or_default();
        let forget = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                sqlx::query("DELETE FROM template_uploads WHERE expires_ms < $1")
                    .bind(now_ms())
                    .execute(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                let rows = sqlx::query(
                    "DELETE FROM template_files WHERE installation = $1 AND used_ms < $2
                     RETURNING project_id, hash, sha256, size_bytes",
                )
                .bind(here)
                .bind(before_ms)
                .fetch_all(&mut *connection)
                .await
                .doing(CHANGE)?;
                rows.iter().map(read).collect()
            })
        });
        forget.await
    }

    /// Which of these digests a project's files have, so that a sweep leaves them.
    pub async fn known_template_files(
        &self,
        _: &Operator,
        project: ProjectId,
    ) -> Result<Vec<String>, StoreError> {
        let rows =
            sqlx::query("SELECT sha256 FROM template_files WHERE project_id = $1 AND installation = $2")
                .bind(project)
                .bind(self.installation().unwrap_or_default())
                .fetch_all(self.database().readers())
                .await
                .doing(READ)?;
        rows.iter().map(|row| text(row, "sha256")).collect()
    }

    /// Allows one upload to the holder of `token`, until `expires_ms`.
    pub async fn allow_upload(
        &self,
        token: &str,
        grant: UploadGrant,
        expires_ms: Millis,
    ) -> Result<(), StoreError> {
        let token = digest(token);
        let allow = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                sqlx::query(
                    "INSERT INTO template_uploads (token_sha256, project_id, hash, expires_ms)
                     VALUES ($1, $2, $3, $4)",
                )
                .bind(token)
                .bind(grant.project)
                .bind(storable(&grant.hash))
                .bind(expires_ms)
                .execute(connection)
                .await
                .doing(CHANGE)?;
                Ok(())
            })
        });
        allow.await
    }

    /// What the holder of `token` may upload. A token is taken once.
    pub async fn take_upload(&self, token: &str) -> Result<Option<UploadGrant>, StoreError> {
        let token = digest(token);
        let take = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let row = sqlx::query(
                    "DELETE FROM template_uploads WHERE token_sha256 = $1 AND expires_ms >= $2
                     RETURNING project_id, hash",
                )
                .bind(token)
                .bind(now_ms())
                .fetch_optional(connection)
                .await
                .doing(CHANGE)?;
                let grant = row.map(|row| {
                    Ok(UploadGrant { project: id(&row, "project_id")?, hash: text(&row, "hash")? })
                });
                grant.transpose()
            })
        });
        take.await
    }
}

fn digest(token: &str) -> String {
    hex::encode(Sha256::digest(token.as_bytes()))
}

fn read(row: &sqlx::any::AnyRow) -> Result<TemplateFiles, StoreError> {
    Ok(TemplateFiles {
        project: id(row, "project_id")?,
        hash: text(row, "hash")?,
        sha256: text(row, "sha256")?,
        size_bytes: number(row, "size_bytes")?,
    })
}
