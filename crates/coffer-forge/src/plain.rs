//! Repositories on any git server that speaks smart HTTP: GitLab, Gitea, `git http-backend`.
//!
//! Git has the commits there; pull requests, reviews and issues are records here, as those of local repositories. The
//! server reads branches, fetches and lands merges by itself, with its own outgoing HTTP: git on this host has no network.
//! See docs/design/0033-plain-remotes.md.

mod client;
mod mirror;
mod wire;

use std::fmt;
use std::str::FromStr;

pub(crate) use client::{GitHost, Remote};
pub(crate) use mirror::Mirror;

const LONGEST_PATH: usize = 400;

/// The path of a repository on its server, without the first `/`: `team/app.git`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemotePath(String);

impl FromStr for RemotePath {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let path = text.trim_matches('/');
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"/._-~".contains(&b);
        let is_part = |part: &str| !matches!(part, "" | "." | "..");
        if (1..=LONGEST_PATH).contains(&path.len()) && path.bytes().all(fits) && path.split('/').all(is_part)
        {
            Ok(Self(path.to_string()))
        } else {
            Err("must be the repository's path on its server, such as `team/app.git`")
        }
    }
}

impl fmt::Display for RemotePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_below_their_server() {
        let read = |text: &str| text.parse::<RemotePath>().map(|path| path.to_string());
        assert_eq!(read("team/sub/app.git"), Ok("team/sub/app.git".into()));
        assert_eq!(read("/app/"), Ok("app".into()));
        for bad in ["", "/", "a//b", "a/../b", "..", "a b", "a%2fb", "a?b", "a#b", "a\nb", "ä"] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
        assert!(read(&"a".repeat(401)).is_err());
    }
}
