use std::os::unix::fs::{FileTypeExt, symlink};

use super::*;

fn root_or_skip() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: whiteouts and owners need root");
    }
    root
}

/// A fake machine: merged `/usr`, a program or two, and files that must not be visible.
fn machine() -> tempfile::TempDir {
    let host = tempfile::tempdir().unwrap();
    let tree = Tree::at(host.path());
    for directory in [
        "etc/alternatives",
        "usr/bin",
        "usr/lib/ssl",
        "usr/etc",
        "usr/local/bin",
        "usr/local/etc",
        "usr/local/share/keys",
        "usr/share/ca-certificates/mozilla",
        "root",
        "opt/node/bin",
    ] {
        tree.directory(directory, 0o755).unwrap();
    }
    for name in ["bin", "sbin", "lib"] {
        tree.link(name, format!("usr/{name}")).unwrap();
    }
    tree.link("lib64", "/usr/lib64").unwrap();
    for (path, mode) in [
        ("usr/bin/python3", 0o755),
        ("usr/bin/vim.tiny", 0o755),
        ("opt/node/bin/node", 0o755),
        ("usr/etc/npmrc", 0o644),
        ("usr/local/etc/gitconfig", 0o644),
        ("usr/pip.conf", 0o644),
        ("usr/local/share/keys/public", 0o644),
        ("root/.netrc", 0o600),
        ("etc/shadow", 0o640),
    ] {
        tree.file(path, mode, "hostsecret").unwrap();
    }
    let certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----";
    for name in ["a", "b"] {
        tree.file(&format!("usr/share/ca-certificates/mozilla/{name}.crt"), 0o644, certificate).unwrap();
    }
    tree.file("usr/share/ca-certificates/mozilla/closed.crt", 0o640, certificate).unwrap();
    tree.directory("usr/share/ca-certificates/closed", 0o750).unwrap();
    tree.file("usr/share/ca-certificates/closed/c.crt", 0o644, certificate).unwrap();
    tree.link("usr/bin/vi", host.path().join("etc/alternatives/vi")).unwrap();
    for (name, target) in [
        ("vi", "/usr/bin/vim.tiny"),
        ("out", "/opt/x"),
        ("climb", "/usr/../root/.netrc"),
        ("vi.1.gz", "/usr/share/man/man1/vi.1.gz"),
    ] {
        symlink(target, host.path().join("etc/alternatives").join(name)).unwrap();
    }
    host
}

fn store() -> (tempfile::TempDir, TemplateStore) {
    let directory = tempfile::tempdir().unwrap();
    let store = TemplateStore::open(directory.path(), |_| Ok(Vec::new())).unwrap();
    (directory, store)
}

#[test]
fn nothing_of_the_hosts_own_files_is_copied() {
    if !root_or_skip() {
        return;
    }
    let (host, (_directory, store)) = (machine(), store());
    let template = ensure_from(&store, host.path()).unwrap();
    let [root, usr] = &template.overlays[..] else { panic!("{:?}", template.overlays) };
    assert_eq!((root.target.as_path(), usr.target.as_path()), (Path::new("/"), Path::new("/usr")));
    assert_eq!(usr.layers[1].path, host.path().join("usr"));
    for layer in [&root.layers[0], &usr.layers[0]] {
        let found =
            std::process::Command::new("grep").args(["-r", "hostsecret"]).arg(&layer.path).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&found.stdout), "");
    }
    let alternatives = root.layers[0].path.join("etc/alternatives");
    let mut links: Vec<_> = fs::read_dir(alternatives)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    links.sort();
    assert_eq!(links, ["vi"]);
    assert_eq!(fs::read_link(root.layers[0].path.join("lib64")).unwrap(), Path::new("usr/lib64"));
    let bundle = fs::read_to_string(root.layers[0].path.join("etc/ssl/certs/ca-certificates.crt")).unwrap();
    assert_eq!(bundle.lines().filter(|line| *line == "-----END CERTIFICATE-----").count(), 2);
}

#[test]
fn what_may_be_secret_in_usr_is_covered() {
    if !root_or_skip() {
        return;
    }
    let (host, (_directory, store)) = (machine(), store());
    let template = ensure_from(&store, host.path()).unwrap();
    let layer = &template.overlays[1].layers[0].path;
    let metadata = fs::symlink_metadata(layer.join("pip.conf")).unwrap();
    assert!(metadata.file_type().is_char_device() && metadata.rdev() == 0);
    // Private files of the host need no whiteout: the layer shows only public ones.
    let marks: Vec<_> = template.overlays.iter().flat_map(|overlay| &overlay.layers).collect();
    assert_eq!(marks.iter().map(|layer| layer.public_only).collect::<Vec<_>>(), [false, false, true]);
    for path in ["etc", "local/etc"] {
        let mut value = [0; 4];
        let length =
            rustix::fs::lgetxattr(layer.join(path), "trusted.overlay.opaque", &mut value[..]).unwrap();
        assert_eq!(&value[..length], b"y", "{path}");
    }
    assert!(!layer.join("local/share/keys/public").exists());
    assert_eq!(fs::read_link(layer.join("local/bin/python")).unwrap(), Path::new("/usr/bin/python3"));
}

#[test]
fn the_notes_say_what_lies_outside() {
    let host = machine();
    let path = host.path().join("opt/node/bin");
    let notes = programs(host.path(), path.as_os_str());
    assert!(notes.contains(&"python3: /usr/bin/python3".to_string()), "{notes:?}");
    let node = notes.iter().find(|note| note.starts_with("node: ")).unwrap();
    assert!(node.contains("missing") && node.contains("opt/node/bin/node lies outside /usr"), "{node}");
    let git = notes.iter().find(|note| note.starts_with("git: ")).unwrap();
    assert_eq!(git, "git: missing on this host; `base` has it");
}

#[test]
fn it_is_made_once_and_again_when_the_host_changes() {
    if !root_or_skip() {
        return;
    }
    let (host, (_directory, store)) = (machine(), store());
    let first = ensure_from(&store, host.path()).unwrap();
    assert_eq!(ensure_from(&store, host.path()).unwrap(), first);
    std::thread::sleep(std::time::Duration::from_millis(2));
    fs::write(host.path().join("usr/bin/git"), "").unwrap();
    let second = ensure_from(&store, host.path()).unwrap();
    assert_ne!(second.info.build, first.info.build);
    assert_eq!(store.get(HOST), Some(second));
    assert!(first.overlays[0].layers[0].path.is_dir(), "sandboxes may still use the older build");
}

#[test]
fn roots_directories_and_programs_are_framed_and_nothing_closed() {
    if !root_or_skip() {
        return;
    }
    let (host, (_directory, store)) = (machine(), store());
    let tree = Tree::at(host.path());
    tree.directory("usr/local/share/closed/inner", 0o755).unwrap();
    tree.directory("usr/local/share/closed", 0o750).unwrap();
    tree.directory("usr/local/games", 0o2775).unwrap();
    tree.own("usr/local/games", 0, 50).unwrap();
    for (path, mode) in [("usr/bin/su", 0o4755), ("usr/bin/closed", 0o4750), ("usr/bin/plain", 0o755)] {
        tree.file(path, mode, "program").unwrap();
        tree.own(path, 0, 42).unwrap();
        fs::set_permissions(tree.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    let template = ensure_from(&store, host.path()).unwrap();
    let layer = &template.overlays[1].layers[0].path;
    let games = fs::metadata(layer.join("local/games")).unwrap();
    assert_eq!((games.mode() & 0o7777, games.uid(), games.gid()), (0o2775, 0, 50));
    let su = fs::metadata(layer.join("bin/su")).unwrap();
    assert_eq!((su.mode() & 0o7777, su.uid(), su.gid()), (0o4755, 0, 42));
    for path in ["bin/closed", "bin/plain", "local/share/closed", "local/share/keys/public"] {
        assert!(!layer.join(path).exists(), "{path}");
    }
    // A directory that the host makes private is not in later frames.
    fs::set_permissions(host.path().join("usr/local/share/keys"), fs::Permissions::from_mode(0o700)).unwrap();
    let later = TemplateStore::open(store.directory(), |_| Ok(Vec::new())).unwrap();
    let second = ensure_from(&later, host.path()).unwrap();
    assert_ne!(second.info.build, template.info.build);
    assert!(!second.overlays[1].layers[0].path.join("local/share/keys").exists());
}

#[test]
fn a_host_that_is_not_merged_is_refused() {
    if !root_or_skip() {
        return;
    }
    let (host, (_directory, store)) = (machine(), store());
    fs::remove_file(host.path().join("bin")).unwrap();
    fs::create_dir(host.path().join("bin")).unwrap();
    let error = ensure_from(&store, host.path()).unwrap_err();
    assert!(matches!(&error, BuildError::NotMerged { path } if path.ends_with("bin")), "{error:?}");
    assert_eq!(store.get(HOST), None);
}
