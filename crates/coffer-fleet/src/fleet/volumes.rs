//! Creates, finds and deletes volumes, and finishes what a crash interrupted.
//!
//! The row is written first and deleted last. A crash in between leaves a row in state `creating` or
//! `deleting`, and the next reconciliation deletes both. A volume of the engine without a row is reported and
//! kept: it is data of users, and the row may be missing because a database was restored.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use coffer_core::sync::Mutex;
use coffer_core::{MountPath, VolumeId, VolumeName};
use coffer_engine::EngineError;
use coffer_store::{
    InsertedVolume, NewVolume, ProjectScope, VolumeDeletion, VolumeMount, VolumeRow, VolumeState,
};

use super::create::token;
use super::{Fleet, FleetError};
use coffer_core::chain;

/// How long to wait until the host has unmounted a volume of sandboxes that ended just now.
const UNMOUNTED_WITHIN: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(50);

/// A volume to mount; everything in it has been checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountWish {
    pub name: VolumeName,
    pub path: MountPath,
    pub read_only: bool,
}

impl From<VolumeMount> for MountWish {
    fn from(mount: VolumeMount) -> Self {
        Self { name: mount.name, path: mount.path, read_only: mount.read_only }
    }
}

/// Volumes that are being created or deleted, which reconciliation must not touch.
#[derive(Debug, Default)]
pub(super) struct Changing(Mutex<HashSet<VolumeId>>);

/// One of them, released on drop.
struct Change<'a> {
    all: &'a Changing,
    volume: VolumeId,
}

impl Changing {
    fn begin(&self, volume: VolumeId) -> Change<'_> {
        self.0.lock().insert(volume);
        Change { all: self, volume }
    }

    fn has(&self, volume: VolumeId) -> bool {
        self.0.lock().contains(&volume)
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.volume);
    }
}

impl Fleet {
    /// Creates a volume of a project, with this disk limit.
    pub async fn create_volume(
        self: &Arc<Self>,
        scope: ProjectScope,
        name: VolumeName,
        size_mib: u64,
    ) -> Result<VolumeRow, FleetError> {
        let place = self.host_calls.take(scope.project()).await?;
        let fleet = self.clone();
        self.carry_through(async move {
            let _place = place;
            if !fleet.engine.info().await?.capabilities.volumes {
                let what = "volumes, because its node is of an older version".to_string();
                return Err(EngineError::Unsupported(what).into());
            }
            let new = NewVolume { id: VolumeId::generate(), name: name.clone(), size_mib, token: token() };
            let id = new.id;
            let _change = fleet.volumes_changing.begin(id);
            match fleet.store.insert_volume(&scope, new).await? {
                InsertedVolume::New => {}
                InsertedVolume::NameTaken => return Err(FleetError::VolumeNameTaken(name.to_string())),
                InsertedVolume::OverQuota(over) => return Err(fleet.over_quota(scope.project(), over)),
            }
            let made = fleet.engine.create_volume(id, size_mib).await;
            let recorded = match made {
                Ok(()) => fleet.store.finish_volume(&fleet.store.operator(), id).await.map_err(Into::into),
                Err(error) => Err(FleetError::from(error)),
            };
            match recorded {
                Ok(Some(row)) => {
                    tracing::info!(volume.id = %id, "volume {id} created");
                    Ok(row)
                }
                Ok(None) => Err(FleetError::NoVolume(name.to_string())),
                Err(error) => {
                    // Nobody got its id.
                    fleet.drop_volume(id).await;
                    Err(error)
                }
            }
        })
        .await
    }

    /// Deletes a volume that no sandbox mounts. After the answer it cannot be found any more; if the host is
    /// away, it deletes the files soon after it returns.
    pub async fn delete_volume(
        self: &Arc<Self>,
        scope: ProjectScope,
        volume: VolumeId,
    ) -> Result<(), FleetError> {
        let unknown = || FleetError::NoVolume(volume.to_string());
        let found = self.store.volume(&scope, volume).await?.ok_or_else(unknown)?;
        self.volume_here(&found)?;
        let fleet = self.clone();
        self.carry_through(async move {
            let _place = fleet.ends.take(found.project).await;
            let _change = fleet.volumes_changing.begin(volume);
            match fleet.store.begin_volume_deletion(&scope, volume).await? {
                VolumeDeletion::Begun(_) => {}
                VolumeDeletion::NotFound => return Err(FleetError::NoVolume(volume.to_string())),
                VolumeDeletion::Mounted(users) => return Err(FleetError::VolumeMounted(users)),
            }
            fleet.drop_volume(volume).await;
            Ok(())
        })
        .await
    }

    /// Bytes in a volume; `None` if its host does not say.
    pub async fn volume_bytes(&self, row: &VolumeRow) -> Option<u64> {
        self.volume_here(row).ok()?;
        let _place = self.host_calls.take(row.project).await.ok()?;
        let listed = self.engine.volumes().await.ok()?;
        listed.into_iter().find(|info| info.volume == row.id).map(|info| info.used_bytes)
    }

    /// The volumes of a request, by name.
    pub(super) async fn find_volumes(
        &self,
        scope: &ProjectScope,
        wishes: &[MountWish],
    ) -> Result<Vec<VolumeMount>, FleetError> {
        let mut mounts = Vec::with_capacity(wishes.len());
        for MountWish { name, path, read_only } in wishes {
            let found = self.store.volume_called(scope, name).await?;
            let row = found.ok_or_else(|| FleetError::NoVolume(name.to_string()))?;
            self.volume_here(&row)?;
            let (path, read_only) = (path.clone(), *read_only);
            mounts.push(VolumeMount { volume: row.id, name: row.name, path, read_only });
        }
        Ok(mounts)
    }

    pub(super) fn volume_here(&self, row: &VolumeRow) -> Result<(), FleetError> {
        match (self.store.installation(), &row.installation) {
            (Some(own), Some(holder)) if own != *holder => {
                Err(FleetError::VolumeElsewhere(row.id, holder.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Deletes a volume in the engine and then its row. If that is not possible now, the row stays as
    /// `deleting`, and the next reconciliation continues.
    async fn drop_volume(&self, volume: VolumeId) {
        let operator = self.store.operator();
        // One that was being created is marked here.
        match self.store.begin_volume_deletion(&operator, volume).await {
            Ok(VolumeDeletion::Begun(_)) => {}
            Ok(VolumeDeletion::NotFound | VolumeDeletion::Mounted(_)) => return,
            Err(error) => return tracing::warn!("could not mark volume {volume}: {}", chain(&error)),
        }
        self.close_keeper(volume).await;
        let deadline = tokio::time::Instant::now() + UNMOUNTED_WITHIN;
        loop {
            match self.engine.delete_volume(volume).await {
                Ok(()) => break,
                // A sandbox that ended just now takes a moment to go.
                Err(EngineError::WrongState(_)) if tokio::time::Instant::now() < deadline => {
                    tokio::time::sleep(LOOK).await;
                }
                Err(error) => {
                    return tracing::warn!("the engine could not delete volume {volume} yet: {error}");
                }
            }
        }
        match self.store.remove_volume(&operator, volume).await {
            Ok(_) => tracing::info!(volume.id = %volume, "volume {volume} deleted"),
            Err(error) => tracing::warn!("could not delete the row of volume {volume}: {}", chain(&error)),
        }
    }

    /// Finishes interrupted work, and reports differences that only people can resolve.
    pub(super) async fn reconcile_volumes(&self) -> Result<(), FleetError> {
        let rows = self.store.all_volumes(&self.store.operator()).await?;
        // Without any, an older node is not asked.
        if rows.is_empty() || !self.engine.info().await?.capabilities.volumes {
            return Ok(());
        }
        let listed: HashSet<VolumeId> =
            self.engine.volumes().await?.into_iter().map(|info| info.volume).collect();
        for row in &rows {
            match row.state {
                _ if self.volumes_changing.has(row.id) => {}
                VolumeState::Creating | VolumeState::Deleting => self.drop_volume(row.id).await,
                VolumeState::Ready if !listed.contains(&row.id) => {
                    tracing::error!(volume.id = %row.id, "volume {} is not on its host any more", row.id);
                }
                VolumeState::Ready => {}
            }
        }
        let known: HashSet<VolumeId> = rows.iter().map(|row| row.id).collect();
        for volume in listed.difference(&known).filter(|volume| !self.volumes_changing.has(**volume)) {
            tracing::warn!(volume.id = %volume, "the engine has volume {volume}, which is not on record: keeping it");
        }
        Ok(())
    }
}
