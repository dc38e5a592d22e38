//! Certificates that the operator trusts.

use std::fs;
use std::path::Path;

use anyhow::Context;

/// The certificates of an operator's file.
pub(crate) fn extra_roots(path: &Path) -> anyhow::Result<String> {
    let extra = fs::read_to_string(path)
        .with_context(|| format!("could not read the certificates in `{}`", path.display()))?;
    anyhow::ensure!(extra.contains("-----BEGIN CERTIFICATE-----"), "`{}` has no certificate", path.display());
    Ok(extra)
}
