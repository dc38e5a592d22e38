//! The files of the server's certificate.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use coffer_server::{Certificate, CertificateText};

use crate::config::Settings;

/// Where certificate and key are.
#[derive(Debug, Clone)]
pub(crate) struct CertificateFiles {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

impl CertificateFiles {
    pub(crate) fn of(settings: &Settings) -> Option<Self> {
        let (cert, key) = settings.tls.cert.clone().zip(settings.tls.key.clone())?;
        Some(Self { cert, key })
    }

    pub(crate) fn read(&self) -> anyhow::Result<CertificateText> {
        let text = |path: &Path| {
            std::fs::read_to_string(path).with_context(|| format!("could not read `{}`", path.display()))
        };
        Ok(CertificateText { certificates: text(&self.cert)?, key: text(&self.key)? })
    }

    /// Reads the files and checks that the server can use them.
    pub(crate) fn load(&self) -> anyhow::Result<CertificateText> {
        let text = self.read()?;
        self.check(&text)?;
        Ok(text)
    }

    pub(crate) fn check(&self, text: &CertificateText) -> anyhow::Result<Certificate> {
        let (cert, key) = (self.cert.display(), self.key.display());
        Certificate::parse(text)
            .with_context(|| format!("could not use the certificate `{cert}` with key `{key}`"))
    }
}
