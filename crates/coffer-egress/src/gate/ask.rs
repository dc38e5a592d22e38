//! What git asks the gate for.

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

/// A request of git's smart protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) slug: GitSlug,
    pub(crate) service: Service,
    /// Whether it asks which refs there are, before anything else.
    pub(crate) refs: bool,
}

impl Ask {
    /// Reads a request's first line. Only what is spelled as git spells it means something.
    pub(crate) fn read(method: &Method, uri: &Uri) -> Result<Self, GitRule> {
        let rest = uri.path().strip_prefix('/').ok_or(GitRule::Repository)?;
        let (name, rest) = rest.split_once('/').ok_or(GitRule::Repository)?;
        let slug = name.strip_suffix(".git").and_then(|slug| slug.parse().ok()).ok_or(GitRule::Repository)?;
        let (service, refs) = match (method, rest, uri.query()) {
            (&Method::GET, "info/refs", Some("service=git-upload-pack")) => (Service::Fetch, true),
            (&Method::GET, "info/refs", Some("service=git-receive-pack")) => (Service::Push, true),
            (&Method::POST, "git-upload-pack", None) => (Service::Fetch, false),
            (&Method::POST, "git-receive-pack", None) => (Service::Push, false),
            (_, other, _) if other.starts_with("info/lfs") => return Err(GitRule::Lfs),
            _ => return Err(GitRule::Service),
        };
        Ok(Self { slug, service, refs })
    }

    /// The same below the repository's own URL.
    pub(crate) fn path(&self, repository: &str) -> String {
        let service = self.service.name();
        if self.refs {
            format!("{repository}/info/refs?service={service}")
        } else {
            format!("{repository}/{service}")
        }
    }

    /// What the body of a request must say it is.
    pub(crate) fn content_type(&self) -> String {
        format!("application/x-{}-request", self.service.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(method: Method, uri: &str) -> Result<String, GitRule> {
        Ask::read(&method, &uri.parse().unwrap()).map(|ask| ask.path("/o/r.git"))
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
            (Method::POST, "/a.git/info/lfs/objects/batch", GitRule::Lfs),
            (Method::DELETE, "/a.git/git-upload-pack", GitRule::Service),
        ] {
            assert_eq!(ask(method, uri), Err(rule), "{uri}");
        }
    }
}
