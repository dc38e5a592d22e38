//! What a build starts from: a template, a snapshot, or an image that is one of those under another name.

use coffer_core::{BuildSource, SnapshotId, TemplateRef};
use coffer_fleet::FleetError;
use coffer_store::{ProjectScope, StoreError, TemplateFiles};

use crate::Builds;

/// What the first sandbox of a build is created from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Begin {
    /// A template of the host.
    Template(String),
    Snapshot(SnapshotId),
    /// A finished template, as its users start it: with its service, and with memory if it has some.
    Finished(SnapshotId),
}

/// A base that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Base {
    pub(crate) begin: Begin,
    /// Differs whenever its content does.
    pub(crate) identity: String,
    /// Which name was served by what, for the log.
    pub(crate) note: String,
}

/// Where a base is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    Here(Base),
    /// An image that has to be pulled.
    InRegistry(String),
    /// An uploaded archive of an image.
    Archive(TemplateFiles),
}

/// Why there is no base.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoBase {
    /// The client's mistake.
    #[error("{0}")]
    Unknown(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Fleet(#[from] FleetError),
}

impl Builds {
    pub(crate) async fn find_base(
        &self,
        scope: &ProjectScope,
        source: &BuildSource,
    ) -> Result<Found, NoBase> {
        match source {
            BuildSource::Template(name) => self.find_template(scope, name).await.map(Found::Here),
            BuildSource::Archive(name) => {
                let files = self.store.template_files(scope.project(), name).await?;
                let unknown = || NoBase::Unknown(format!("archive '{name}' not found; upload it first"));
                files.map(Found::Archive).ok_or_else(unknown)
            }
            BuildSource::Image(name) => match self.images.serve(name) {
                Some(template) => {
                    let missing = |error| match error {
                        NoBase::Unknown(_) => NoBase::Unknown(format!(
                            "image '{name}' is served by template '{template}', which does not exist; \
                             hint: coffer template build {template}"
                        )),
                        error => error,
                    };
                    let base = self.find_template(scope, &template).await.map_err(missing)?;
                    Ok(Found::Here(Base {
                        note: format!("image '{name}' is served by {}", base.note),
                        ..base
                    }))
                }
                None => Ok(Found::InRegistry(name.clone())),
            },
        }
    }

    async fn find_template(&self, scope: &ProjectScope, name: &str) -> Result<Base, NoBase> {
        let unknown = || match self.fleet.is_shared(name) {
            true => NoBase::Unknown(format!(
                "template '{name}' of the catalogue is not built yet; hint: coffer template build {name}"
            )),
            false => NoBase::Unknown(format!("template '{name}' not found")),
        };
        let reference: TemplateRef = name.parse().map_err(|_| unknown())?;
        let plain =
            reference.namespace.is_none() && reference.tag.as_deref().is_none_or(|tag| tag == "default");
        if plain && let Some(host) = self.fleet.templates().await?.iter().find(|it| it.name == reference.name)
        {
            return Ok(Base {
                begin: Begin::Template(host.name.clone()),
                identity: format!("template/{}/{}", host.name, host.build),
                note: format!("template '{}' of the server, build {}", host.name, host.build),
            });
        }
        let base = self.fleet.base_called(scope, &reference, Some(false)).await?;
        let snapshot = base.ok_or_else(unknown)?.origin.snapshot;
        Ok(Base {
            begin: Begin::Snapshot(snapshot),
            identity: format!("snapshot/{snapshot}"),
            note: format!("template '{reference}', snapshot {snapshot}"),
        })
    }
}
