//! The certificate authority of this installation, and the authorities to trust outside.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use coffer_egress::AuthorityText;

use crate::data_dir::DataDir;
use crate::roots::extra_roots;

/// Where distributions keep the certificates of public authorities.
const BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];

/// The authority of an earlier start, or a new one. Its key stays with root, and egress gets it by pipe.
pub(super) fn load(dir: &DataDir) -> anyhow::Result<AuthorityText> {
    let (certificate, key) = (dir.authority_file(), dir.authority_key_file());
    if let (Ok(certificate), Ok(key)) = (fs::read_to_string(&certificate), fs::read_to_string(&key)) {
        return Ok(AuthorityText { certificate, key });
    }
    let made =
        AuthorityText::generate().context("could not create this installation's certificate authority")?;
    // Write the key first: a certificate without a key is replaced.
    dir.write_secret(&key, &made.key)?;
    dir.write_secret(&certificate, &made.certificate)?;
    Ok(made)
}

/// The certificates to trust, as PEM: the machine's own, and those of an operator's file.
pub(super) fn roots(extra: Option<&Path>) -> anyhow::Result<String> {
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
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn an_authority_is_made_once_and_only_root_reads_its_key() {
        let temp = tempfile::tempdir().unwrap();
        let dir = DataDir::open(temp.path()).unwrap();
        let made = load(&dir).unwrap();
        let again = load(&dir).unwrap();
        assert_eq!((&made.certificate, &made.key), (&again.certificate, &again.key));
        let mode = fs::metadata(dir.authority_key_file()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::remove_file(dir.authority_key_file()).unwrap();
        assert_ne!(load(&dir).unwrap().key, made.key);
    }

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
