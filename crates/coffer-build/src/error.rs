//! Why a request about a template was refused.

use coffer_core::{Code, Refusal};
use coffer_fleet::FleetError;
use coffer_store::{OverQuota, StoreError, TemplateError};

use crate::dockerfile::BadDockerfile;
use crate::step::BadPlan;

/// Why a request about a template was refused.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("template '{0}' not found")]
    NotFound(String),
    /// It is a template of the host.
    #[error("template '{0}' belongs to the server")]
    HostTemplate(String),
    #[error("the name '{0}' belongs to a template of the server")]
    NameTaken(String),
    #[error("template '{0}' is not in the catalogue")]
    NotInCatalogue(String),
    /// The host has not built what it starts from.
    #[error("template '{name}' starts from '{from}', which is not built on this host")]
    NoSource { name: String, from: String },
    #[error("template '{name}' needs the file '{file}', which is not part of this program")]
    NotEmbedded { name: String, file: String },
    #[error("this build was already started")]
    AlreadyStarted,
    #[error(transparent)]
    BadPlan(#[from] BadPlan),
    #[error(transparent)]
    BadDockerfile(#[from] BadDockerfile),
    /// A build names files that the project does not have.
    #[error("the files '{0}' were not uploaded")]
    NoFiles(String),
    #[error("the upload link is unknown, was used, or has expired")]
    NoGrant,
    #[error("the files have more than {0} bytes")]
    TooLarge(u64),
    #[error("the upload ended too early: {0}")]
    Broken(String),
    #[error("the upload is too slow")]
    TooSlow,
    #[error("{0}")]
    OverQuota(OverQuota),
    #[error("could not save the files")]
    Disk(#[source] std::io::Error),
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Fleet(#[from] FleetError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl BuildError {
    /// The refusal of the request.
    pub fn explain(&self) -> Refusal {
        let text = self.to_string();
        match self {
            Self::NotFound(_) => {
                Refusal::new(Code::NotFound, text).hint("GET /api/v1/templates lists templates")
            }
            Self::NotInCatalogue(_) => {
                Refusal::new(Code::NotFound, text).hint("GET /api/v1/admin/catalogue lists it")
            }
            Self::NoSource { from, .. } => {
                Refusal::conflict(text).hint(format!("run `coffer template build {from}` on the host"))
            }
            Self::NotEmbedded { .. } => Refusal::new(Code::NotSupported, text),
            Self::HostTemplate(_) => Refusal::new(Code::Forbidden, text),
            Self::NameTaken(_) => Refusal::conflict(text).hint("choose another name"),
            Self::AlreadyStarted => Refusal::conflict(text).hint("request a new build"),
            Self::BadPlan(_) | Self::BadDockerfile(_) => Refusal::new(Code::Invalid, text),
            Self::NoFiles(_) => {
                Refusal::new(Code::Invalid, text).hint("upload them with POST /api/v1/template-files")
            }
            Self::NoGrant => Refusal::new(Code::Forbidden, text).hint("request a new link"),
            Self::TooLarge(_) => Refusal::new(Code::PayloadTooLarge, text),
            Self::Broken(_) | Self::TooSlow => Refusal::new(Code::Invalid, text),
            Self::OverQuota(over) => Refusal::new(Code::QuotaExceeded, over.to_string()),
            Self::Disk(_) => Refusal::new(Code::Unavailable, text),
            Self::Template(error) => explain_template(error),
            Self::Fleet(error) => error.explain(""),
            Self::Store(error) => error.into(),
        }
    }
}

fn explain_template(error: &TemplateError) -> Refusal {
    let text = error.to_string();
    match error {
        TemplateError::NotFound(_) | TemplateError::NoTag { .. } => Refusal::new(Code::NotFound, text),
        TemplateError::DefaultTag => Refusal::new(Code::BadRequest, text),
        TemplateError::TooMany => {
            Refusal::new(Code::QuotaExceeded, text).hint("delete templates that are not used")
        }
        TemplateError::Store(error) => error.into(),
    }
}
