//! Artifacts: stored results of runs.
//!
//! Contents are files, `<dir>/<project>/<artifact>`; no client's text is part of a path. A file is complete
//! and on disk before its row is written, and the row is deleted before the file: every listed artifact has
//! its contents, and a crash leaves at most a file without a row, which a periodic sweep deletes.

mod error;
mod files;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use coffer_core::settings::ByteSize;
use coffer_core::{ArtifactId, ProjectId, RunId};
use coffer_forge::DiskFloor;
use coffer_shares::{Shares, pool};
use coffer_store::{
    ArtifactContents, ArtifactError, ArtifactKind, ArtifactLinks, ArtifactRow, NewArtifact, ProjectScope,
    Store,
};
use futures_util::{Stream, StreamExt, stream};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use coffer_fleet::output::Output;
use coffer_shares::PoolSettings;
pub use error::{KeepError, OpenError};
use files::Files;

/// How often leftover files are deleted, and their minimum age: a row may be about to be written.
const COLLECT_EVERY: Duration = Duration::from_secs(3600);
const ORPHAN_AGE: Duration = Duration::from_secs(3600);

/// `[artifacts]`: limits of stored results of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ArtifactSettings {
    /// The largest artifact.
    pub most_per_artifact: ByteSize,
    /// The total size of a project's artifacts.
    pub most_per_project: ByteSize,
}

impl Default for ArtifactSettings {
    fn default() -> Self {
        Self { most_per_artifact: ByteSize::mib(256), most_per_project: ByteSize::gib(10) }
    }
}

/// The metadata of a new artifact.
#[derive(Debug, Clone)]
pub struct Label {
    pub kind: ArtifactKind,
    pub name: String,
    pub content_type: String,
    pub description: String,
    pub links: ArtifactLinks,
    /// An artifact with this key is stored once, however often it is tried.
    pub once_key: Option<String>,
    pub actor: String,
}

/// The artifacts of this server.
#[derive(Debug)]
pub struct Artifacts {
    store: Store,
    output: Arc<Output>,
    files: Files,
    settings: ArtifactSettings,
    installation: Option<String>,
    uploads: Shares<ProjectId>,
    /// Pool for results of runs, separate from clients' uploads.
    texts: Shares<ProjectId>,
    floor: DiskFloor,
}

impl Artifacts {
    /// Stores contents below `dir`; deletes leftover files until `stop`.
    pub fn start(
        store: Store,
        output: Arc<Output>,
        dir: &Path,
        (settings, pools, floor): (ArtifactSettings, &PoolSettings, DiskFloor),
        installation: Option<String>,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let (uploads, texts) = (pools.shares(pool::ARTIFACT_UPLOADS), pools.shares(pool::ARTIFACT_TEXTS));
        let files = Files::new(dir);
        let artifacts =
            Arc::new(Self { store, output, files, settings, installation, uploads, texts, floor });
        tasks.spawn(artifacts.clone().keep_collecting(stop));
        artifacts
    }

    /// Stores the contents of a stream.
    pub async fn keep(
        &self,
        scope: &ProjectScope,
        label: Label,
        contents: impl Stream<Item = Result<Bytes, String>> + Send + Unpin,
    ) -> Result<ArtifactRow, KeepError> {
        self.check_room(scope).await?;
        let _place = self.uploads.take(scope.project()).await?;
        self.write(scope, label, contents).await
    }

    /// Checks the limits before writing anything.
    async fn check_room(&self, scope: &ProjectScope) -> Result<(), ArtifactError> {
        let (used, limit) = (self.store.artifact_bytes(scope).await?, self.most_per_project());
        if used >= limit {
            return Err(ArtifactError::OverQuota { used, limit });
        }
        Ok(())
    }

    async fn write(
        &self,
        scope: &ProjectScope,
        label: Label,
        contents: impl Stream<Item = Result<Bytes, String>> + Send + Unpin,
    ) -> Result<ArtifactRow, KeepError> {
        self.floor.check()?;
        let artifact = ArtifactId::generate();
        let largest = self.settings.most_per_artifact.as_bytes();
        // Reserve space for the received bytes, until the row counts them.
        let room = self.store.reserve_storage(scope.project(), 1).await?;
        let came = AtomicU64::new(0);
        let metered = contents.then(async |piece| {
            let piece = piece?;
            let came = came.fetch_add(piece.len() as u64, Ordering::Relaxed) + piece.len() as u64;
            room.cover(came).await.map_err(|error| error.to_string())?;
            Ok(piece)
        });
        let written = self.files.write(scope.project(), artifact, largest, std::pin::pin!(metered)).await;
        let written = written.map_err(|error| room.refusal().map_or(error, KeepError::OverQuota))?;
        let contents = ArtifactContents::Kept { size_bytes: written.size_bytes, sha256: written.sha256 };
        let added = self.add(scope, artifact, label, contents).await;
        if !matches!(added, Ok((_, true))) {
            // Nothing refers to it; if it cannot be deleted now, the sweep finds it.
            let _ = self.files.remove(scope.project(), artifact).await;
        }
        Ok(added?.0)
    }

    /// Stores a link.
    pub async fn keep_link(
        &self,
        scope: &ProjectScope,
        label: Label,
        url: String,
    ) -> Result<ArtifactRow, KeepError> {
        let contents = ArtifactContents::Link { url };
        Ok(self.add(scope, ArtifactId::generate(), label, contents).await?.0)
    }

    /// Stores a text of a run, redacted; once, if the label has a key.
    pub async fn keep_text(
        &self,
        scope: &ProjectScope,
        label: Label,
        text: &str,
    ) -> Result<ArtifactRow, KeepError> {
        if let Some(key) = &label.once_key {
            let before = self.store.artifact_once(scope, key).await.map_err(ArtifactError::Store)?;
            if let Some(before) = before {
                return Ok(before);
            }
        }
        self.store.secret_values(scope.project()).await.map_err(ArtifactError::Store)?;
        let text = self.output.patterns(scope.project()).redact(text);
        self.check_room(scope).await?;
        let _place = self.texts.take(scope.project()).await?;
        self.write(scope, label, stream::iter([Ok(Bytes::from(text))])).await
    }

    /// Stores the results of a run: its diff, and the address of its pull request. Idempotent. Failures are
    /// only logged, because the run itself has succeeded.
    pub async fn keep_of_run(
        &self,
        scope: &ProjectScope,
        run: RunId,
        diff: Option<&str>,
        pull_url: Option<&str>,
    ) {
        let label = |kind, name: &str, content_type: &str| Label {
            kind,
            name: name.to_string(),
            content_type: content_type.to_string(),
            description: String::new(),
            links: ArtifactLinks { run: Some(run), ..ArtifactLinks::default() },
            once_key: Some(format!("run/{run}/{name}")),
            actor: format!("run:{run}"),
        };
        let mut kept = Vec::new();
        if let Some(diff) = diff.filter(|diff| !diff.is_empty()) {
            let label = label(ArtifactKind::Diff, "changes.diff", "text/x-diff; charset=utf-8");
            kept.push(self.keep_text(scope, label, diff).await);
        }
        if let Some(url) = pull_url {
            let label = label(ArtifactKind::Link, "pull request", "text/uri-list");
            kept.push(self.keep_link(scope, label, url.to_string()).await);
        }
        for error in kept.into_iter().filter_map(Result::err) {
            tracing::warn!("could not store the results of run {run}: {}", coffer_core::chain(&error));
        }
    }

    async fn add(
        &self,
        scope: &ProjectScope,
        id: ArtifactId,
        label: Label,
        contents: ArtifactContents,
    ) -> Result<(ArtifactRow, bool), ArtifactError> {
        let Label { kind, name, content_type, description, links, once_key, actor } = label;
        let new = NewArtifact { id, kind, name, content_type, description, links, contents, once_key, actor };
        self.store.add_artifact(scope, new, self.most_per_project()).await
    }

    fn most_per_project(&self) -> i64 {
        i64::try_from(self.settings.most_per_project.as_bytes()).unwrap_or(i64::MAX)
    }

    /// The contents of an artifact that has any.
    pub async fn open(&self, row: &ArtifactRow) -> Result<tokio::fs::File, OpenError> {
        if row.installation != self.installation {
            return Err(OpenError::Elsewhere);
        }
        match self.files.open(row.project, row.id).await {
            Ok((file, length)) if i64::try_from(length).is_ok_and(|length| length == row.size_bytes) => {
                Ok(file)
            }
            Ok(_) => Err(OpenError::Lost),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(OpenError::Lost),
            Err(error) => Err(OpenError::Disk(error)),
        }
    }

    /// Deletes an artifact. Returns whether there was one.
    pub async fn remove(
        &self,
        scope: &ProjectScope,
        artifact: ArtifactId,
    ) -> Result<bool, coffer_store::StoreError> {
        let Some(row) = self.store.remove_artifact(scope, artifact).await? else { return Ok(false) };
        if let Err(error) = self.files.remove(row.project, row.id).await {
            tracing::warn!("could not delete the contents of artifact {artifact} yet: {error}");
        }
        Ok(true)
    }

    async fn keep_collecting(self: Arc<Self>, stop: CancellationToken) {
        loop {
            match self.collect(ORPHAN_AGE).await {
                Ok(0) => {}
                Ok(removed) => tracing::info!("deleted {removed} leftover files of artifacts"),
                Err(error) => tracing::warn!("could not delete leftover files of artifacts: {error}"),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(COLLECT_EVERY) => {}
            }
        }
    }

    /// Deletes files without a row that are at least this old. Returns how many.
    pub async fn collect(&self, age: Duration) -> std::io::Result<u64> {
        let mut removed = 0;
        for (project, found) in self.files.older_than(age).await? {
            let ids: Vec<ArtifactId> = found.iter().filter_map(|file| file.artifact).collect();
            let known = self.store.known_artifacts(&self.store.operator(), &ids).await;
            let known = known.map_err(std::io::Error::other)?;
            for file in found {
                if file.artifact.is_none_or(|id| !known.contains(&id)) {
                    self.files.remove_file(&project, &file.name).await?;
                    removed += 1;
                }
            }
        }
        Ok(removed)
    }
}
