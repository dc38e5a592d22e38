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

/// Where distributions keep the certificates of public authorities.
const BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];

/// The certificates to trust, as PEM: the machine's own, and those of an operator's file.
pub(crate) fn roots(extra: Option<&Path>) -> anyhow::Result<String> {
    let mut roots = BUNDLES.iter().find_map(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    if let Some(path) = extra {
        roots.push('\n');
        roots.push_str(&extra_roots(path)?);
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coffer_egress::AuthorityText;

    #[test]
    fn certificates_of_an_operators_file_are_believed_too() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("extra.pem");
        fs::write(&path, "nothing").unwrap();
        assert!(roots(Some(&path)).is_err());
        let own = AuthorityText::generate().unwrap().certificate;
        fs::write(&path, &own).unwrap();
        assert!(roots(Some(&path)).unwrap().ends_with(&own));
    }
}
