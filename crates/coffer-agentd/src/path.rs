//! Resolves the paths that clients send.

use std::path::{Component, Path, PathBuf};

use crate::account::Account;

/// The kernel's limit; longer paths are refused before they are copied.
const PATH_LIMIT: usize = 4096;

/// Resolves `path` for `account`: empty means `workdir` or the home, relative is below the home.
///
/// Purely textual, so that a missing file still resolves and `..` cannot depend on links.
pub(crate) fn resolve(path: &str, account: &Account, workdir: Option<&str>) -> Result<PathBuf, String> {
    if path.len() > PATH_LIMIT {
        return Err("path is too long".to_owned());
    }
    let path = match (path, workdir) {
        ("", Some(workdir)) => workdir,
        (path, _) => path,
    };
    let path = match path.strip_prefix('~') {
        Some("") => account.home.clone(),
        Some(rest) if rest.starts_with('/') => account.home.join(rest.trim_start_matches('/')),
        Some(_) => return Err(format!("cannot expand user-specific home dir in '{path}'")),
        None => account.home.join(path),
    };
    let path = clean(&path);
    // Checked last: homes and working directories do not come from the request.
    if path.as_os_str().as_encoded_bytes().contains(&0) {
        return Err("path contains invalid characters".to_owned());
    }
    Ok(path)
}

/// Drops `.` and applies `..` without reading the disk.
pub(crate) fn clean(path: &Path) -> PathBuf {
    let mut cleaned = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => cleaned.push(name),
            Component::ParentDir => {
                cleaned.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    cleaned
}

/// The last component, or `/` for the root itself.
pub(crate) fn base_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_resolve_as_a_client_expects() {
        let account =
            Account { name: "user".into(), uid: 1, gid: 1, home: "/home/user".into(), groups: vec![] };
        let cases = [
            ("", None, Ok("/home/user")),
            ("", Some("/code"), Ok("/code")),
            ("", Some("project"), Ok("/home/user/project")),
            ("a/b", Some("/code"), Ok("/home/user/a/b")),
            ("~", None, Ok("/home/user")),
            ("~/a//b/", None, Ok("/home/user/a/b")),
            ("/etc/../tmp/./x", None, Ok("/tmp/x")),
            ("../../../../x", None, Ok("/x")),
            ("/", None, Ok("/")),
            ("~root/x", None, Err(())),
            ("a\0b", None, Err(())),
            ("", Some("/code\0"), Err(())),
        ];
        for (path, workdir, expected) in cases {
            assert_eq!(
                resolve(path, &account, workdir).map_err(drop),
                expected.map(PathBuf::from),
                "{path:?}"
            );
        }
    }

    #[test]
    fn the_root_is_its_own_name() {
        assert_eq!(base_name(Path::new("/")), "/");
        assert_eq!(base_name(Path::new("/a/b.txt")), "b.txt");
    }
}
