//! The root of the `host` template. Every file in it is written here; from the host come only the layout of
//! `/bin` and similar directories, links in `/etc/alternatives`, and public certificates.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use super::BuildError;
use super::finish::{HOSTS, PIP_CONF, SUDOERS, UID};
use super::tree::Tree;

/// Top-level names that a merged system keeps as links into `/usr`.
const MERGED: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// No public certificate is longer than a few kilobytes.
const LONGEST_CERTIFICATE: u64 = 64 * 1024;

/// Numbers as in Debian's base-passwd; setgid programs in `/usr` rely on some.
const PASSWD: &str = "\
root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
bin:x:2:2:bin:/bin:/usr/sbin/nologin
sys:x:3:3:sys:/dev:/usr/sbin/nologin
man:x:6:12:man:/var/cache/man:/usr/sbin/nologin
mail:x:8:8:mail:/var/mail:/usr/sbin/nologin
www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin
backup:x:34:34:backup:/var/backups:/usr/sbin/nologin
_apt:x:42:65534::/nonexistent:/usr/sbin/nologin
user:x:1000:1000::/home/user:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
";

const GROUPS: &[(&str, u32)] = &[
    ("root", 0),
    ("daemon", 1),
    ("bin", 2),
    ("sys", 3),
    ("adm", 4),
    ("tty", 5),
    ("disk", 6),
    ("mail", 8),
    ("man", 12),
    ("kmem", 15),
    ("dialout", 20),
    ("sudo", 27),
    ("audio", 29),
    ("www-data", 33),
    ("backup", 34),
    ("src", 40),
    ("shadow", 42),
    ("utmp", 43),
    ("video", 44),
    ("staff", 50),
    ("games", 60),
    ("users", 100),
    ("user", 1000),
    ("nogroup", 65534),
];
const SHADOW_GID: u32 = 42;
const UTMP_GID: u32 = 43;

const FILES: &[(&str, u32, &str)] = &[
    ("etc/passwd", 0o644, PASSWD),
    ("etc/hostname", 0o644, "sandbox\n"),
    ("etc/hosts", 0o644, HOSTS),
    ("etc/resolv.conf", 0o644, ""),
    ("etc/machine-id", 0o444, ""),
    ("etc/timezone", 0o644, "Etc/UTC\n"),
    ("etc/pip.conf", 0o644, PIP_CONF),
    ("etc/shells", 0o644, "/bin/sh\n/bin/bash\n/usr/bin/sh\n/usr/bin/bash\n"),
    ("etc/fstab", 0o644, ""),
    ("etc/motd", 0o644, ""),
    ("etc/environment", 0o644, ""),
    ("etc/host.conf", 0o644, "multi on\n"),
    (
        "etc/nsswitch.conf",
        0o644,
        "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\n\
         protocols: files\nservices: files\nethers: files\nrpc: files\n",
    ),
    (
        "etc/login.defs",
        0o644,
        "MAIL_DIR /var/mail\nENV_SUPATH PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n\
         ENV_PATH PATH=/usr/local/bin:/usr/bin:/bin\nUMASK 022\nUID_MIN 1000\nUID_MAX 60000\nGID_MIN 1000\n\
         GID_MAX 60000\nHOME_MODE 0755\nUSERGROUPS_ENAB yes\nENCRYPT_METHOD SHA512\n",
    ),
    (
        "etc/profile",
        0o644,
        "# For login shells.\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nexport PATH\n\
         if [ -n \"$BASH\" ] && [ \"$BASH\" != /bin/sh ] && [ -r /etc/bash.bashrc ]; then . /etc/bash.bashrc; fi\n\
         for part in /etc/profile.d/*.sh; do [ -r \"$part\" ] && . \"$part\"; done\nunset part\n",
    ),
    (
        "etc/bash.bashrc",
        0o644,
        "# For interactive shells.\ncase $- in *i*) ;; *) return ;; esac\nshopt -s checkwinsize\n\
         PS1='\\u@\\h:\\w\\$ '\n",
    ),
    ("etc/inputrc", 0o644, "set meta-flag on\nset convert-meta off\nset output-meta on\n"),
    (
        "etc/protocols",
        0o644,
        "ip 0 IP\nicmp 1 ICMP\ntcp 6 TCP\nudp 17 UDP\nipv6 41 IPv6\nipv6-icmp 58 IPv6-ICMP\n",
    ),
    (
        "etc/services",
        0o644,
        "ftp 21/tcp\nssh 22/tcp\ntelnet 23/tcp\nsmtp 25/tcp\ndomain 53/tcp\ndomain 53/udp\nhttp 80/tcp www\n\
         ntp 123/udp\nimap2 143/tcp\nhttps 443/tcp\nhttps 443/udp\nimaps 993/tcp\nmysql 3306/tcp\n\
         postgresql 5432/tcp\nredis 6379/tcp\nhttp-alt 8080/tcp\ngit 9418/tcp\n",
    ),
    ("etc/sudoers.d/user", 0o440, SUDOERS),
    (
        "etc/sudoers",
        0o440,
        "Defaults env_reset\nDefaults secure_path=\"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\"\n\
         root ALL=(ALL:ALL) ALL\n@includedir /etc/sudoers.d\n",
    ),
    (
        "etc/ssl/openssl.cnf",
        0o644,
        "[req]\ndistinguished_name = req_distinguished_name\n\n[req_distinguished_name]\n",
    ),
    ("home/user/.profile", 0o644, "[ -n \"$BASH\" ] && [ -r ~/.bashrc ] && . ~/.bashrc\n"),
    (
        "home/user/.bashrc",
        0o644,
        "case $- in *i*) ;; *) return ;; esac\nHISTCONTROL=ignoreboth\nalias ls='ls --color=auto'\nalias ll='ls -l'\n",
    ),
    ("root/.bashrc", 0o644, ""),
    ("var/lib/dpkg/status", 0o644, ""),
    ("var/lib/dpkg/available", 0o644, ""),
];

const DIRECTORIES: &[(&str, u32)] = &[
    ("", 0o755),
    ("boot", 0o755),
    ("dev", 0o755),
    ("etc", 0o755),
    ("etc/alternatives", 0o755),
    ("etc/ld.so.conf.d", 0o755),
    ("etc/pam.d", 0o755),
    ("etc/profile.d", 0o755),
    ("etc/security", 0o755),
    ("etc/skel", 0o755),
    ("etc/ssl/certs", 0o755),
    ("etc/sudoers.d", 0o750),
    ("home", 0o755),
    ("home/user", 0o755),
    ("media", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/lib/dpkg/info", 0o755),
    ("var/lib/dpkg/updates", 0o755),
    ("var/local", 0o755),
    ("var/log", 0o755),
    ("var/mail", 0o755),
    ("var/opt", 0o755),
    ("var/spool", 0o755),
    ("var/tmp", 0o1777),
];

const LINKS: &[(&str, &str)] = &[
    ("etc/localtime", "/usr/share/zoneinfo/Etc/UTC"),
    ("etc/mtab", "../proc/self/mounts"),
    ("etc/os-release", "../usr/lib/os-release"),
    ("var/lock", "/run/lock"),
    ("var/run", "/run"),
];

/// Programs that use PAM to change their user. Passwords are not set, so `su` works only for root; `sudo`
/// asks for none.
const PAM_SERVICES: [&str; 11] =
    ["other", "sudo", "sudo-i", "su", "su-l", "runuser", "runuser-l", "login", "passwd", "chsh", "chfn"];
const PAM: &str = "\
auth sufficient pam_rootok.so
auth required pam_unix.so
account required pam_unix.so
password required pam_unix.so
session required pam_unix.so quiet
";

/// Writes the root; the notes say what is missing.
pub(super) fn write(tree: &Tree, host: &Path) -> Result<Vec<String>, BuildError> {
    let mut notes = Vec::new();
    for (path, mode) in DIRECTORIES {
        tree.directory(path, *mode)?;
    }
    merge(tree, host)?;
    for (path, mode, text) in FILES {
        tree.file(path, *mode, text)?;
    }
    for (path, target) in LINKS {
        tree.link(path, target)?;
    }
    accounts(tree)?;
    for service in PAM_SERVICES {
        tree.file(&format!("etc/pam.d/{service}"), 0o644, PAM)?;
    }
    for path in ["home/user", "home/user/.profile", "home/user/.bashrc"] {
        tree.own(path, UID, UID)?;
    }
    alternatives(tree, host)?;
    notes.extend(certificates(tree, host)?);
    notes.extend(library_cache(tree, host)?);
    notes.push("apt and dpkg inside list no installed packages".into());
    Ok(notes)
}

/// Creates `/bin` and similar as the host has them: links into `/usr`, or absent.
fn merge(tree: &Tree, host: &Path) -> Result<(), BuildError> {
    for name in MERGED {
        let path = host.join(name);
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        let target = fs::read_link(&path).ok().filter(|_| metadata.is_symlink());
        let target = target.map(|target| target.strip_prefix("/").map(PathBuf::from).unwrap_or(target));
        match target {
            Some(target) if target.starts_with("usr") && !climbs(&target) => tree.link(name, target)?,
            _ => return Err(BuildError::NotMerged { path }),
        }
    }
    Ok(())
}

fn climbs(path: &Path) -> bool {
    path.components().any(|part| part == Component::ParentDir)
}

fn accounts(tree: &Tree) -> Result<(), BuildError> {
    let groups: String = GROUPS.iter().map(|(name, gid)| format!("{name}:x:{gid}:\n")).collect();
    tree.file("etc/group", 0o644, groups)?;
    let locked: String = GROUPS.iter().map(|(name, _)| format!("{name}:*::\n")).collect();
    tree.file("etc/gshadow", 0o640, locked)?;
    let names = PASSWD.lines().filter_map(|line| line.split(':').next());
    let locked: String = names.map(|name| format!("{name}:*:19000:0:99999:7:::\n")).collect();
    tree.file("etc/shadow", 0o640, locked)?;
    for path in ["etc/gshadow", "etc/shadow"] {
        tree.own(path, 0, SHADOW_GID)?;
    }
    for path in ["var/log/wtmp", "var/log/lastlog"] {
        tree.file(path, 0o664, "")?;
        tree.own(path, 0, UTMP_GID)?;
    }
    Ok(())
}

/// Programs in `/usr/bin` are often links through `/etc/alternatives`. Only links back into `/usr` are
/// copied, and no manual pages.
fn alternatives(tree: &Tree, host: &Path) -> Result<(), BuildError> {
    for entry in fs::read_dir(host.join("etc/alternatives")).into_iter().flatten().flatten() {
        let (Ok(target), Ok(name)) = (fs::read_link(entry.path()), entry.file_name().into_string()) else {
            continue;
        };
        if target.starts_with("/usr") && !target.starts_with("/usr/share/man") && !climbs(&target) {
            tree.link(&format!("etc/alternatives/{name}"), target)?;
        }
    }
    Ok(())
}

/// The distribution's public authorities; those that the host's owner added are not copied.
fn certificates(tree: &Tree, host: &Path) -> Result<Option<String>, BuildError> {
    let mut bundle = Vec::new();
    let mut pending = vec![host.join("usr/share/ca-certificates")];
    let mut files = Vec::new();
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.metadata() {
                // Files that other users of the host cannot read are not copied.
                Ok(metadata) if metadata.is_dir() && metadata.mode() & 0o005 == 0o005 => {
                    pending.push(entry.path());
                }
                Ok(metadata)
                    if metadata.is_file()
                        && metadata.mode() & 0o004 != 0
                        && metadata.len() <= LONGEST_CERTIFICATE =>
                {
                    files.push(entry.path());
                }
                _ => {}
            }
        }
    }
    files.sort();
    for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "crt")) {
        let text = fs::read(file).map_err(BuildError::file("read", file))?;
        if text.starts_with(b"-----BEGIN CERTIFICATE-----") {
            bundle.extend_from_slice(&text);
            if !text.ends_with(b"\n") {
                bundle.push(b'\n');
            }
        }
    }
    let missing = bundle.is_empty();
    tree.file("etc/ssl/certs/ca-certificates.crt", 0o644, bundle)?;
    tree.link("etc/ssl/cert.pem", "certs/ca-certificates.crt")?;
    Ok(missing.then(|| {
        "the host has no public certificates (ca-certificates): TLS inside trusts no authority".into()
    }))
}

/// The dynamic linker's cache for this root. Without it programs start a little slower, and libraries in
/// `/usr/local/lib` are not found.
fn library_cache(tree: &Tree, host: &Path) -> Result<Option<String>, BuildError> {
    let mut directories = String::from("/usr/local/lib\n");
    for entry in fs::read_dir(host.join("usr/lib")).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.contains("-linux-gnu")) else { continue };
        directories.push_str(&format!("/usr/local/lib/{name}\n/usr/lib/{name}\n"));
    }
    tree.file("etc/ld.so.conf", 0o644, directories)?;
    // In its own mount namespace, so that the bind mount ends with it.
    let script = "mount --bind -o ro \"$1\" \"$2/usr\" && exec ldconfig -X -r \"$2\"";
    let status = Command::new("unshare")
        .args(["--mount", "--", "/bin/sh", "-c", script, "sh"])
        .arg(host.join("usr"))
        .arg(tree.root())
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    tree.remove("var/cache/ldconfig")?;
    Ok(match status {
        Ok(status) if status.success() => None,
        _ => Some("no cache of shared libraries: ldconfig failed".into()),
    })
}
