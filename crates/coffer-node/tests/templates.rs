//! The two templates for real: built, then entered in a plain user namespace with the capabilities
//! that a sandbox has.
//!
//! `base` takes minutes and a network, so it is built only where the shared store lacks it
//! (`COFFER_TEMPLATE_DIR`, else the default place). Everything here needs root.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests may spawn, sleep and poison locks"
)]
#![expect(clippy::unwrap_used, reason = "a test ends at its first surprise")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use coffer_template::{BASE, BaseOptions, BuildError, Recipe, Template, TemplateStore};

fn root_or_skip() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: templates are built and entered as root");
    }
    root
}

fn shared_store() -> TemplateStore {
    let directory = std::env::var_os("COFFER_TEMPLATE_DIR");
    let directory = directory.map_or_else(|| "/var/cache/coffer/templates".into(), PathBuf::from);
    TemplateStore::open(directory, coffer_node::layers_in_use).unwrap()
}

fn base_or_skip() -> Option<Template> {
    if !root_or_skip() {
        return None;
    }
    let store = shared_store();
    if let Some(template) = store.get(BASE) {
        return Some(template);
    }
    let began = Instant::now();
    let mut last = String::new();
    let built = store.bootstrap(Recipe::Base, &BaseOptions::default(), &mut |progress| {
        let line = format!("{:3.0}% {}", progress.overall() * 100.0, progress.phase);
        if line != last {
            eprintln!("{line}");
            last = line;
        }
    });
    match built {
        Ok(template) => {
            let megabytes = template.size_bytes / 1_000_000;
            eprintln!("built base in {:.0?}, {megabytes} MB", began.elapsed());
            Some(template)
        }
        Err(error @ (BuildError::NoTool | BuildError::Sources(_))) => {
            eprintln!("SKIPPED: base cannot be built here: {error}");
            None
        }
        Err(error) if error.hint().is_some_and(|hint| hint.contains("mirror was not reached")) => {
            eprintln!("SKIPPED: base needs a network: {error}");
            None
        }
        Err(error) => panic!("{error}\nhint: {:?}\n{error:?}", error.hint()),
    }
}

/// Mounts the overlays, makes a user namespace, cuts the capabilities and runs `$SCRIPT` inside.
const ENTER: &str = r#"
set -eu
root=$1; scratch=$2; shift 2
# A tmpfs: overlayfs does not stack its upper on every filesystem.
mount -t tmpfs none "$scratch"
number=0
while [ $# -gt 0 ]; do
    number=$((number + 1))
    mkdir "$scratch/$number" "$scratch/$number/upper" "$scratch/$number/work"
    mount -t overlay none -o "lowerdir=$2,upperdir=$scratch/$number/upper,workdir=$scratch/$number/work" "$root$1"
    shift 2
done
mount -t proc none "$root/proc"
mount -t tmpfs -o mode=755 none "$root/dev"
for node in null zero full random urandom tty; do touch "$root/dev/$node"; mount --bind "/dev/$node" "$root/dev/$node"; done
ln -s /proc/self/fd "$root/dev/fd"
mkdir "$root/dev/pts"
mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 none "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs -o mode=755 none "$root/run"
# What the engine does for each sandbox.
hostname sandbox
echo '127.0.1.1 sandbox' >>"$root/etc/hosts"
mkfifo "$scratch/go"
caps=-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+sys_chroot,+audit_write,+setfcap
env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 SCRIPT="$SCRIPT" \
    unshare --user sh -c 'read -r go <"$1"; exec setpriv --bounding-set="$2" chroot "$3" /bin/bash -euc "$SCRIPT"' \
    sh "$scratch/go" "$caps" "$root" </dev/null &
until [ "$(readlink "/proc/$!/ns/user")" != "$(readlink /proc/self/ns/user)" ]; do :; done
echo '0 0 65536' >"/proc/$!/uid_map"
echo '0 0 65536' >"/proc/$!/gid_map"
echo >"$scratch/go"
wait $!
"#;

/// The output of `script`, both streams, in a temporary sandbox of the template.
fn inside(template: &Template, script: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let (root, scratch) = (directory.path().join("root"), directory.path().join("scratch"));
    fs::create_dir(&root).unwrap();
    fs::create_dir(&scratch).unwrap();
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--uts",
        "--ipc",
        "--net",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--",
    ]);
    command.args(["bash", "-c", ENTER, "bash"]).arg(&root).arg(&scratch);
    for overlay in &template.overlays {
        let layers: Vec<_> = overlay.layers.iter().map(|layer| layer.path.to_str().unwrap()).collect();
        let target = overlay.target.to_str().unwrap();
        command.arg(if target == "/" { "" } else { target }).arg(layers.join(":"));
    }
    let (mut output, writer) = std::io::pipe().unwrap();
    command.env("SCRIPT", script).stdin(Stdio::null());
    command.stdout(writer.try_clone().unwrap()).stderr(writer);
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut output, &mut text).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
    text
}

fn mode_and_owner(root: &Path, path: &str) -> (u32, u32, u32) {
    let metadata = fs::symlink_metadata(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    (metadata.permissions().mode() & 0o7777, metadata.uid(), metadata.gid())
}

fn assert_common(root: &Path) {
    for (path, expected) in [
        ("home/user", (0o755, 1000, 1000)),
        ("root", (0o700, 0, 0)),
        ("tmp", (0o1777, 0, 0)),
        ("var/tmp", (0o1777, 0, 0)),
        ("etc/sudoers", (0o440, 0, 0)),
        ("etc/sudoers.d/user", (0o440, 0, 0)),
        ("etc/shadow", (0o640, 0, 42)),
        ("etc/passwd", (0o644, 0, 0)),
    ] {
        assert_eq!(mode_and_owner(root, path), expected, "{path}");
    }
    for empty in ["etc/machine-id", "etc/resolv.conf"] {
        assert_eq!(fs::read_to_string(root.join(empty)).unwrap(), "", "{empty}");
    }
    assert_eq!(fs::read_to_string(root.join("etc/hostname")).unwrap(), "sandbox\n");
    assert_eq!(fs::read_dir(root.join("dev")).unwrap().count(), 0);
    let count = |arguments: &[&str]| {
        let found = Command::new("find").arg(root).args(["-xdev"]).args(arguments).output().unwrap();
        String::from_utf8(found.stdout).unwrap()
    };
    assert_eq!(count(&["-uid", "+65535", "-o", "-gid", "+65535"]), "", "ids beyond a sandbox's range");
    assert_eq!(count(&["-type", "b", "-o", "-type", "c", "-o", "-type", "s"]), "", "devices and sockets");
}

/// `sudo` without a word too many: no password, no unknown host, no refused limit or audit.
const SUDO_CHECK: &str = r#"
[ "$(awk '/^CapBnd/ { print $2 }' /proc/self/status)" = 00000000a00405fb ]
as_user() { setpriv --reuid=1000 --regid=1000 --init-groups env HOME=/home/user USER=user bash -c "$1"; }
[ "$(as_user 'sudo -n id -un 2>&1')" = root ]
[ "$(as_user 'sudo -n -u nobody id -un 2>&1')" = nobody ]
[ "$(as_user 'script -qec "sudo -n id -un" /dev/null 2>&1' | tr -d '\r\n')" = root ]
[ "$(as_user 'sudo -n sh -c "exit 7" 2>&1; echo $?')" = 7 ]
[ "$(as_user 'sudo -n su - user -c "id -un; pwd" 2>&1')" = "$(printf 'user\n/home/user')" ]
[ "$(as_user 'sudo -n bash -c "echo x >/root/x && chown 1000:1000 /root/x && stat -c %u /root/x" 2>&1')" = 1000 ]
[ "$(id user)" = 'uid=1000(user) gid=1000(user) groups=1000(user)' ]
[ "$(as_user 'cd && touch a && stat -c %U:%G a')" = user:user ]
"#;

#[test]
fn host_is_ready_in_a_moment_and_works_inside() {
    if !root_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let store = TemplateStore::open(directory.path(), coffer_node::layers_in_use).unwrap();
    let began = Instant::now();
    let template = store.ensure_host().unwrap();
    eprintln!("made host in {:?}, {} bytes", began.elapsed(), template.size_bytes);
    for note in &template.notes {
        eprintln!("  {note}");
    }
    let began = Instant::now();
    assert_eq!(store.ensure_host().unwrap(), template);
    assert!(began.elapsed() < Duration::from_millis(200), "{:?}", began.elapsed());

    let root = &template.overlays[0].layers[0].path;
    assert_common(root);
    let text = inside(
        &template,
        "ls -d /root/.[a-z]* /home/* /opt/* /srv/* /var/lib/* /usr/etc/* /usr/local/etc/* 2>/dev/null || true; \
         test -z \"$(ls /opt)\"; head -n 1 /etc/shadow; ldconfig -p | head -n 1 | grep -q ' libs'",
    );
    assert_eq!(text, "/home/user\n/root/.bashrc\n/var/lib/dpkg\nroot:*:19000:0:99999:7:::\n");
    if Path::new("/usr/bin/sudo").exists() {
        inside(&template, SUDO_CHECK);
    } else {
        eprintln!("SKIPPED: sudo in the host template, this host has none");
    }
    if Path::new("/usr/bin/python3").exists() {
        let script = "python -c 'import ssl; print(len(ssl.create_default_context().get_ca_certs()) > 0)'";
        let has_certificates =
            fs::metadata(root.join("etc/ssl/certs/ca-certificates.crt")).unwrap().len() > 0;
        assert_eq!(inside(&template, script), if has_certificates { "True\n" } else { "False\n" });
    } else {
        eprintln!("SKIPPED: python in the host template, this host has none in /usr/bin");
    }
}

#[test]
fn base_has_what_people_expect() {
    let Some(template) = base_or_skip() else { return };
    let text = inside(
        &template,
        r#"
        for program in bash python python3 pip node npm npx git curl wget sudo gcc g++ make ps ip ss less vi nano \
            unzip zip xz jq rg ssh file lsof killall nc rsync tree pgrep; do
            command -v "$program" >/dev/null || echo "missing: $program"
        done
        python -c 'import ssl, sqlite3, venv, sys; assert sys.version_info >= (3, 9); print("python")'
        python -c 'import ssl; assert ssl.create_default_context().get_ca_certs()' || echo "no certificates"
        cd /tmp && python -m venv v && v/bin/python -c 'print("venv")'
        node -e 'console.log([1, 2, 3].at(-1))'
        npm --version >/dev/null
        git init -q r && git -C r -c user.name=a -c user.email=a@b commit -q --allow-empty -m c && git daemon --help >/dev/null 2>&1 || test -x "$(git --exec-path)/git-daemon"
        printf 'int main(void){return 0;}' >a.c && gcc a.c -o a && ./a
        printf '\303\244' | wc -m
        date +%Z
        "#,
    );
    assert_eq!(text, "python\nvenv\n3\n1\nUTC\n");
    inside(&template, SUDO_CHECK);
}

#[test]
fn base_keeps_nothing_of_its_host() {
    let Some(template) = base_or_skip() else { return };
    let [overlay] = &template.overlays[..] else { panic!("{:?}", template.overlays) };
    let root = &overlay.layers[0].path;
    assert_common(root);
    for setuid in ["usr/bin/sudo", "usr/bin/su", "usr/bin/passwd", "usr/bin/mount"] {
        assert_eq!(mode_and_owner(root, setuid), (0o4755, 0, 0), "{setuid}");
    }
    for gone in
        ["etc/apt/apt.conf.d/99mmdebstrap", "etc/dpkg/dpkg.cfg.d/99mmdebstrap", "usr/sbin/policy-rc.d"]
    {
        assert!(!root.join(gone).exists(), "{gone}");
    }
    for empty in ["var/lib/apt/lists", "var/cache/apt", "etc/apt/sources.list.d", "tmp", "root"] {
        assert_eq!(fs::read_dir(root.join(empty)).map_or(0, Iterator::count), 0, "{empty}");
    }
    let mut secrets: Vec<String> = ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"]
        .iter()
        .filter_map(|variable| std::env::var(variable).ok())
        .collect();
    let resolv = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let words = |line: &str| -> Vec<String> { line.split_whitespace().skip(1).map(String::from).collect() };
    secrets.extend(resolv.lines().filter(|line| !line.starts_with('#')).flat_map(words));
    let hostname = fs::read_to_string("/etc/hostname").unwrap_or_default();
    // Shorter names are in every dictionary.
    secrets.extend(Some(hostname.trim().to_string()).filter(|name| name.len() >= 6));
    secrets.retain(|secret| secret.len() >= 6);
    for secret in secrets {
        let found = ["etc", "var", "root", "home"].map(|directory| root.join(directory));
        let found = Command::new("grep").args(["-rlIF", "--", &secret]).args(found).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&found.stdout), "", "the host's `{secret}` is in the template");
    }
}
