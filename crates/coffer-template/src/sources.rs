//! Finds the distribution's own package sources of this host.
//!
//! Parses apt's two formats (one-line `*.list`, deb822 `*.sources`) and keeps the distribution's own entries:
//! third-party sources do not belong in a template. This program knows no mirror; either the host or the
//! person names one.

use std::fs;
use std::path::{Path, PathBuf};

/// Components of Debian and Ubuntu themselves. Third parties mostly use other names.
const COMPONENTS: [&str; 7] =
    ["main", "contrib", "non-free", "non-free-firmware", "restricted", "universe", "multiverse"];

/// Names that move from release to release.
const MOVING_SUITES: [&str; 5] = ["stable", "oldstable", "testing", "unstable", "sid"];

#[derive(Debug, thiserror::Error)]
pub enum SourcesError {
    #[error("`{0}` does not say which Debian or Ubuntu release this is")]
    UnknownRelease(PathBuf),
    #[error("apt's configuration under `{apt}` has no source for `{suite}` that is the distribution's own")]
    NoneOwn { apt: PathBuf, suite: String },
    #[error("`{0}` is not a mirror: use an address such as http://mirror/debian")]
    BadMirror(String),
    #[error("`{0}` is not a suite: use lower-case letters, digits and -")]
    BadSuite(String),
}

impl SourcesError {
    pub(super) fn hint(&self) -> &'static str {
        match self {
            Self::UnknownRelease(_) | Self::NoneOwn { .. } => {
                "name a mirror and a release with --mirror and --suite"
            }
            Self::BadMirror(_) | Self::BadSuite(_) => "correct --mirror or --suite",
        }
    }
}

/// How a source's signature is checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Keyring {
    /// The keys that apt trusts by default.
    Default,
    File(PathBuf),
    /// An armoured key in the source itself.
    Inline(String),
}

/// One archive, one suite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) uri: String,
    pub(super) suite: String,
    pub(super) components: Vec<String>,
    pub(super) keyring: Keyring,
}

impl Source {
    /// As a line of `sources.list`, checked with `keyring`.
    pub(super) fn line(&self, keyring: Option<&Path>) -> String {
        let option = keyring.map(|path| format!("[signed-by={}] ", path.display())).unwrap_or_default();
        format!("deb {option}{} {} {}\n", self.uri, self.suite, self.components.join(" "))
    }

    /// As a line that may be visible inside: without the keyring's path or a password in the address.
    pub(super) fn public_line(&self) -> String {
        let uri = match self.uri.split_once("://") {
            Some((scheme, rest)) => {
                let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                let host = authority.rsplit('@').next().unwrap_or(authority);
                format!("{scheme}://{host}{path}")
            }
            None => self.uri.clone(),
        };
        Self { uri, ..self.clone() }.line(None)
    }
}

/// Debian or Ubuntu, and which one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Release {
    /// `debian` or `ubuntu`, also for what derives from them.
    pub(super) family: &'static str,
    pub(super) codename: String,
}

impl Release {
    pub(super) fn of_host(root: &Path) -> Result<Self, SourcesError> {
        let path = root.join("etc/os-release");
        let text = fs::read_to_string(&path).unwrap_or_default();
        Self::parse(&text).ok_or(SourcesError::UnknownRelease(path))
    }

    fn parse(os_release: &str) -> Option<Self> {
        let field = |name: &str| {
            let mut lines = os_release.lines().filter_map(|line| line.split_once('='));
            let (_, value) = lines.find(|(key, _)| *key == name)?;
            Some(value.trim().trim_matches(['"', '\'']).to_string()).filter(|value| !value.is_empty())
        };
        let kin = format!("{} {}", field("ID")?, field("ID_LIKE").unwrap_or_default());
        // Ubuntu first: its derivatives often name both.
        let family = ["ubuntu", "debian"].into_iter().find(|id| kin.split(' ').any(|word| word == *id))?;
        let named = if family == "ubuntu" { "UBUNTU_CODENAME" } else { "DEBIAN_CODENAME" };
        let codename = field(named).or_else(|| field("VERSION_CODENAME"))?;
        Some(Self { family, codename })
    }

    /// The keyring of the distribution's own package.
    fn keyring_prefix(&self) -> String {
        format!("{}-archive", self.family)
    }
}

/// The sources of a build, and the suite of the release itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) suite: String,
    pub(super) sources: Vec<Source>,
}

/// Decides the sources of packages: the host's own, changed as the person asked.
pub(super) fn plan(root: &Path, mirror: Option<&str>, suite: Option<&str>) -> Result<Plan, SourcesError> {
    if let Some(mirror) = mirror {
        check_mirror(mirror)?;
    }
    if let Some(suite) = suite {
        check_suite(suite)?;
    }
    let release = Release::of_host(root);
    let apt = root.join("etc/apt");
    if let (Some(mirror), Some(suite)) = (mirror, suite) {
        let family = release.as_ref().ok().map(|release| release.family);
        return Ok(from_mirror(root, mirror, suite, family, &[]));
    }
    let release = release?;
    let own = own_sources(&read_all(&apt), &release);
    if let Some(mirror) = mirror {
        return Ok(from_mirror(root, mirror, &release.codename, Some(release.family), &own));
    }
    let Some(primary) = own.iter().find(|source| !is_side_suite(&source.suite)).map(|s| s.suite.clone())
    else {
        return Err(SourcesError::NoneOwn { apt, suite: release.codename });
    };
    let Some(suite) = suite else { return Ok(Plan { suite: primary, sources: own }) };
    let moved = own.into_iter().map(|source| {
        let side = source.suite.strip_prefix(primary.as_str()).unwrap_or_default();
        Source { suite: format!("{suite}{side}"), ..source }
    });
    Ok(Plan { suite: suite.to_string(), sources: moved.collect() })
}

/// A named mirror has the release; the host's own security archive stays, because mirrors rarely have it.
fn from_mirror(root: &Path, mirror: &str, suite: &str, family: Option<&str>, own: &[Source]) -> Plan {
    let standard = |family: &str| {
        let path = PathBuf::from(format!("/usr/share/keyrings/{family}-archive-keyring.gpg"));
        root.join(path.strip_prefix("/").unwrap_or(&path)).is_file().then_some(path)
    };
    let keyring = match family.and_then(standard) {
        Some(path) => Keyring::File(path),
        None => Keyring::Default,
    };
    let of_release = own.iter().find(|source| source.suite == suite);
    let fallback = if family == Some("ubuntu") { vec!["main", "universe"] } else { vec!["main"] };
    let components = of_release
        .map_or_else(|| fallback.into_iter().map(String::from).collect(), |source| source.components.clone());
    let mut sources = vec![Source {
        uri: mirror.trim_end_matches('/').to_string(),
        suite: suite.to_string(),
        components,
        keyring,
    }];
    sources.extend(own.iter().filter(|source| source.suite == format!("{suite}-security")).cloned());
    Plan { suite: suite.to_string(), sources }
}

fn check_mirror(mirror: &str) -> Result<(), SourcesError> {
    let address = mirror
        .split_once("://")
        .is_some_and(|(scheme, rest)| ["http", "https", "file"].contains(&scheme) && !rest.is_empty());
    let clean = !mirror.chars().any(|c| c.is_whitespace() || c.is_control() || "[]#".contains(c));
    if address && clean { Ok(()) } else { Err(SourcesError::BadMirror(mirror.to_string())) }
}

/// A suite becomes an argument and a word of a file, so it must be neither an option nor two words.
fn check_suite(suite: &str) -> Result<(), SourcesError> {
    let fine = suite.starts_with(|c: char| c.is_ascii_lowercase())
        && suite.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if fine { Ok(()) } else { Err(SourcesError::BadSuite(suite.to_string())) }
}

fn is_side_suite(suite: &str) -> bool {
    suite.ends_with("-updates") || suite.ends_with("-security")
}

fn own_sources(all: &[Source], release: &Release) -> Vec<Source> {
    let strict: Vec<Source> = all.iter().filter(|source| is_own(source, release)).cloned().collect();
    if strict.iter().any(|source| !is_side_suite(&source.suite)) {
        return strict;
    }
    // A company's mirror may sign with its own key. Used only if there is nothing better.
    all.iter().filter(|source| is_likely_own(source, release)).cloned().collect()
}

/// There is no list of hosts to compare with: suite, components and keyring decide.
fn is_own(source: &Source, release: &Release) -> bool {
    let (named, moving) = suite_kind(&source.suite, &release.codename);
    let components = source.components.iter().all(|component| COMPONENTS.contains(&component.as_str()));
    if !components || source.components.is_empty() {
        return false;
    }
    match &source.keyring {
        Keyring::File(path) => {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            (named || moving) && name.starts_with(&release.keyring_prefix())
        }
        Keyring::Default | Keyring::Inline(_) => named && path_names_family(source, release),
    }
}

fn is_likely_own(source: &Source, release: &Release) -> bool {
    is_own(&Source { keyring: Keyring::Default, ..source.clone() }, release)
}

/// Whether the suite is this release's by name, and whether it is a moving name.
fn suite_kind(suite: &str, codename: &str) -> (bool, bool) {
    let of = |release: &str| {
        suite.strip_prefix(release).is_some_and(|side| ["", "-updates", "-security"].contains(&side))
    };
    (of(codename), MOVING_SUITES.iter().any(|name| of(name)))
}

/// `http://host/debian`, `/debian-security`, `/ubuntu-ports`: archives are named after their contents.
fn path_names_family(source: &Source, release: &Release) -> bool {
    let path = source.uri.split_once("://").map_or("", |(_, rest)| rest).trim_end_matches('/');
    path.split_once('/')
        .is_some_and(|(_, path)| path.rsplit('/').next().is_some_and(|last| last.starts_with(release.family)))
}

/// Every enabled binary source under `/etc/apt`.
fn read_all(apt: &Path) -> Vec<Source> {
    let mut files = vec![apt.join("sources.list")];
    let parts = fs::read_dir(apt.join("sources.list.d")).into_iter().flatten().flatten();
    files.extend(parts.map(|entry| entry.path()));
    files[1..].sort();
    let mut sources = Vec::new();
    for file in files {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("list") => sources.extend(text.lines().filter_map(parse_line).flatten()),
            Some("sources") => sources.extend(parse_deb822(&text)),
            _ => {}
        }
    }
    sources
}

/// `deb [signed-by=/a arch=b] uri suite component...`
fn parse_line(line: &str) -> Option<Vec<Source>> {
    let line = line.split('#').next().unwrap_or_default().trim();
    let rest = line.strip_prefix("deb").filter(|rest| rest.starts_with(char::is_whitespace))?.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => ("", rest),
    };
    let signed_by = options.split_whitespace().find_map(|option| option.strip_prefix("signed-by="));
    let keyring = signed_by.map_or(Keyring::Default, |path| Keyring::File(path.into()));
    let mut words = rest.split_whitespace().map(String::from);
    let (uri, suite) = (words.next()?, words.next()?);
    Some(vec![Source { uri, suite, components: words.collect(), keyring }])
}

/// Stanzas of `Key: value`, continued by indented lines.
fn parse_deb822(text: &str) -> Vec<Source> {
    let mut stanzas: Vec<Vec<(String, String)>> = vec![Vec::new()];
    for line in text.lines() {
        let stanza = stanzas.last_mut().expect("starts with one stanza and only grows");
        if line.starts_with('#') {
            continue;
        } else if line.trim().is_empty() {
            stanzas.push(Vec::new());
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = stanza.last_mut() {
                value.push('\n');
                // A lone dot is an empty line.
                let line = line.trim();
                value.push_str(if line == "." { "" } else { line });
            }
        } else if let Some((key, value)) = line.split_once(':') {
            stanza.push((key.trim().to_ascii_lowercase(), value.trim().to_string()));
        }
    }
    stanzas.iter().flat_map(|stanza| stanza_sources(stanza)).collect()
}

fn stanza_sources(stanza: &[(String, String)]) -> Vec<Source> {
    let field = |name: &str| stanza.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let words = |name: &str| -> Vec<String> {
        field(name).unwrap_or_default().split_whitespace().map(String::from).collect()
    };
    let disabled = field("enabled").is_some_and(|value| ["no", "false", "0"].contains(&value));
    if disabled || !words("types").iter().any(|kind| kind == "deb") {
        return Vec::new();
    }
    let keyring = match field("signed-by").map(str::trim) {
        None | Some("") => Keyring::Default,
        Some(key) if key.starts_with("-----BEGIN") => Keyring::Inline(format!("{key}\n")),
        Some(paths) => Keyring::File(paths.split_whitespace().next().unwrap_or_default().into()),
    };
    let components = words("components");
    let mut sources = Vec::new();
    for uri in words("uris") {
        for suite in words("suites") {
            let (components, keyring) = (components.clone(), keyring.clone());
            sources.push(Source { uri: uri.trim_end_matches('/').into(), suite, components, keyring });
        }
    }
    sources
}

#[cfg(test)]
mod tests;
