//! Checks the addresses of objects that a forge names.

use coffer_core::network::{GitHost, GitRoute, HostName};

use crate::gate::carry::Target;

const LONGEST: usize = 8 * 1024;
const HTTPS: u16 = 443;

/// A checked address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) host: GitHost,
    pub(super) on_site: bool,
    /// The `Host` of a request.
    pub(super) authority: String,
    pub(super) path: String,
    /// Whether it belongs to the repository itself, whose credential may be sent.
    pub(super) is_own: bool,
}

impl Place {
    /// Checks an address of a forge: a public host over TLS, held to the walls like any forge; or, on this
    /// server, the repository's own objects. Hosts that the operator allows may be at private addresses if
    /// the forge itself is.
    pub(super) fn read(href: &str, route: &GitRoute) -> Option<Self> {
        let upstream = &route.upstream;
        let plain = |b: u8| b.is_ascii_graphic() && !b"\"#<>\\^`{|}".contains(&b);
        if href.len() > LONGEST || !href.bytes().all(plain) {
            return None;
        }
        let (scheme, rest) = href.split_once("://")?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let path = if path.starts_with('/') { path.to_string() } else { format!("/{path}") };
        let (below, _) = path.split_once('?').unwrap_or((path.as_str(), ""));
        let own_path = below.strip_prefix(upstream.path()).and_then(|rest| rest.strip_prefix("/info/lfs/"));
        let is_below = own_path.is_some_and(|rest| !rest.contains('%') && !rest.contains(".."));
        match scheme {
            "https" => {
                let (name, port) = authority.split_once(':').unwrap_or((authority, "443"));
                let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
                let port = port.parse().ok().filter(|port: &u16| digits && *port != 0)?;
                let name = HostName::parse(name).ok()?;
                let authority = if port == HTTPS { name.to_string() } else { format!("{name}:{port}") };
                let is_neighbour = route.is_neighbour(&name, port);
                let host = GitHost::Forge(name, port);
                let is_forge = host == *upstream.host();
                let (on_site, is_own) = ((is_forge && route.on_site) || is_neighbour, is_forge && is_below);
                Some(Self { host, on_site, authority, path, is_own })
            }
            "http" => {
                let is_server = matches!(upstream.host(), GitHost::Server(_));
                let is_own = is_server && authority == upstream.authority() && is_below;
                let (host, authority) = (upstream.host().clone(), upstream.authority());
                is_own.then_some(Self { host, on_site: false, authority, path, is_own })
            }
            _ => None,
        }
    }

    pub(super) fn target(&self) -> Target {
        Target { host: self.host.clone(), on_site: self.on_site }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(upstream: &str) -> GitRoute {
        GitRoute {
            slug: "app".parse().unwrap(),
            upstream: upstream.parse().unwrap(),
            authorization: None,
            on_site: true,
            neighbours: vec!["media.example.com".into(), "store.example.com:444".into()],
            push: None,
        }
    }

    #[test]
    fn a_forge_leads_to_hosts_by_name_and_its_own_alone_is_on_site() {
        let route = route("https://ghe.example.com:8443/o/r.git");
        for (href, authority, path, on_site, is_own) in [
            ("https://store.example.com/a?b=c", "store.example.com", "/a?b=c", false, false),
            ("https://media.example.com/x", "media.example.com", "/x", true, false),
            ("https://store.example.com:444/x", "store.example.com:444", "/x", true, false),
            ("https://store.example.com:443", "store.example.com", "/", false, false),
            ("https://store.example.com:8443?x", "store.example.com:8443", "/?x", false, false),
            (
                "https://ghe.example.com/o/r.git/info/lfs/x",
                "ghe.example.com",
                "/o/r.git/info/lfs/x",
                false,
                false,
            ),
            ("https://GHE.example.com:8443/media/x", "ghe.example.com:8443", "/media/x", true, false),
            (
                "https://ghe.example.com:8443/o/r.git/info/lfs/objects/x?y=%2f",
                "ghe.example.com:8443",
                "/o/r.git/info/lfs/objects/x?y=%2f",
                true,
                true,
            ),
            (
                "https://ghe.example.com:8443/o/r.git/info/lfs/../../s.git",
                "ghe.example.com:8443",
                "/o/r.git/info/lfs/../../s.git",
                true,
                false,
            ),
        ] {
            let place = Place::read(href, &route).unwrap_or_else(|| panic!("{href}"));
            let found = (place.authority.as_str(), place.path.as_str(), place.on_site, place.is_own);
            assert_eq!(found, (authority, path, on_site, is_own), "{href}");
        }
    }

    #[test]
    fn a_forge_that_is_elsewhere_leads_nobody_to_the_site() {
        let route = GitRoute { on_site: false, ..route("https://evil.example.com/o/r.git") };
        let place = Place::read("https://media.example.com/x", &route).unwrap();
        assert!(!place.on_site, "{place:?}");
    }

    #[test]
    fn nobody_is_led_elsewhere() {
        let (forge, server) =
            (route("https://github.com/o/r.git"), route("http://127.0.0.1:3000/git/p/r.git"));
        for href in [
            "",
            "/relative",
            "http://github.com/o/r.git/info/lfs/x",
            "http://127.0.0.1:3000/git/p/r.git/info/lfs/objects/x",
            "https://127.0.0.1/x",
            "https://[::1]/x",
            "https://2130706433/x",
            "https://user:pass@example.com/x",
            "https://example.com:0/x",
            "https://example.com:+1/x",
            "https://example.com:/x",
            "https://example.com:99999/x",
            "https://example.com/x#y",
            "https://example.com/x y",
            "https://example.com/x\r\nHost: evil",
            "https://example.com\\@evil/x",
            "https:///x",
            "ftp://example.com/x",
            "file:///etc/passwd",
            &format!("https://example.com/{}", "x".repeat(LONGEST)),
        ] {
            assert_eq!(Place::read(href, &forge), None, "{href}");
        }
        let own = "http://127.0.0.1:3000/git/p/r.git/info/lfs/objects/x";
        assert!(Place::read(own, &server).is_some_and(|place| place.is_own && !place.on_site));
        for href in [
            "http://127.0.0.1:3000/api/v1/keys",
            "http://127.0.0.1:3000/git/p/s.git/info/lfs/objects/x",
            "http://127.0.0.1:3000/git/p/r.git/info/lfs/../../../../api",
            "http://127.0.0.1:3000/git/p/r.git/info/lfs/%2e%2e/x",
            "http://127.0.0.1:3001/git/p/r.git/info/lfs/objects/x",
            "http://127.0.0.2:3000/git/p/r.git/info/lfs/objects/x",
            "http://localhost:3000/git/p/r.git/info/lfs/objects/x",
        ] {
            assert_eq!(Place::read(href, &server), None, "{href}");
        }
    }
}
