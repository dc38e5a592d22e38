//! Fuzz targets: parsers of hostile bytes, with the properties of their results.

use std::path::{Component, Path};

use crate::account::Account;

pub use crate::connect::fuzz_envelope as envelope;
pub use crate::files::fuzz_multipart as multipart;
pub use crate::unpack::fuzz_archive as archive;

/// Resolves a path, a home and a working directory that a client or a program inside chose.
pub fn path(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.split('\n');
    let (asked, workdir) = (lines.next().unwrap_or_default(), lines.next());
    // As in `/etc/passwd`: a home starts with a slash or is ignored.
    let home = format!("/{}", lines.next().unwrap_or("home/user"));
    let account = Account { name: "user".into(), uid: 1, gid: 1, home: home.into(), groups: vec![] };
    let Ok(path) = crate::path::resolve(asked, &account, workdir) else { return };
    let mut components = path.components();
    assert_eq!(components.next(), Some(Component::RootDir), "{path:?} is not absolute");
    assert!(components.all(|part| matches!(part, Component::Normal(_))), "{path:?} is not clean");
    assert!(!path.as_os_str().as_encoded_bytes().contains(&0), "{path:?} has a NUL");
    let again = path.to_str().expect("made of text");
    if again.len() <= 4096 {
        assert_eq!(
            crate::path::resolve(again, &account, None).as_deref(),
            Ok(Path::new(again)),
            "resolved twice"
        );
    }
    assert!(!crate::path::base_name(&path).is_empty());
}

#[cfg(test)]
#[path = "../../../fuzz/seeded.rs"]
mod seeded;

#[cfg(test)]
mod tests {
    use super::seeded;

    #[test]
    fn envelopes() {
        seeded::run("envelope", super::envelope);
    }

    #[test]
    fn paths() {
        seeded::run("path", super::path);
    }

    #[test]
    fn archives() {
        seeded::run("archive", super::archive);
    }

    #[test]
    fn forms() {
        seeded::run("multipart", super::multipart);
    }
}
