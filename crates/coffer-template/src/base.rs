//! Templates that are bootstrapped from packages of the host's own mirrors: `base`, a Debian or Ubuntu with common
//! tools, and `debian-12` and `debian-13`, which stand in for the images of those names.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::statvfs;
use sha2::{Digest as _, Sha256};

use super::bootstrap::{LEFT_OUT, Run, Tool};
use super::finish::{CHECK, FEW_CHECK, TEXTS, finish};
use super::manifest::Manifest;
use super::node::{self, NoNode, NpmSource};
use super::progress::{Phase, Progress, Reader};
use super::sources::{self, Plan, SourcesError};
use super::store::Keep;
use super::tree::Tree;
use super::{BASE, BuildError, LayerSpec, OverlaySpec, Template, TemplateStore};

/// Packages in addition to the essential ones, without recommendations.
const PACKAGES: &[&str] = &[
    "attr",
    "bash",
    "build-essential",
    "bzip2",
    "ca-certificates",
    "coreutils",
    "curl",
    "file",
    "git",
    "git-lfs",
    "iproute2",
    "jq",
    "less",
    "lsof",
    "mount",
    "nano",
    "netcat-openbsd",
    "openssh-client",
    "procps",
    "psmisc",
    "python-is-python3",
    "python3",
    "python3-dev",
    "python3-pip",
    "python3-venv",
    "ripgrep",
    "rsync",
    "sudo",
    "tree",
    "tzdata",
    "unzip",
    "vim-tiny",
    "wget",
    "xz-utils",
    "zip",
];

/// The distribution's Node, for when the wanted one cannot be had. npm alone depends on some three hundred packages.
const NODE_PACKAGES: &[&str] = &["nodejs", "npm"];

/// What `debian-12` and `debian-13` have beyond the essential packages: as little as the images of those names, and
/// what ready checks and E2B's clients call.
const FEW_PACKAGES: &[&str] = &[
    "adduser",
    "apt",
    "bash",
    "ca-certificates",
    "coreutils",
    "curl",
    "iproute2",
    "mount",
    "procps",
    "sudo",
    "tzdata",
];

/// A template that is bootstrapped from packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recipe {
    Base,
    Debian12,
    Debian13,
}

impl Recipe {
    pub const ALL: [Self; 3] = [Self::Base, Self::Debian12, Self::Debian13];

    /// The template's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Base => BASE,
            Self::Debian12 => "debian-12",
            Self::Debian13 => "debian-13",
        }
    }

    /// The recipe of a template.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|recipe| recipe.name() == name)
    }

    const fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Base => PACKAGES,
            Self::Debian12 | Self::Debian13 => FEW_PACKAGES,
        }
    }

    /// Its release, if that is part of its name.
    const fn suite(self) -> Option<&'static str> {
        match self {
            Self::Base => None,
            Self::Debian12 => Some("bookworm"),
            Self::Debian13 => Some("trixie"),
        }
    }

    const fn check(self) -> &'static str {
        match self {
            Self::Base => CHECK,
            Self::Debian12 | Self::Debian13 => FEW_CHECK,
        }
    }
}

/// Raised when a step of the build changes that [`recipe`] does not include, so that older builds count as
/// stale.
const REVISION: u32 = 1;

/// Space for the packages while they are fetched and unpacked, with a margin.
const NEEDED_BYTES: u64 = 2 * 1024 * 1024 * 1024;

/// Options of `base`.
#[derive(Debug, Clone, Default)]
pub struct BaseOptions {
    /// A mirror instead of those in the host's apt configuration.
    pub mirror: Option<String>,
    /// A release instead of the host's own.
    pub suite: Option<String>,
    /// Where `base` gets Node.
    pub npm: NpmSource,
}

/// The end of the fingerprint of a `base` with the distribution's Node.
const OTHER_NODE: &str = " distribution-node";

/// Everything that decides the result of a build, apart from the mirror's state: compared to see whether a
/// build is stale.
fn fingerprint(recipe: Recipe, suite: &str) -> String {
    let mut hash = Sha256::new();
    let pins = if recipe == Recipe::Base { node::pins() } else { Vec::new() };
    let lists = [recipe.packages(), &LEFT_OUT, &TEXTS, &[recipe.check()], &pins];
    for part in lists.into_iter().flatten() {
        hash.update(part);
        hash.update([0]);
    }
    format!("{REVISION} {suite} {}", hex::encode(&hash.finalize()[..8]))
}

/// The sources of packages. An explicitly chosen release is kept until another is chosen.
fn plan(
    recipe: Recipe,
    options: &BaseOptions,
    before: Option<&Manifest>,
) -> Result<(Plan, Option<String>), SourcesError> {
    let own = recipe.suite().map(String::from);
    let suite =
        own.or_else(|| options.suite.clone()).or_else(|| before.and_then(|manifest| manifest.suite.clone()));
    let plan = sources::plan(Path::new("/"), options.mirror.as_deref(), suite.as_deref())?;
    Ok((plan, suite))
}

impl TemplateStore {
    /// Builds a template from the distribution's packages: takes minutes, and a network. If another process is
    /// building it, waits and uses its result.
    pub fn bootstrap(
        &self,
        recipe: Recipe,
        options: &BaseOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Template, BuildError> {
        build(self, recipe, options, progress)
    }

    /// Whether the template exists and is what [`bootstrap`](Self::bootstrap) would build: the recipe and the
    /// release have not changed since. A build that could not be repeated counts as current, and so does one with
    /// the distribution's Node: each start would build it again while there is no network.
    pub fn is_current(&self, recipe: Recipe, options: &BaseOptions) -> bool {
        is_current(self, recipe, options)
    }

    /// Whether the newest build has the distribution's Node, because the wanted one could not be downloaded.
    pub fn lacks_node(&self, recipe: Recipe) -> bool {
        let newest = self.newest(recipe.name());
        newest
            .is_some_and(|(manifest, _)| manifest.fingerprint.is_some_and(|text| text.ends_with(OTHER_NODE)))
    }
}

fn is_current(store: &TemplateStore, recipe: Recipe, options: &BaseOptions) -> bool {
    let Some((manifest, _)) = store.newest(recipe.name()) else { return false };
    match plan(recipe, options, Some(&manifest)) {
        Ok((plan, _)) => manifest.fingerprint.is_some_and(|found| {
            found.strip_suffix(OTHER_NODE).unwrap_or(&found) == fingerprint(recipe, &plan.suite)
        }),
        Err(_) => true,
    }
}

fn build(
    store: &TemplateStore,
    recipe: Recipe,
    options: &BaseOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Template, BuildError> {
    if !rustix::process::geteuid().is_root() {
        return Err(BuildError::NotRoot);
    }
    let tool = Tool::find().ok_or(BuildError::NoTool)?;
    let name = recipe.name();
    let before = store.newest(name).map(|(manifest, _)| manifest);
    let (plan, suite) = plan(recipe, options, before.as_ref())?;
    let mut fingerprint = Some(fingerprint(recipe, &plan.suite));
    check_space(store.directory())?;

    let mut waited = false;
    let draft = store.draft(name, &mut || {
        waited = true;
        progress(Progress::at(Phase::Waiting));
    })?;
    // After waiting for another process's build, use that one.
    if waited
        && let Some((theirs, directory)) = store.newest(name)
        && before.is_none_or(|before| before.build != theirs.build)
        && theirs.fingerprint == fingerprint
    {
        return Ok(theirs.into_template(&directory));
    }

    let tree = Tree::at(draft.directory().join("rootfs"));
    let scratch = make_scratch(draft.directory())?;
    let log_path = store.log_path(name);
    let node = match recipe {
        Recipe::Base => Some(node::download(&options.npm, &scratch, progress)),
        Recipe::Debian12 | Recipe::Debian13 => None,
    };
    let mut packages = recipe.packages().to_vec();
    if let Some(Err(why)) = &node {
        tracing::warn!("{}", without_node(why));
        packages.extend(NODE_PACKAGES);
        fingerprint = fingerprint.map(|text| text + OTHER_NODE);
    }
    progress(Progress::at(Phase::Index));
    let mut run = Run {
        tree: &tree,
        scratch: &scratch,
        lock: draft.share_lock().map_err(BuildError::file("share the lock of", draft.directory()))?,
        log: Run::create_log(&log_path)?,
        log_path,
        progress,
        reader: Reader::new(),
    };
    run.lay(tool, &plan, &packages)?;
    (run.progress)(Progress::at(Phase::Finish));
    if let Some(Ok(node)) = &node {
        node.install(&tree)?;
    }
    let mut notes = finish(&mut run, &plan, recipe.check())?;
    if let Some(Err(why)) = &node {
        notes.insert(0, without_node(why));
    }
    drop(run);
    fs::remove_dir_all(&scratch).map_err(BuildError::file("remove", &scratch))?;

    let mut manifest = draft.manifest();
    manifest.fingerprint = fingerprint;
    manifest.suite = suite;
    manifest.notes = notes;
    manifest.env = super::environment();
    manifest.overlays = vec![OverlaySpec { target: "/".into(), layers: vec![LayerSpec::own("rootfs")] }];
    let template = draft.publish(manifest, Keep::AcrossReboots)?;
    progress(Progress { phase: Phase::Finish, done: 1, total: 1 });
    Ok(template)
}

/// The note of a `base` with the distribution's Node.
fn without_node(why: &NoNode) -> String {
    format!(
        "Node 22 is missing and the distribution's Node stands in: {why}; `coffer template build base` tries again"
    )
}

fn make_scratch(draft: &Path) -> Result<PathBuf, BuildError> {
    // Readable for apt's own user, which fetches and verifies.
    let scratch = draft.join("scratch");
    fs::create_dir(&scratch).map_err(BuildError::file("make", &scratch))?;
    Ok(scratch)
}

fn check_space(path: &Path) -> Result<(), BuildError> {
    let space = statvfs(path).map_err(|errno| BuildError::file("measure", path)(errno.into()))?;
    let free_bytes = space.f_bavail.saturating_mul(space.f_frsize);
    if free_bytes >= NEEDED_BYTES {
        return Ok(());
    }
    Err(BuildError::NoSpace { path: path.to_path_buf(), free_bytes, needed_bytes: NEEDED_BYTES })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store_with_base(
        fingerprint: Option<String>,
        suite: Option<&str>,
    ) -> (tempfile::TempDir, TemplateStore) {
        let home = tempfile::tempdir().unwrap();
        let store = TemplateStore::open(home.path(), |_| Ok(Vec::new())).unwrap();
        let draft = store.draft(BASE, &mut || panic!("nobody else builds")).unwrap();
        fs::create_dir(draft.directory().join("rootfs")).unwrap();
        let layers = vec![LayerSpec::own("rootfs")];
        let overlays = vec![OverlaySpec { target: "/".into(), layers }];
        let suite = suite.map(String::from);
        let manifest = Manifest { fingerprint, suite, overlays, ..draft.manifest() };
        draft.publish(manifest, Keep::UntilReboot).unwrap();
        (home, store)
    }

    fn asking(suite: &str) -> BaseOptions {
        BaseOptions {
            mirror: Some("http://mirror.test/debian".into()),
            suite: Some(suite.into()),
            ..BaseOptions::default()
        }
    }

    #[test]
    fn a_build_of_another_recipe_or_release_is_stale() {
        let (_home, store) = store_with_base(Some(fingerprint(Recipe::Base, "bookworm")), None);
        assert!(store.is_current(Recipe::Base, &asking("bookworm")));
        assert!(!store.is_current(Recipe::Base, &asking("trixie")));
        for other in [None, Some(format!("0{}", fingerprint(Recipe::Base, "bookworm")))] {
            let (_home, store) = store_with_base(other, None);
            assert!(!store.is_current(Recipe::Base, &asking("bookworm")));
        }
        let empty = tempfile::tempdir().unwrap();
        assert!(
            !TemplateStore::open(empty.path(), |_| Ok(Vec::new()))
                .unwrap()
                .is_current(Recipe::Base, &asking("bookworm"))
        );
    }

    #[test]
    fn a_build_with_another_node_is_current_and_known() {
        let other = format!("{}{OTHER_NODE}", fingerprint(Recipe::Base, "bookworm"));
        let (_home, store) = store_with_base(Some(other), None);
        assert!(store.is_current(Recipe::Base, &asking("bookworm")) && store.lacks_node(Recipe::Base));
        let (_home, store) = store_with_base(Some(fingerprint(Recipe::Base, "bookworm")), None);
        assert!(!store.lacks_node(Recipe::Base));
    }

    #[test]
    fn a_release_that_was_asked_for_is_kept() {
        let (_home, store) = store_with_base(Some(fingerprint(Recipe::Base, "trixie")), Some("trixie"));
        let unasked = BaseOptions { suite: None, ..asking("") };
        assert!(store.is_current(Recipe::Base, &unasked));
        assert!(!store.is_current(Recipe::Base, &asking("bookworm")));
    }
}
