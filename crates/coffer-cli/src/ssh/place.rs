//! Keys and configuration of SSH, below the user's configuration directory: `ssh/config`, and for each profile a directory
//! with the key that `ssh` shows, the key that the proxy shows, and the list of hosts that has the latter.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use coffer_ssh::{KeyPair, PublicKey};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::context::Chosen;
use crate::failure::Failure;
use crate::profile;

/// What may be in the name of a directory as it is.
const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_');
/// For a server that the environment names.
const ENVIRONMENT: &str = "environment";
const PROFILES: &str = "profiles";
const IDENTITY: &str = "id_ed25519";
const HOST_KEY: &str = "host_ed25519";
const KNOWN_HOSTS: &str = "known_hosts";
/// Sandboxes that are listed by name, one on each line.
const LISTED: &str = "hosts";
const CONFIG: &str = "config";
/// From version 10.1 on, about an exchange of keys that a quantum computer could break.
const NO_WARNING: &str = "WarnWeakCrypto no";
/// What the host is called in the list of known ones, whatever the sandbox.
const ALIAS: &str = "coffer";
/// The end of every host name; what is before names the sandbox.
pub(super) const DOMAIN: &str = ".coffer";
/// The user that stands for the template's own.
pub(super) const ANY_USER: &str = "sandbox";

/// Whether ssh takes it for a host, and as nothing else.
pub(super) fn is_host_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !name.is_empty() && !name.starts_with(['-', '.']) && name.bytes().all(plain)
}

/// The keys of one profile, or of the environment.
#[derive(Debug)]
pub(super) struct Place {
    ssh: PathBuf,
    directory: PathBuf,
    profile: Option<String>,
    /// Words that make the proxy choose the same server.
    choice: Vec<String>,
}

impl Place {
    /// Where they are.
    pub(super) fn of(profile: Option<&str>) -> Result<Self, Failure> {
        let ssh = profile::directory()?.join("ssh");
        let directory = match profile {
            Some(name) => ssh.join(PROFILES).join(utf8_percent_encode(name, &PLAIN).to_string()),
            None => ssh.join(ENVIRONMENT),
        };
        let choice = profile.map(|name| vec!["--profile".to_string(), name.to_string()]).unwrap_or_default();
        Ok(Self { ssh, directory, profile: profile.map(str::to_string), choice })
    }

    /// Makes what is missing, for the server that a verb would use.
    pub(super) fn ready(chosen: &Chosen, url: Option<&str>) -> Result<Self, Failure> {
        let mut place = Self::of(chosen.profile.as_deref())?;
        if let Some(url) = url {
            place.choice = vec!["--url".into(), url.into()];
        }
        let failed = |error: std::io::Error| {
            Failure::new(format!("could not write below `{}`: {error}", place.directory.display()))
        };
        std::fs::create_dir_all(&place.directory).map_err(failed)?;
        let key = place.key_or_new(IDENTITY)?;
        let host = place.key_or_new(HOST_KEY)?;
        let public = format!("{} coffer\n", key.public().line());
        place.store(&place.directory.join(format!("{IDENTITY}.pub")), &public)?;
        place.store(&place.directory.join(KNOWN_HOSTS), &format!("{ALIAS} {}\n", host.public().line()))?;
        Ok(place)
    }

    /// What the proxy shows, and whom it lets in.
    pub(super) fn keys(&self) -> Result<(KeyPair, PublicKey), Failure> {
        let key = self.key(IDENTITY)?.ok_or_else(|| self.missing())?;
        Ok((self.key(HOST_KEY)?.ok_or_else(|| self.missing())?, key.public()))
    }

    fn missing(&self) -> Failure {
        let message = format!("there are no SSH keys in `{}`", self.directory.display());
        Failure::new(message).hint("`coffer ssh-config --write` makes them")
    }

    fn key(&self, name: &str) -> Result<Option<KeyPair>, Failure> {
        let path = self.directory.join(name);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Failure::new(format!("could not read `{}`: {error}", path.display()))),
        };
        profile::refuse_if_shared(&path)?;
        let bad = |error| {
            Failure::new(format!("`{}`: {error}", path.display()))
                .hint("delete it; the next call makes another")
        };
        KeyPair::from_openssh(&text).map(Some).map_err(bad)
    }

    /// Two that start at once keep the same key: the first one's.
    fn key_or_new(&self, name: &str) -> Result<KeyPair, Failure> {
        if let Some(key) = self.key(name)? {
            return Ok(key);
        }
        let key = KeyPair::generate().map_err(|_| Failure::new("the system has no random numbers"))?;
        let path = self.directory.join(name);
        match draft(&self.directory, &key.to_openssh("coffer"))?.persist_noclobber(&path) {
            Ok(_) => Ok(key),
            Err(error) if error.error.kind() == std::io::ErrorKind::AlreadyExists => {
                self.key(name)?.ok_or_else(|| self.missing())
            }
            Err(error) => Err(could_not_write(&path, &error.error)),
        }
    }

    /// Replaces a file at once, if it has another text.
    fn store(&self, path: &Path, text: &str) -> Result<(), Failure> {
        if std::fs::read_to_string(path).is_ok_and(|found| found == text) {
            return Ok(());
        }
        let parent = path.parent().unwrap_or(&self.ssh);
        draft(parent, text)?.persist(path).map_err(|error| could_not_write(path, &error.error))?;
        Ok(())
    }

    /// Lines of OpenSSH's configuration.
    pub(super) fn options(&self, user: &str) -> Result<Vec<String>, Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::new(format!("could not find this program: {error}")))?;
        let file = |name: &str| quoted_path(&self.directory.join(name));
        let mut proxy = vec![shell_word(&program.display().to_string()), "ssh-proxy".into()];
        proxy.extend(self.choice.iter().map(|word| shell_word(word)));
        // Quoted too: older versions of ssh take any text for a host name, and a shell reads this line.
        let proxy = format!("{} {}", proxy.join(" ").replace('%', "%%"), shell_word("%n"));
        let mut lines = vec![
            format!("ProxyCommand {proxy}"),
            format!("User {user}"),
            format!("IdentityFile {}", file(IDENTITY)?),
            "IdentitiesOnly yes".into(),
            "IdentityAgent none".into(),
            "PreferredAuthentications publickey".into(),
            format!("UserKnownHostsFile {}", file(KNOWN_HOSTS)?),
            format!("HostKeyAlias {ALIAS}"),
            "StrictHostKeyChecking yes".into(),
            "HostKeyAlgorithms ssh-ed25519".into(),
            "KexAlgorithms curve25519-sha256".into(),
            "Ciphers chacha20-poly1305@openssh.com".into(),
            "ForwardAgent no".into(),
            "ForwardX11 no".into(),
        ];
        // The pipe stays on this machine; what leaves it is the API's TLS. Older versions refuse a file with this line.
        if ssh_takes(NO_WARNING) {
            lines.push(NO_WARNING.into());
        }
        Ok(lines)
    }

    /// The part of a configuration for this profile. The usual one has the short names too.
    pub(super) fn block(&self, listed: &[String], is_usual: bool) -> Result<String, Failure> {
        let mut text = String::new();
        let whose = self
            .profile
            .as_ref()
            .map_or("the server in the environment".into(), |name| format!("profile {name}"));
        let _never = writeln!(text, "# Sandboxes of {whose}");
        let middle = self.profile.as_ref().map(|name| format!(".{}", utf8_percent_encode(name, &PLAIN)));
        let mut names = Vec::new();
        for name in listed {
            if is_usual {
                names.push(format!("{name}{DOMAIN}"));
            } else if let Some(middle) = &middle {
                names.push(format!("{name}{middle}{DOMAIN}"));
            }
        }
        names.extend(middle.map(|middle| format!("*{middle}{DOMAIN}")));
        if is_usual {
            names.push(format!("*{DOMAIN}"));
        }
        // No name may end the quotes around it in the proxy's line.
        let _never = writeln!(text, "Host {} \"!*'*\" \"!*`*\"", names.join(" "));
        for line in self.options(ANY_USER)? {
            let _never = writeln!(text, "  {line}");
        }
        Ok(text)
    }

    /// Writes the configuration of all profiles that have keys, this one as the usual one, and includes it in the user's.
    pub(super) fn write(&self, list: Option<&str>) -> Result<PathBuf, Failure> {
        if let Some(name) = list {
            let mut listed = self.listed();
            if !listed.iter().any(|one| one == name) {
                listed.push(name.to_string());
                self.store(&self.directory.join(LISTED), &format!("{}\n", listed.join("\n")))?;
            }
        }
        let mut text = "# Written by `coffer ssh-config --write`; the next one replaces it.\n\n".to_string();
        // OpenSSH takes the first value that fits: those with longer names come first.
        for place in self.others()? {
            text.push_str(&place.block(&place.listed(), false)?);
            text.push('\n');
        }
        text.push_str(&self.block(&self.listed(), true)?);
        let path = self.ssh.join(CONFIG);
        self.store(&path, &text)?;
        include(&path)?;
        Ok(path)
    }

    fn listed(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.directory.join(LISTED)).unwrap_or_default();
        text.lines().filter(|name| is_host_name(name)).map(str::to_string).collect()
    }

    /// Other profiles that have keys.
    fn others(&self) -> Result<Vec<Self>, Failure> {
        let mut found = Vec::new();
        for name in profile::Profiles::load()?.profiles.into_keys() {
            let place = Self::of(Some(&name))?;
            if self.profile.as_ref() != Some(&name) && place.directory.join(IDENTITY).exists() {
                found.push(place);
            }
        }
        Ok(found)
    }
}

/// A file with this text that only its owner can read, not yet in its place.
fn draft(directory: &Path, text: &str) -> Result<tempfile::NamedTempFile, Failure> {
    let write = || {
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        Ok(file)
    };
    write().map_err(|error| could_not_write(directory, &error))
}

fn could_not_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("could not write `{}`: {error}", path.display()))
}

/// Whether the `ssh` of this machine knows an option.
fn ssh_takes(line: &str) -> bool {
    let mut command = std::process::Command::new("ssh");
    command.args(["-F", "none", "-G", "-o", line, ALIAS]).stdin(std::process::Stdio::null());
    command.output().is_ok_and(|output| output.status.success())
}

/// A path as OpenSSH's configuration has it.
fn quoted_path(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().filter(|text| !text.contains(['"', '\n']));
    let text = text.ok_or_else(|| {
        Failure::new(format!("`{}` cannot be in a configuration of OpenSSH", path.display()))
            .hint("COFFER_CONFIG_DIR names another directory")
    })?;
    // Windows' own separator is an escape there; both work as separators.
    let text = if cfg!(windows) { text.replace('\\', "/") } else { text.to_string() };
    Ok(format!("\"{}\"", text.replace('%', "%%")))
}

/// A word for the shell that runs the proxy.
fn shell_word(word: &str) -> String {
    if cfg!(windows) { format!("\"{word}\"") } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

/// Puts an `Include` at the beginning of the user's configuration: further down it would belong to a host.
fn include(path: &Path) -> Result<(), Failure> {
    let home = std::env::var_os(if cfg!(windows) { "USERPROFILE" } else { "HOME" }).map(PathBuf::from);
    let home = home.ok_or_else(|| Failure::new("no home directory: HOME is not set"))?;
    let directory = home.join(".ssh");
    let file = directory.join("config");
    let line = format!("Include {}", quoted_path(path)?);
    let before = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(Failure::new(format!("could not read `{}`: {error}", file.display()))),
    };
    if before.lines().any(|one| one.trim() == line) {
        return Ok(());
    }
    if !directory.exists() {
        std::fs::create_dir_all(&directory).map_err(|error| could_not_write(&directory, &error))?;
        only_for_owner(&directory)?;
    }
    // A link, as people have who keep their files elsewhere, stays one.
    let file = std::fs::canonicalize(&file).unwrap_or(file);
    let gap = if before.is_empty() { "" } else { "\n" };
    let text = format!("# Sandboxes of Cofferdam\n{line}\n{gap}{before}");
    let parent = file.parent().unwrap_or(&directory);
    draft(parent, &text)?.persist(&file).map_err(|error| could_not_write(&file, &error.error))?;
    Ok(())
}

#[cfg(unix)]
fn only_for_owner(directory: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700))?)
}

#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "as on Unix")]
fn only_for_owner(_: &Path) -> Result<(), Failure> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_become_hosts() {
        assert!(is_host_name("box") && is_host_name("01abc-x_y.z"));
        for bad in ["", "-oProxyCommand=x", ".", "a b", "a'b", "$(x)", "a/b", "ä"] {
            assert!(!is_host_name(bad), "{bad}");
        }
    }

    fn place(directory: &Path, profile: Option<&str>) -> Place {
        let (ssh, profile) = (directory.to_path_buf(), profile.map(str::to_string));
        Place {
            ssh,
            directory: directory.join("own"),
            profile,
            choice: vec!["--profile".into(), "a b".into()],
        }
    }

    #[test]
    fn keys_are_made_once_and_only_their_owner_reads_them() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path(), None);
        assert!(place.keys().unwrap_err().hint.unwrap().contains("ssh-config"));
        std::fs::create_dir(&place.directory).unwrap();
        let first = place.key_or_new(IDENTITY).unwrap().public();
        assert_eq!(place.key_or_new(IDENTITY).unwrap().public(), first);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let path = place.directory.join(IDENTITY);
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
            assert!(place.key(IDENTITY).is_err());
        }
    }

    #[cfg(unix)]
    #[test]
    fn words_and_paths_stay_what_they_are() {
        assert_eq!(shell_word("a'b $(x)"), r"'a'\''b $(x)'");
        assert_eq!(quoted_path(Path::new("/a b/50%")).unwrap(), "\"/a b/50%%\"");
        assert!(quoted_path(Path::new("/a\"b")).is_err());
        let dir = tempfile::tempdir().unwrap();
        let block = place(dir.path(), Some("work")).block(&["box".into()], false).unwrap();
        assert!(block.contains("\nHost box.work.coffer *.work.coffer \"!*'*\""), "{block}");
        assert!(block.contains("ssh-proxy '--profile' 'a b' '%n'\n"), "{block}");
        let usual = place(dir.path(), Some("work")).block(&["box".into()], true).unwrap();
        assert!(usual.contains("\nHost box.coffer *.work.coffer *.coffer "), "{usual}");
    }
}
