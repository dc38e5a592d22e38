//! Images from registries and from uploaded archives: fetched here, unpacked in a sandbox, each layer cached.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use coffer_core::{BuildLogLevel, ProjectId, SnapshotPurpose, TemplateDefaults, chain};
use coffer_image::archive::{self, Import};
use coffer_image::{Credentials, Fetch, Image, ImageError, ImageRef, Platform, Quota, ServedBy};
use coffer_store::{Layer, Reservation, Store, TemplateFiles};
use coffer_wire::agentd::{Unpack, Unpacked};
use serde::Deserialize;
use tokio::fs::File;

use crate::key::Key;
use crate::log::BuildLog;
use crate::run::{Attempt, Unfinished, at_base, transient};
use crate::source::{Base, Begin};
use crate::workplace::{ADD_USER, StepError, Workplace};

/// The template of the host in which images are unpacked.
const SCRATCH: &str = "scratch";
/// How often a download reports.
const REPORT_EVERY: Duration = Duration::from_secs(2);
/// The user of sandboxes, as in E2B's images.
const USER: &str = "user";

/// Credentials as E2B's clients send them.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Login {
    Registry {
        username: String,
        password: String,
    },
    Aws {
        #[serde(rename = "awsAccessKeyId")]
        key_id: String,
        #[serde(rename = "awsSecretAccessKey")]
        secret: String,
        #[serde(rename = "awsRegion")]
        region: String,
    },
    Gcp {
        #[serde(rename = "serviceAccountJson")]
        json: serde_json::Value,
    },
}

/// Reads the credentials of a build.
fn credentials(text: &str) -> Result<Credentials, String> {
    // Without the value, which is secret.
    let login: Login = serde_json::from_str(text)
        .map_err(|_| "fromImageRegistry has an unknown kind of credentials".to_string())?;
    let read = match login {
        Login::Registry { username, password } => Credentials::login(&username, &password),
        Login::Aws { key_id, secret, region } => Credentials::aws(&key_id, &secret, &region),
        Login::Gcp { json } => {
            Credentials::gcp(&json.as_str().map_or_else(|| json.to_string(), ToString::to_string))
        }
    };
    read.map_err(|error| error.to_string())
}

/// Counts downloaded layers in the project's quota until they are unpacked.
struct Reserve {
    store: Store,
    project: ProjectId,
    held: tokio::sync::Mutex<Vec<Reservation>>,
}

#[async_trait]
impl Quota for Reserve {
    async fn reserve(&self, bytes: u64) -> Result<(), String> {
        let held =
            self.store.reserve_storage(self.project, bytes).await.map_err(|error| error.to_string())?;
        self.held.lock().await.push(held);
        Ok(())
    }
}

fn failed(error: &ImageError) -> StepError {
    let text = chain(error);
    if error.is_transient() { StepError::Transient(text) } else { StepError::Failed(text) }
}

impl Attempt<'_> {
    /// The image of that name, unpacked.
    pub(crate) async fn image_base(&self, name: &str, log: &BuildLog) -> Result<Base, Unfinished> {
        let reference: ImageRef =
            name.parse().map_err(|error| at_base(StepError::Failed(format!("image '{name}': {error}"))))?;
        let login = self.build.registry.as_deref().map(credentials).transpose();
        let login = login.map_err(|why| at_base(StepError::Failed(why)))?;
        log.info(format!("[base] looking for image {reference}")).await;
        let image = self.builds.registry.resolve(&reference, login.as_ref(), &self.platform()?).await;
        let image = image.map_err(|error| at_base(failed(&error)))?;
        for skipped in &image.skipped {
            log.add(BuildLogLevel::Warn, format!("[base] {skipped}")).await;
        }
        let note = match &image.served_by {
            ServedBy::Mirror(host) => format!("image {reference}@{} from mirror {host}", image.digest),
            _ => format!("image {reference}@{}", image.digest),
        };
        self.unpacked(&image, login.as_ref(), note, log).await
    }

    /// The image in an uploaded archive, unpacked.
    pub(crate) async fn archive_base(
        &self,
        files: &TemplateFiles,
        log: &BuildLog,
    ) -> Result<Base, Unfinished> {
        log.info(format!("[base] reading the archive {}", files.hash)).await;
        let (project, quota) = (self.project(), self.reserve());
        let order = Import {
            project: &project,
            name: None,
            platform: &self.platform()?,
            quota: &quota,
            progress: &|_, _| {},
        };
        // Another build of the same archive would remove the layers that this one unpacks.
        let turn = self.builds.imports.lock().entry(files.project).or_default().clone();
        let _turn = turn.lock().await;
        let path = self.builds.files.path(files.project, &files.sha256);
        let image = archive::import(&path, &self.builds.blobs, &order).await;
        let image = image.map_err(|error| at_base(failed(&error)))?;
        let name = image.reference.as_ref().map_or(String::new(), |name| format!(" {name}"));
        let note = format!("image{name} {} from the archive {}", image.digest, files.hash);
        let base = self.unpacked(&image, None, note, log).await;
        self.remove_blobs(&image).await;
        base
    }

    /// The platform of the build's image.
    fn platform(&self) -> Result<Platform, Unfinished> {
        let Some(platform) = &self.build.plan.platform else { return Ok(Platform::host()) };
        let bad = |error| at_base(StepError::Failed(format!("platform '{platform}': {error}")));
        platform.parse().map_err(bad)
    }

    /// Unpacks an image whose layers are not cached yet.
    async fn unpacked(
        &self,
        image: &Image,
        login: Option<&Credentials>,
        note: String,
        log: &BuildLog,
    ) -> Result<Base, Unfinished> {
        let keys = keys(image);
        let cached = self.cached(&keys).await?;
        let base = |layer: &Layer| Base {
            begin: Begin::Snapshot(layer.snapshot),
            identity: format!("image/{}", keys[keys.len() - 1].as_str()),
            note: note.clone(),
        };
        if let Some((done, layer)) = &cached
            && *done + 1 == keys.len()
        {
            return Ok(base(layer));
        }
        let scratch = Base {
            begin: Begin::Template(SCRATCH.to_string()),
            identity: SCRATCH.to_string(),
            note: String::new(),
        };
        let done = cached.as_ref().map_or(0, |(done, _)| *done);
        let mut place = self.open(&scratch, cached.map(|(_, layer)| layer)).await?;
        let unpacked = self.unpack_image(image, login, &keys, done, &mut place, log).await;
        place.destroy().await;
        let layer = unpacked?;
        self.remove_blobs(image).await;
        Ok(base(&layer))
    }

    /// Removes downloaded layers: they are in snapshots now.
    async fn remove_blobs(&self, image: &Image) {
        for layer in &image.layers {
            if let Err(error) = self.builds.blobs.remove(&self.project(), &layer.digest).await {
                tracing::warn!("could not remove a layer that is unpacked: {}", chain(&error));
            }
        }
    }

    fn project(&self) -> String {
        self.build.row.project.to_string()
    }

    fn reserve(&self) -> Reserve {
        Reserve {
            store: self.builds.store.clone(),
            project: self.build.row.project,
            held: Default::default(),
        }
    }

    async fn unpack_image(
        &self,
        image: &Image,
        login: Option<&Credentials>,
        keys: &[Key],
        done: usize,
        place: &mut Workplace,
        log: &BuildLog,
    ) -> Result<Layer, Unfinished> {
        let quota = self.reserve();
        let count = image.layers.len();
        for (index, layer) in image.layers.iter().enumerate().skip(done) {
            let name = format!("[base] layer {}/{count}", index + 1);
            let path = {
                let received = AtomicU64::new(0);
                let progress = |bytes: u64, _: u64| received.store(bytes, Ordering::Relaxed);
                let project = self.project();
                let order = Fetch {
                    project: &project,
                    image,
                    layer,
                    credentials: login,
                    quota: &quota,
                    progress: &progress,
                };
                let fetch = self.builds.blobs.fetch(&self.builds.registry, &order);
                tokio::pin!(fetch);
                loop {
                    tokio::select! {
                        fetched = &mut fetch => break fetched.map_err(|error| at_base(failed(&error)))?,
                        () = tokio::time::sleep(REPORT_EVERY) => {
                            let received = received.load(Ordering::Relaxed);
                            log.info(format!("{name}: {} of {}", mib(received), mib(layer.size))).await;
                        }
                    }
                }
            };
            log.info(format!("{name}: unpacking {}", mib(layer.size))).await;
            let archive = File::open(&path).await;
            let archive = archive.map_err(|error| transient(format!("could not read a layer: {error}")))?;
            let unpacked = place.unpack(&Unpack::Layer, archive).await.map_err(at_base)?;
            for warning in warnings(&unpacked) {
                log.add(BuildLogLevel::Warn, format!("{name}: {warning}")).await;
            }
            let row = self.save(place, SnapshotPurpose::Layer, Some(false)).await;
            self.keep(&keys[index + 1], row.map_err(at_base)?.id, place).await?;
        }
        place.defaults = defaults(image);
        adopt(place, log).await.map_err(at_base)?;
        let row = self.save(place, SnapshotPurpose::Layer, Some(false)).await;
        let snapshot = row.map_err(at_base)?.id;
        let last = &keys[keys.len() - 1];
        self.keep(last, snapshot, place).await?;
        Ok(Layer { key: last.as_str().to_string(), snapshot, defaults: place.defaults.clone() })
    }
}

/// The key of nothing, of each layer, and of the finished image. By digests that were checked: a configuration
/// may claim other layers.
fn keys(image: &Image) -> Vec<Key> {
    let mut keys = vec![Key::of_base(SCRATCH)];
    for layer in &image.layers {
        let last = keys.last().expect("it begins with the empty root");
        keys.push(last.after(["layer", &layer.digest.to_string()]));
    }
    let last = keys.last().expect("it begins with the empty root");
    keys.push(last.after(["image", &image.digest.to_string()]));
    keys
}

/// What sandboxes of an image start with. The user and the directory are E2B's, not the image's.
fn defaults(image: &Image) -> TemplateDefaults {
    TemplateDefaults {
        user: USER.to_string(),
        workdir: Some(format!("/home/{USER}")),
        env: image.config.env.iter().cloned().collect(),
        start: None,
    }
}

/// Adds the user that sandboxes run as, with `sudo` if the image has it.
async fn adopt(place: &mut Workplace, log: &BuildLog) -> Result<(), StepError> {
    const SCRIPT: &str = "add_user \"$1\" || exit 1
        set -e
        mkdir -p \"/home/$1\" && chown \"$1\" \"/home/$1\"
        if [ -d /etc/sudoers.d ]; then
            echo \"$1 ALL=(ALL:ALL) NOPASSWD: ALL\" > /etc/sudoers.d/coffer && chmod 0440 /etc/sudoers.d/coffer
        fi";
    match place.root(&format!("{ADD_USER}\n{SCRIPT}"), &[USER]).await {
        Ok((true, _)) => {}
        Ok((false, why)) => {
            log.add(BuildLogLevel::Warn, format!("[base] could not add the user '{USER}': {why}")).await;
            (place.defaults.user, place.defaults.workdir) = ("root".to_string(), None);
        }
        Err(StepError::Failed(why)) => {
            log.add(
                BuildLogLevel::Warn,
                format!("[base] the image has no shell ({why}); steps cannot run in it"),
            )
            .await;
            (place.defaults.user, place.defaults.workdir) = ("root".to_string(), None);
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

fn warnings(unpacked: &Unpacked) -> Vec<String> {
    let Unpacked { squashed_ids, skipped_devices, skipped_xattrs, .. } = unpacked;
    [
        (*squashed_ids, "files have owners above 65535, and belong to nobody now"),
        (*skipped_devices, "device nodes were left out"),
        (*skipped_xattrs, "extended attributes were left out"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect()
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
