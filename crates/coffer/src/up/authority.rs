//! The certificate authority of this installation.

use std::fs;

use anyhow::Context as _;
use coffer_egress::AuthorityText;

use crate::data_dir::DataDir;

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
}
