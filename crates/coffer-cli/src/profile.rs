//! Which server, with which key.
//!
//! The environment wins over profiles, and a key is only ever sent to the URL that it came with.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::failure::{Failure, NOT_ALLOWED};

/// The server that `coffer up` starts by default.
pub(crate) const LOCAL: &str = "http://127.0.0.1:3000";
const FILE: &str = "profiles.toml";

/// The stored profiles.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profiles {
    pub(crate) current: Option<String>,
    #[serde(default)]
    pub(crate) profiles: BTreeMap<String, Profile>,
}

/// A server and a key for it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profile {
    pub(crate) url: String,
    pub(crate) key: String,
}

/// Without the key.
impl std::fmt::Debug for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Profile").field("url", &self.url).finish_non_exhaustive()
    }
}

/// The user's directory for configuration: `COFFER_CONFIG_DIR`, or `coffer` in the usual place of the system.
pub(crate) fn directory() -> Result<PathBuf, Failure> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = set("COFFER_CONFIG_DIR") {
        return Ok(dir);
    }
    let home = || set("HOME");
    let found = if cfg!(windows) {
        set("APPDATA")
    } else if cfg!(target_os = "macos") {
        set("XDG_CONFIG_HOME").or_else(|| Some(home()?.join("Library/Application Support")))
    } else {
        set("XDG_CONFIG_HOME").or_else(|| Some(home()?.join(".config")))
    };
    let none = || Failure::new("no directory for profiles: HOME is not set").hint("set COFFER_CONFIG_DIR");
    Ok(found.ok_or_else(none)?.join("coffer"))
}

impl Profiles {
    pub(crate) fn load() -> Result<Self, Failure> {
        Self::read(&directory()?.join(FILE))
    }

    fn read(path: &Path) -> Result<Self, Failure> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(Failure::new(format!("could not read `{}`: {error}", path.display()))),
        };
        refuse_if_shared(path)?;
        toml::from_str(&text).map_err(|error| {
            // The error's excerpt could show a key.
            let place = error.span().map_or(0, |span| text[..span.start].lines().count());
            let message = format!("`{}` line {place}: {}", path.display(), error.message());
            Failure::new(message).hint("correct it, or delete it and run `coffer login`")
        })
    }

    /// Writes the file by rename, readable by its owner alone.
    pub(crate) fn store(&self) -> Result<PathBuf, Failure> {
        let directory = directory()?;
        let path = directory.join(FILE);
        let failed =
            |error: std::io::Error| Failure::new(format!("could not write `{}`: {error}", path.display()));
        std::fs::create_dir_all(&directory).map_err(failed)?;
        let text = toml::to_string(self).map_err(|error| Failure::new(error.to_string()))?;
        // Temporary files are created with mode 0600.
        let mut file = tempfile::NamedTempFile::new_in(&directory).map_err(failed)?;
        file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
        file.persist(&path).map_err(|error| failed(error.error))?;
        Ok(path)
    }
}

#[cfg(unix)]
pub(crate) fn refuse_if_shared(path: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(path)?.permissions().mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    let message = format!("other users can read the keys in `{}`", path.display());
    Err(Failure::new(message).hint(format!("chmod 600 '{}'", path.display())).exit(NOT_ALLOWED))
}

#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "as on Unix")]
pub(crate) fn refuse_if_shared(_: &Path) -> Result<(), Failure> {
    Ok(())
}

/// A server to talk to, and where it was named.
pub(crate) struct Target {
    pub(crate) url: String,
    pub(crate) key: Option<String>,
    /// For people: `COFFER_URL`, `profile default`.
    pub(crate) source: String,
    /// The profile that it came from.
    pub(crate) profile: Option<String>,
}

/// Decides which server is meant.
pub(crate) fn choose(url: Option<&str>, profile: Option<&str>) -> Result<Target, Failure> {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let key = || set("COFFER_API_KEY").or_else(|| set("E2B_API_KEY"));
    if let Some(url) = url {
        return Ok(Target { url: url.to_string(), key: key(), source: "--url".into(), profile: None });
    }
    if let Some(name) = profile {
        return named(&Profiles::load()?, name);
    }
    for (variable, key_variable) in [("COFFER_URL", "COFFER_API_KEY"), ("E2B_API_URL", "E2B_API_KEY")] {
        if let Some(url) = set(variable) {
            let key = set(key_variable).or_else(key);
            return Ok(Target { url, key, source: variable.into(), profile: None });
        }
    }
    // A key without a URL is for the server on this machine.
    if let Some(key) = key() {
        let source = "COFFER_API_KEY".into();
        return Ok(Target { url: LOCAL.into(), key: Some(key), source, profile: None });
    }
    let profiles = Profiles::load()?;
    match set("COFFER_PROFILE").or_else(|| profiles.current.clone()) {
        Some(name) => named(&profiles, &name),
        None => Ok(Target { url: LOCAL.into(), key: None, source: "default".into(), profile: None }),
    }
}

fn named(profiles: &Profiles, name: &str) -> Result<Target, Failure> {
    match profiles.profiles.get(name) {
        Some(Profile { url, key }) => {
            let (source, profile) = (format!("profile {name}"), Some(name.to_string()));
            Ok(Target { url: url.clone(), key: Some(key.clone()), source, profile })
        }
        None => {
            let known = profiles.profiles.keys().cloned().collect::<Vec<_>>().join(", ");
            let hint = if known.is_empty() {
                "`coffer login` creates one".into()
            } else {
                format!("known: {known}")
            };
            Err(Failure::usage(format!("profile '{name}' not found")).hint(hint))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_file_is_named_without_its_keys() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("profiles.toml");
        std::fs::write(&path, "[profiles.a]\nurl = \"x\"\nkey = \"canary\"\nother = 1\n").unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(Profiles::read(&path).unwrap_err().exit, NOT_ALLOWED);
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        let message = Profiles::read(&path).unwrap_err().message;
        assert!(message.contains("other") && !message.contains("canary"), "{message}");
    }
}
