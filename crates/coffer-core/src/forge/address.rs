//! Addresses of repositories and issues on forges, as people copy them from a browser or from `git remote`.

use std::str::FromStr;

/// The longest address.
const LONGEST: usize = 2048;

/// A repository on some forge, or one of its issues. Whether a connection leads there is another question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForgeAddress {
    /// The host in lower case, with its port if it is not the usual one.
    pub host: String,
    /// The repository's path without `.git`: `owner/name`, on some forges with more parts.
    pub repository: String,
    pub issue: Option<i64>,
}

/// Why a text is no address of a forge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    #[error("is not a URL such as https://github.com/octocat/hello-world/issues/7")]
    Malformed,
    #[error("must not contain a user or password")]
    HasUser,
    #[error("is a pull request, not an issue")]
    IsPull,
    #[error("names no repository and no issue")]
    IsOther,
}

impl ForgeAddress {
    /// The last part of the repository's path.
    pub fn name(&self) -> &str {
        self.repository.rsplit('/').next().unwrap_or(&self.repository)
    }
}

impl FromStr for ForgeAddress {
    type Err = BadAddress;

    /// Reads `https://HOST/OWNER/NAME[.git]`, the same with `/issues/7`, `ssh://git@HOST/…` and `git@HOST:OWNER/NAME`.
    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let text = text.trim();
        if text.len() > LONGEST || text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(BadAddress::Malformed);
        }
        let (authority, path, usual_port) = split(text)?;
        let host = authority.to_ascii_lowercase();
        let host = host.strip_suffix(usual_port).unwrap_or(&host).to_string();
        let is_host = |c: char| c.is_ascii_alphanumeric() || ".-:[]_".contains(c);
        if host.is_empty() || host.starts_with(['.', '-', ':']) || !host.chars().all(is_host) {
            return Err(BadAddress::Malformed);
        }
        let path = path.split(['?', '#']).next().unwrap_or_default().trim_matches('/');
        let parts: Vec<&str> = path.split('/').collect();
        let is_part = |part: &&str| {
            !part.is_empty()
                && !matches!(*part, "." | "..")
                && !part.starts_with('-')
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.~".contains(&b))
        };
        if parts.len() < 2 || !parts.iter().all(is_part) {
            return Err(BadAddress::IsOther);
        }
        // GitLab writes `/-/issues/7`.
        let (repository, rest) =
            match parts.iter().position(|part| matches!(*part, "issues" | "pull" | "pulls")) {
                Some(at) if at >= 2 => (&parts[..at], &parts[at..]),
                _ => (&parts[..], &parts[..0]),
            };
        let issue = match rest {
            [] => None,
            ["issues", number] => Some(number.parse().ok().filter(|n| *n > 0).ok_or(BadAddress::IsOther)?),
            ["pull" | "pulls", ..] => return Err(BadAddress::IsPull),
            _ => return Err(BadAddress::IsOther),
        };
        let repository = repository.join("/");
        let repository = repository.strip_suffix(".git").unwrap_or(&repository).to_string();
        if repository.ends_with('/') {
            return Err(BadAddress::IsOther);
        }
        Ok(Self { host, repository, issue })
    }
}

/// Authority, path, and the port that the scheme implies.
fn split(text: &str) -> Result<(&str, &str, &'static str), BadAddress> {
    let schemes = [("https://", ":443"), ("http://", ":80"), ("ssh://", ":22")];
    for (scheme, port) in schemes {
        let Some(rest) = text.strip_prefix(scheme) else { continue };
        let (authority, path) = rest.split_once('/').ok_or(BadAddress::IsOther)?;
        return match authority.rsplit_once('@') {
            None => Ok((authority, path, port)),
            // The name is part of every address for SSH, and says nothing.
            Some(("git", host)) if scheme == "ssh://" => Ok((host, path, port)),
            Some(_) => Err(BadAddress::HasUser),
        };
    }
    let rest = text.strip_prefix("git@").ok_or(BadAddress::Malformed)?;
    let (host, path) = rest.split_once(':').ok_or(BadAddress::Malformed)?;
    Ok((host, path, ":22"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<(String, String, Option<i64>), BadAddress> {
        text.parse::<ForgeAddress>().map(|found| (found.host, found.repository, found.issue))
    }

    #[test]
    fn what_people_copy_is_read() {
        let app = |issue| Ok(("github.com".to_string(), "octo/app".to_string(), issue));
        for text in [
            "https://github.com/octo/app",
            "https://github.com/octo/app.git",
            " https://GitHub.com:443/octo/app/ ",
            "https://github.com/octo/app?tab=readme#top",
            "git@github.com:octo/app.git",
            "ssh://git@github.com/octo/app.git",
        ] {
            assert_eq!(read(text), app(None), "{text}");
        }
        for text in
            ["https://github.com/octo/app/issues/7", "https://github.com/octo/app/issues/7/#issuecomment-12"]
        {
            assert_eq!(read(text), app(Some(7)), "{text}");
        }
        let ghe = Ok(("ghe.example.com:8443".to_string(), "a/b".to_string(), Some(1)));
        assert_eq!(read("https://ghe.example.com:8443/a/b/issues/1"), ghe);
        // A repository may have these names.
        assert_eq!(read("https://github.com/octo/issues").unwrap().1, "octo/issues");
    }

    #[test]
    fn what_is_none_is_refused_with_the_reason() {
        use BadAddress::{HasUser, IsOther, IsPull, Malformed};
        for (text, why) in [
            ("fix the door", Malformed),
            ("octo/app", Malformed),
            ("ftp://github.com/octo/app", Malformed),
            ("https:///octo/app", Malformed),
            ("https://github.com", IsOther),
            ("https://github.com/octo", IsOther),
            ("https://github.com/octo/../app", IsOther),
            ("https://github.com/octo/-x", IsOther),
            ("https://github.com/octo/app/issues", IsOther),
            ("https://github.com/octo/app/issues/0", IsOther),
            ("https://github.com/octo/app/issues/x", IsOther),
            ("https://github.com/octo/app/issues/7/8", IsOther),
            ("https://github.com/octo/app/pull/7", IsPull),
            ("https://ada:secret@github.com/octo/app", HasUser),
            ("https://github.com/octo/a%2fb", IsOther),
        ] {
            assert_eq!(read(text), Err(why), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = read(&text);
        }
    }
}
