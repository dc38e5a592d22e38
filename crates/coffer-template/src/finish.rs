//! Turns a bootstrapped tree into a template: adds the user, and removes traces of host and build.

use std::fs;
use std::path::Path;

use super::BuildError;
use super::bootstrap::{BUILD_APT_CONF, BUILD_DPKG_CONF, Run};
use super::sources::{Plan, Source};
use super::tree::Tree;

pub(super) const USER: &str = "user";
pub(super) const UID: u32 = 1000;

/// No pseudo-terminal for each command: sudo then costs one process less, signals reach the command directly,
/// and the user is as good as root anyway.
pub(super) const SUDOERS: &str = "Defaults !use_pty\nuser ALL=(ALL:ALL) NOPASSWD: ALL\n";

pub(super) const HOSTS: &str = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n";

/// A sandbox is disposable: pip need not protect the system.
pub(super) const PIP_CONF: &str = "[global]\nbreak-system-packages = true\n";

/// One file instead of two dozen that every program opens when it starts: a sixth of the cost of starting a
/// small program.
const LOCALE: &str = "localedef --add-to-archive /usr/lib/locale/C.utf8";

/// Lists the contents, and fails if a program cannot run.
pub(super) const CHECK: &str = r#"
. /etc/os-release; echo "$PRETTY_NAME"
echo "python $(python --version | cut -d' ' -f2), pip $(pip --version | cut -d' ' -f2)"
echo "node $(node --version), npm $(npm --version)"; npx --version >/dev/null
git --version; test -x "$(git --exec-path)/git-daemon"
sudo -V 2>/dev/null | head -n 1
gcc -dumpfullversion | sed 's/^/gcc /'
echo "$(dpkg-query -W | wc -l) packages"
"#;

/// The same for a template without tools.
pub(super) const FEW_CHECK: &str = r#"
. /etc/os-release; echo "$PRETTY_NAME"
curl --version | head -n 1 | cut -d' ' -f1-2
sudo -V 2>/dev/null | head -n 1
echo "$(dpkg-query -W | wc -l) packages"
"#;

/// Texts written into every build, as part of its recipe.
pub(super) const TEXTS: [&str; 5] = [USER, SUDOERS, HOSTS, PIP_CONF, LOCALE];

/// Returns notes about the contents.
pub(super) fn finish(run: &mut Run<'_>, plan: &Plan, check: &str) -> Result<Vec<String>, BuildError> {
    run.inside(
        "useradd",
        &format!(
            "groupadd --gid {UID} {USER}; useradd --uid {UID} --gid {UID} --no-log-init --create-home \
             --shell /bin/bash {USER}; visudo -cf /etc/sudoers >/dev/null"
        ),
    )?;
    let tree = run.tree;
    tree.directory("home/user", 0o755)?;
    tree.own("home/user", UID, UID)?;
    tree.directory("etc/sudoers.d", 0o750)?;
    tree.file("etc/sudoers.d/user", 0o440, SUDOERS)?;
    run.inside("localedef", LOCALE)?;
    let notes = run.inside("the check of what was built", check)?;
    clean(tree)?;
    write_etc(tree, &plan.sources)?;
    Ok(notes)
}

/// Removes remains of the build and copies of host files.
fn clean(tree: &Tree) -> Result<(), BuildError> {
    for directory in [
        "dev",
        "run",
        "tmp",
        "var/tmp",
        "root",
        "var/lib/apt/lists",
        "var/cache/apt",
        "var/cache/ldconfig",
        "etc/apt/sources.list.d",
        "etc/apt/auth.conf.d",
    ] {
        tree.empty(directory)?;
    }
    for file in [
        BUILD_APT_CONF,
        BUILD_DPKG_CONF,
        "etc/apt/apt.conf.d/99mmdebstrap",
        "etc/dpkg/dpkg.cfg.d/99mmdebstrap",
        "etc/apt/apt.conf",
        "var/lib/dbus/machine-id",
        "var/lib/systemd/random-seed",
        "var/cache/debconf/config.dat-old",
        "var/cache/debconf/templates.dat-old",
        "var/lib/dpkg/status-old",
        "var/lib/dpkg/diversions-old",
        "etc/passwd-",
        "etc/group-",
        "etc/shadow-",
        "etc/gshadow-",
        "etc/subuid-",
        "etc/subgid-",
    ] {
        tree.remove(file)?;
    }
    tree.directory("run/lock", 0o1777)?;
    empty_logs(&tree.path("var/log"))?;
    remove_matching(tree, "etc/ssh", |name| name.starts_with("ssh_host_"))
}

/// Log directories stay as packages created them; files written during the build are removed.
fn empty_logs(directory: &Path) -> Result<(), BuildError> {
    for entry in fs::read_dir(directory).map_err(BuildError::file("read", directory))?.flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => empty_logs(&path)?,
            // wtmp, btmp and lastlog have owners that are worth keeping.
            Ok(kind)
                if kind.is_file()
                    && ["wtmp", "btmp", "lastlog", "faillog"].iter().any(|kept| path.ends_with(kept)) =>
            {
                fs::OpenOptions::new()
                    .write(true)
                    .truncate(true)
                    .open(&path)
                    .map(drop)
                    .map_err(BuildError::file("empty", &path))?;
            }
            _ => fs::remove_file(&path).map_err(BuildError::file("remove", &path))?,
        }
    }
    Ok(())
}

fn remove_matching(tree: &Tree, directory: &str, wanted: impl Fn(&str) -> bool) -> Result<(), BuildError> {
    for entry in fs::read_dir(tree.path(directory)).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.to_str().is_some_and(&wanted) {
            fs::remove_file(entry.path()).map_err(BuildError::file("remove", entry.path()))?;
        }
    }
    Ok(())
}

fn write_etc(tree: &Tree, sources: &[Source]) -> Result<(), BuildError> {
    let lines: String = sources.iter().map(Source::public_line).collect();
    tree.file("etc/apt/sources.list", 0o644, lines)?;
    tree.file("etc/apt/apt.conf.d/90sandbox", 0o644, "Acquire::Languages \"none\";\n")?;
    // A sandbox does not survive a power cut; packages install several times faster this way.
    tree.file("etc/dpkg/dpkg.cfg.d/sandbox", 0o644, "force-unsafe-io\n")?;
    // Mount points for each sandbox's own files.
    tree.file("etc/hostname", 0o644, "sandbox\n")?;
    tree.file("etc/hosts", 0o644, HOSTS)?;
    tree.file("etc/resolv.conf", 0o644, "")?;
    tree.file("etc/machine-id", 0o444, "")?;
    tree.file("etc/pip.conf", 0o644, PIP_CONF)?;
    tree.file("etc/timezone", 0o644, "Etc/UTC\n")?;
    tree.link("etc/localtime", "/usr/share/zoneinfo/Etc/UTC")?;
    tree.link("etc/mtab", "../proc/self/mounts")
}

#[cfg(test)]
mod tests {
    use super::super::sources::Keyring;
    use super::*;

    #[test]
    fn nothing_of_host_or_build_stays() {
        let directory = tempfile::tempdir().unwrap();
        let tree = Tree::at(directory.path().join("rootfs"));
        let left = [
            "etc/hostname",
            "etc/resolv.conf",
            "etc/apt/apt.conf.d/99mmdebstrap",
            "etc/apt/sources.list.d/0000sources.list",
            "etc/ssh/ssh_host_rsa_key",
            "var/log/apt/term.log",
            "var/log/dpkg.log",
            "var/log/wtmp",
            "var/lib/apt/lists/list",
            "run/secret.sock",
            "root/.wget-hsts",
            "tmp/x",
            "etc/shadow-",
        ];
        for path in left {
            let (parent, _) = path.rsplit_once('/').unwrap();
            tree.directory(parent, 0o755).unwrap();
            tree.file(path, 0o644, "buildhost and proxy.test").unwrap();
        }
        tree.directory("etc/dpkg/dpkg.cfg.d", 0o755).unwrap();
        tree.file("etc/ssh/ssh_config", 0o644, "kept").unwrap();
        clean(&tree).unwrap();
        let source = Source {
            uri: "http://me:pw@mirror.test/debian".into(),
            suite: "bookworm".into(),
            components: vec!["main".into()],
            keyring: Keyring::Default,
        };
        write_etc(&tree, &[source]).unwrap();
        let found = std::process::Command::new("grep")
            .args(["-rlE", "buildhost|proxy.test|pw@"])
            .arg(tree.root())
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&found.stdout), "");
        assert_eq!(fs::read_to_string(tree.path("etc/ssh/ssh_config")).unwrap(), "kept");
        assert_eq!(fs::read_to_string(tree.path("etc/machine-id")).unwrap(), "");
        assert!(tree.path("var/log/wtmp").exists() && tree.path("var/log/apt").exists());
    }
}
