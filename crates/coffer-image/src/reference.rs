//! Names of images, by Docker's rules.

use std::fmt;
use std::str::FromStr;

use crate::digest::Digest;

const LONGEST: usize = 512;
/// Docker's limit for registry and repository together.
const LONGEST_NAME: usize = 255;
const LONGEST_TAG: usize = 128;
const DOCKER_HUB: &str = "docker.io";
const LATEST: &str = "latest";

/// The name of an image: `[registry/]repository[:tag][@sha256:digest]`. It is shown in full:
/// `docker.io/library/debian:12`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ImageRef {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// Why a text names no image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadReference {
    #[error("is empty")]
    Empty,
    #[error("is longer than {LONGEST} characters, or its name is longer than {LONGEST_NAME}")]
    TooLong,
    #[error("must be a name such as `debian:12` or `registry.example.com/team/image:tag`, without `://`")]
    Scheme,
    #[error("has an invalid registry: it must be a host name, with or without a port")]
    Registry,
    #[error(
        "has an invalid repository: it consists of lower case letters, digits and single `.`, `_`, `-` or `/`"
    )]
    Repository,
    #[error("has an invalid repository: 64 hexadecimal digits are the id of an image, not its name")]
    Id,
    #[error("has an invalid tag: it consists of at most {LONGEST_TAG} letters, digits, `_`, `.` and `-`")]
    Tag,
    #[error("has an invalid digest: it must be `sha256:` and 64 hexadecimal digits in lower case")]
    Digest,
}

impl ImageRef {
    /// The registry as people name it: `docker.io`, `localhost:5000`. In lower case.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag; `latest` where the name had neither tag nor digest.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    pub fn digest(&self) -> Option<Digest> {
        self.digest
    }

    /// The same image, pinned to a digest.
    #[must_use]
    pub fn pinned(&self, digest: Digest) -> Self {
        Self { digest: Some(digest), ..self.clone() }
    }

    /// Host and port of the registry's API.
    pub(crate) fn api_host(&self) -> &str {
        match self.registry.as_str() {
            DOCKER_HUB => "registry-1.docker.io",
            other => other,
        }
    }

    /// What a registry calls it: the digest, or else the tag.
    pub(crate) fn pointer(&self) -> String {
        self.digest
            .map_or_else(|| self.tag.clone().unwrap_or_else(|| LATEST.into()), |digest| digest.to_string())
    }
}

impl FromStr for ImageRef {
    type Err = BadReference;

    fn from_str(text: &str) -> Result<Self, BadReference> {
        if text.is_empty() {
            return Err(BadReference::Empty);
        }
        if text.len() > LONGEST {
            return Err(BadReference::TooLong);
        }
        if text.contains("://") {
            return Err(BadReference::Scheme);
        }
        let (text, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest.parse().map_err(|_| BadReference::Digest)?)),
            None => (text, None),
        };
        // A colon before the last slash belongs to a port.
        let (name, tag) = match text.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')) {
            Some((_, tag)) if !is_tag(tag) => return Err(BadReference::Tag),
            Some((name, tag)) => (name, Some(tag.to_string())),
            None => (text, None),
        };
        let (registry, repository) = split_registry(name)?;
        let repository = match registry.as_str() {
            DOCKER_HUB if !repository.contains('/') => format!("library/{repository}"),
            _ => repository.to_string(),
        };
        if registry.len() + 1 + repository.len() > LONGEST_NAME {
            return Err(BadReference::TooLong);
        }
        if !repository.split('/').all(is_path_part) {
            return Err(BadReference::Repository);
        }
        let tag = tag.or_else(|| digest.is_none().then(|| LATEST.to_string()));
        Ok(Self { registry, repository, tag, digest })
    }
}

/// Takes a registry off a name. The first part is one if it could not be part of a repository on Docker Hub: it has a
/// dot, a colon or a capital, or is `localhost`.
fn split_registry(name: &str) -> Result<(String, &str), BadReference> {
    let looks_like_host = |part: &str| {
        part == "localhost" || part.contains(['.', ':']) || part.bytes().any(|b| b.is_ascii_uppercase())
    };
    match name.split_once('/').filter(|(first, _)| looks_like_host(first)) {
        Some((first, rest)) => {
            let registry = first.to_ascii_lowercase();
            if !is_authority(&registry) {
                return Err(BadReference::Registry);
            }
            let registry = if registry == "index.docker.io" { DOCKER_HUB.into() } else { registry };
            Ok((registry, rest))
        }
        None if Digest::parse_hex(name).is_ok() => Err(BadReference::Id),
        None => Ok((DOCKER_HUB.into(), name)),
    }
}

/// A host with or without a port. Used for mirrors too.
pub(crate) fn is_authority(text: &str) -> bool {
    let is_port =
        |port: &str| port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|p| p != 0);
    if let Some(rest) = text.strip_prefix('[') {
        let Some((address, rest)) = rest.split_once(']') else { return false };
        return address.parse::<std::net::Ipv6Addr>().is_ok()
            && (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port));
    }
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    host.len() <= 253 && host.split('.').all(is_label) && port.is_none_or(is_port)
}

fn is_label(label: &str) -> bool {
    (1..=63).contains(&label.len())
        && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        && !label.starts_with('-')
        && !label.ends_with('-')
}

fn is_tag(tag: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    (1..=LONGEST_TAG).contains(&tag.len())
        && tag.bytes().all(|b| is_word(b) || b == b'.' || b == b'-')
        && tag.bytes().next().is_some_and(is_word)
}

/// Letters and digits, with separators between them: one `.`, one or two `_`, or any number of `-`.
fn is_path_part(part: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let ends_well = |b: Option<u8>| b.is_some_and(is_plain);
    ends_well(part.bytes().next())
        && ends_well(part.bytes().last())
        && part
            .split(|letter: char| letter.is_ascii() && is_plain(letter as u8))
            .all(|gap| matches!(gap, "" | "." | "_" | "__") || gap.bytes().all(|b| b == b'-'))
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        self.tag.iter().try_for_each(|tag| write!(f, ":{tag}"))?;
        self.digest.iter().try_for_each(|digest| write!(f, "@{digest}"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn names_are_read_as_docker_reads_them() {
        for (text, shown, host) in [
            ("debian", "docker.io/library/debian:latest", "registry-1.docker.io"),
            ("debian:12", "docker.io/library/debian:12", "registry-1.docker.io"),
            ("e2bdev/base", "docker.io/e2bdev/base:latest", "registry-1.docker.io"),
            ("docker.io/debian", "docker.io/library/debian:latest", "registry-1.docker.io"),
            ("index.docker.io/a/b", "docker.io/a/b:latest", "registry-1.docker.io"),
            ("localhost/a", "localhost/a:latest", "localhost"),
            ("localhost:5000/a:1", "localhost:5000/a:1", "localhost:5000"),
            ("Registry.Example.com/a/b", "registry.example.com/a/b:latest", "registry.example.com"),
            // A capital makes the first part a host.
            ("Team/app", "team/app:latest", "team"),
            ("10.0.0.1:5000/x", "10.0.0.1:5000/x:latest", "10.0.0.1:5000"),
            ("[::1]:5000/x", "[::1]:5000/x:latest", "[::1]:5000"),
            ("a__b/c--d/e.f_g:V-1.0_x", "docker.io/a__b/c--d/e.f_g:V-1.0_x", "registry-1.docker.io"),
            ("host:5000", "docker.io/library/host:5000", "registry-1.docker.io"),
        ] {
            let read: ImageRef = text.parse().unwrap_or_else(|why| panic!("{text} {why}"));
            assert_eq!((read.to_string().as_str(), read.api_host()), (shown, host), "{text}");
        }
        let pinned: ImageRef = format!("debian@{DIGEST}").parse().unwrap();
        assert_eq!((pinned.tag(), pinned.pointer().as_str()), (None, DIGEST));
        let both: ImageRef = format!("ghcr.io/a/b:1@{DIGEST}").parse().unwrap();
        assert_eq!((both.tag(), both.pointer().as_str()), (Some("1"), DIGEST));
        assert_eq!("a/b".parse::<ImageRef>().unwrap().pointer(), "latest");
    }

    #[test]
    fn other_texts_are_refused_with_the_part_that_is_wrong() {
        let long = "a".repeat(LONGEST + 1);
        let wide = format!("{}/b", "a".repeat(260));
        let id = &DIGEST[7..];
        for (text, why) in [
            ("", BadReference::Empty),
            (long.as_str(), BadReference::TooLong),
            (&wide, BadReference::TooLong),
            ("https://ghcr.io/a/b", BadReference::Scheme),
            ("docker://debian", BadReference::Scheme),
            (id, BadReference::Id),
            ("Debian", BadReference::Repository),
            ("a//b", BadReference::Repository),
            ("a/../b", BadReference::Repository),
            ("a/.b", BadReference::Repository),
            ("a..b", BadReference::Repository),
            ("a___b", BadReference::Repository),
            ("a/", BadReference::Repository),
            ("a b", BadReference::Repository),
            ("a\n", BadReference::Repository),
            ("ä", BadReference::Repository),
            ("a%2f", BadReference::Repository),
            ("-x.com/a", BadReference::Registry),
            ("x.com:0/a", BadReference::Registry),
            ("x.com:70000/a", BadReference::Registry),
            ("x.com:+1/a", BadReference::Registry),
            ("x..com/a", BadReference::Registry),
            ("user:pw@x.com/a", BadReference::Digest),
            ("[::1/a", BadReference::Registry),
            ("a:", BadReference::Tag),
            ("a:-x", BadReference::Tag),
            ("a:x y", BadReference::Tag),
            ("a@sha256:12", BadReference::Digest),
            ("a@md5:12", BadReference::Digest),
        ] {
            assert_eq!(text.parse::<ImageRef>(), Err(why), "{text}");
        }
        assert!(format!("a:{}", "x".repeat(129)).parse::<ImageRef>().is_err());
    }

    proptest! {
        #[test]
        fn what_is_shown_means_the_same(
            registry in "(|localhost/|ghcr\\.io/|a\\.b:[1-9][0-9]{0,3}/)",
            parts in prop::collection::vec("[a-z0-9]{1,5}([._]|__|-{1,3})?[a-z0-9]{1,5}", 1..4),
            tag in "(|:[A-Za-z0-9_][A-Za-z0-9_.-]{0,20})",
            digest in "(|@sha256:[0-9a-f]{64})",
        ) {
            let text = format!("{registry}{}{tag}{digest}", parts.join("/"));
            let read: ImageRef = text.parse().unwrap();
            prop_assert_eq!(read.to_string().parse::<ImageRef>(), Ok(read));
        }

        #[test]
        fn whatever_is_accepted_is_safe_in_a_url(text in "[\\x00-\\x7fä]{0,40}|[a-zA-Z0-9./:@_\\-\\[\\]%]{0,80}") {
            if let Ok(read) = text.parse::<ImageRef>() {
                let plain = |text: &str, more: &[u8]| text.bytes().all(|b| b.is_ascii_alphanumeric() || more.contains(&b));
                prop_assert!(plain(read.registry(), b".-:[]"));
                prop_assert!(plain(read.repository(), b"._-/") && !read.repository().contains(".."));
                prop_assert!(plain(&read.pointer(), b"._-:"));
                prop_assert_eq!(read.to_string().parse::<ImageRef>(), Ok(read));
            }
        }
    }
}
