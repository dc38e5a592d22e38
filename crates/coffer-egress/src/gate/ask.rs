//! Parses requests of git and Git LFS to the gate.

use coffer_core::network::GitSlug;
use http::{Method, Uri};

use super::rule::GitRule;

/// Reading or writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    Fetch,
    Push,
}

impl Service {
    const fn name(self) -> &'static str {
        match self {
            Self::Fetch => "git-upload-pack",
            Self::Push => "git-receive-pack",
        }
    }
}

/// The kind of a request, from its first line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    Git(Ask),
    Lfs(LfsAsk),
}

/// A request of Git LFS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LfsAsk {
    pub(crate) slug: GitSlug,
    pub(crate) verb: LfsVerb,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LfsVerb {
    /// Asks for the addresses of objects.
    Batch,
    /// One object, by the token in the answer to a batch.
    Transfer(String),
    /// Asks for locks, before each push.
    VerifyLocks,
}

/// The path prefix of objects of a batch.
const TRANSFER: &str = "info/lfs/transfer/";

/// The gate's path of an object.
pub(crate) fn transfer_path(slug: &GitSlug, token: &str) -> String {
    format!("/{slug}.git/{TRANSFER}{token}")
}

/// A request of git's smart protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) slug: GitSlug,
    pub(crate) service: Service,
    /// Whether it asks for the refs, which comes first.
    pub(crate) refs: bool,
}

impl Asked {
    /// Parses a request's first line. Only git's exact spelling is accepted.
    pub(crate) fn read(method: &Method, uri: &Uri) -> Result<Self, GitRule> {
        let rest = uri.path().strip_prefix('/').ok_or(GitRule::Repository)?;
        let (name, rest) = rest.split_once('/').ok_or(GitRule::Repository)?;
        let slug: GitSlug =
            name.strip_suffix(".git").and_then(|slug| slug.parse().ok()).ok_or(GitRule::Repository)?;
        let lfs = |verb| Ok(Self::Lfs(LfsAsk { slug: slug.clone(), verb }));
        let (service, refs) = match (method, rest, uri.query()) {
            (&Method::GET, "info/refs", Some("service=git-upload-pack")) => (Service::Fetch, true),
            (&Method::GET, "info/refs", Some("service=git-receive-pack")) => (Service::Push, true),
            (&Method::POST, "git-upload-pack", None) => (Service::Fetch, false),
            (&Method::POST, "git-receive-pack", None) => (Service::Push, false),
            (&Method::POST, "info/lfs/objects/batch", None) => return lfs(LfsVerb::Batch),
            (&Method::POST, "info/lfs/locks/verify", None) => return lfs(LfsVerb::VerifyLocks),
            (&Method::GET | &Method::PUT | &Method::POST, other, None) if other.starts_with(TRANSFER) => {
                return lfs(LfsVerb::Transfer(other[TRANSFER.len()..].to_string()));
            }
            (_, other, _) if other.starts_with("info/lfs") => return Err(GitRule::Lfs),
            _ => return Err(GitRule::Service),
        };
        Ok(Self::Git(Ask { slug, service, refs }))
    }
}

impl Ask {
    /// The path below the repository's own URL.
    pub(crate) fn path(&self, repository: &str) -> String {
        let service = self.service.name();
        if self.refs {
            format!("{repository}/info/refs?service={service}")
        } else {
            format!("{repository}/{service}")
        }
    }

    /// The required content type of a request.
    pub(crate) fn content_type(&self) -> String {
        format!("application/x-{}-request", self.service.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(method: Method, uri: &str) -> Result<String, GitRule> {
        Asked::read(&method, &uri.parse().unwrap()).map(|asked| match asked {
            Asked::Git(ask) => ask.path("/o/r.git"),
            Asked::Lfs(LfsAsk { slug, verb }) => format!("{slug} {verb:?}"),
        })
    }

    #[test]
    fn what_git_asks_is_asked_below_the_repository() {
        for (method, uri, path) in [
            (
                Method::GET,
                "/a.git/info/refs?service=git-upload-pack",
                "/o/r.git/info/refs?service=git-upload-pack",
            ),
            (
                Method::GET,
                "/a.git/info/refs?service=git-receive-pack",
                "/o/r.git/info/refs?service=git-receive-pack",
            ),
            (Method::POST, "/a.git/git-upload-pack", "/o/r.git/git-upload-pack"),
            (Method::POST, "/a.git/git-receive-pack", "/o/r.git/git-receive-pack"),
            (Method::POST, "/a.git/info/lfs/objects/batch", "a Batch"),
            (Method::POST, "/a.git/info/lfs/locks/verify", "a VerifyLocks"),
            (Method::GET, "/a.git/info/lfs/transfer/x-_y", "a Transfer(\"x-_y\")"),
            (Method::PUT, "/a.git/info/lfs/transfer/x", "a Transfer(\"x\")"),
        ] {
            assert_eq!(ask(method, uri).as_deref(), Ok(path));
        }
    }

    #[test]
    fn nothing_else_is() {
        for (method, uri, rule) in [
            (Method::GET, "/", GitRule::Repository),
            (Method::GET, "/a/info/refs?service=git-upload-pack", GitRule::Repository),
            (Method::GET, "//a.git/info/refs?service=git-upload-pack", GitRule::Repository),
            (Method::GET, "/..%2fb.git/info/refs?service=git-upload-pack", GitRule::Repository),
            (Method::GET, "/a.git/../b.git/info/refs?service=git-upload-pack", GitRule::Service),
            (Method::GET, "/a.git/info/refs", GitRule::Service),
            (Method::GET, "/a.git/info/refs?service=git-upload-archive", GitRule::Service),
            (Method::GET, "/a.git/info/refs?service=git-upload-pack&x=y", GitRule::Service),
            (Method::GET, "/a.git/HEAD", GitRule::Service),
            (Method::GET, "/a.git/objects/info/packs", GitRule::Service),
            (Method::GET, "/a.git/git-receive-pack", GitRule::Service),
            (Method::POST, "/a.git/git-receive-pack?x", GitRule::Service),
            (Method::GET, "/a.git/info/lfs/objects/batch", GitRule::Lfs),
            (Method::POST, "/a.git/info/lfs/objects/batch?x", GitRule::Lfs),
            (Method::POST, "/a.git/info/lfs/locks", GitRule::Lfs),
            (Method::GET, "/a.git/info/lfs/locks", GitRule::Lfs),
            (Method::DELETE, "/a.git/info/lfs/transfer/x", GitRule::Lfs),
            (Method::GET, "/a.git/info/lfs/objects/../../x", GitRule::Lfs),
            (Method::DELETE, "/a.git/git-upload-pack", GitRule::Service),
        ] {
            assert_eq!(ask(method, uri), Err(rule), "{uri}");
        }
    }
}
