//! Layers of images, one on the other.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};

use coffer_wire::agentd::Unpack;

use super::{MTIME, Place, Tar};

#[test]
fn owners_modes_times_and_links_are_the_archives() {
    let Some(place) = Place::new() else { return };
    let unpacked = place.layer(
        Tar::new()
            .directory("./")
            .directory("usr/")
            .raw(b"usr/su", b'0', b"", b"su", |header| header.set_mode(0o4755))
            .link("usr/su2", "usr/su")
            .symlink("bin", "usr")
            .file("/bin/through", "link")
            .symlink("abs", "/usr")
            .file("abs/absolute", "too")
            .other("usr/pipe", b'6')
            .raw(b"usr/high", b'0', b"", b"", |header| {
                header.set_uid(70_000);
                header.set_gid(5);
            })
            .pax(&[("uid", b"4294967295"), ("gid", b"65535")])
            .file("usr/higher", ""),
    );
    assert_eq!((unpacked.entries, unpacked.squashed_ids, unpacked.bytes), (11, 2, 9));
    assert_eq!(place.attributes("usr"), (1000, 1001, 0o750));
    assert_eq!(place.attributes("usr/su"), (1000, 1001, 0o4755));
    assert_eq!(place.attributes("usr/high"), (65534, 5, 0o640));
    assert_eq!(place.attributes("usr/higher"), (65534, 65535, 0o640));
    assert_eq!(place.attributes("bin"), (1000, 1001, 0o777));
    assert_eq!(fs::metadata(place.path("usr/su")).unwrap().nlink(), 2);
    assert_eq!((place.read("usr/through"), place.read("usr/absolute")), ("link".into(), "too".into()));
    for name in ["usr", "usr/su", "bin"] {
        assert_eq!(place.path(name).symlink_metadata().unwrap().mtime(), MTIME.cast_signed(), "{name}");
    }
}

#[test]
fn whiteouts_remove_what_earlier_layers_have() {
    let Some(place) = Place::new() else { return };
    place.layer(
        Tar::new()
            .file("etc/a", "1")
            .file("etc/b", "1")
            .file("etc/d/deep/x", "1")
            .file("opt/old", "1")
            .file("opt/sub/old", "1")
            .file("opt/other/x/y", "1")
            .symlink("link", "etc"),
    );
    let unpacked = place.layer(
        Tar::new()
            .file("etc/.wh.a", "")
            .file("etc/.wh.d", "")
            .file("etc/.wh.missing", "")
            .file("none/there/.wh.x", "")
            .file("etc/.wh..wh.plnk", "")
            .file("etc/new", "2")
            // Late: what this layer wrote before it stays.
            .file("opt/sub/new", "2")
            .file("opt/.wh..wh..opq", "")
            .file("opt/.wh.sub", "")
            .file("opt/after", "2")
            .file(".wh.link", ""),
    );
    assert_eq!(unpacked.removed, 6);
    assert_eq!(
        place.listing(),
        ["etc/", "etc/b=1", "etc/new=2", "opt/", "opt/after=2", "opt/sub/", "opt/sub/new=2"]
    );
}

#[test]
fn a_whiteout_keeps_a_file_of_its_own_layer() {
    let Some(place) = Place::new() else { return };
    place.layer(Tar::new().file("a", "1").file("d/old", "1"));
    let unpacked =
        place.layer(Tar::new().file("a", "2").file(".wh.a", "").file("d/new", "2").file(".wh.d", ""));
    assert_eq!((place.listing(), unpacked.removed), (vec!["a=2".into(), "d/".into(), "d/new=2".into()], 1));
}

#[test]
fn a_later_layer_wins_whatever_was_there() {
    let Some(place) = Place::new() else { return };
    place.layer(
        Tar::new()
            .file("a", "1")
            .file("b/x/y", "1")
            .symlink("c", "b")
            .file("d", "1")
            .symlink("e", "/nowhere"),
    );
    place.layer(
        Tar::new()
            .directory("a")
            .file("b", "2")
            .directory("c")
            .file("c/f", "2")
            .symlink("d", "a")
            .file("e", "2"),
    );
    assert_eq!(place.listing(), ["a/", "b=2", "c/", "c/f=2", "d->a", "e=2"]);
}

#[test]
fn hard_links_may_name_files_of_earlier_layers() {
    let Some(place) = Place::new() else { return };
    place.layer(Tar::new().file("a", "1").symlink("s", "a").directory("d"));
    place.layer(Tar::new().link("b", "/a").link("t", "s"));
    assert_eq!(fs::metadata(place.path("a")).unwrap().nlink(), 2);
    assert_eq!(place.listing(), ["a=1", "b=1", "d/", "s->a", "t->a"]);
    for (target, why) in [
        ("missing", "is a link to 'missing', which is not there"),
        ("b/x", "is a link to 'b/x', which is not there"),
        ("d", "is a link to the directory 'd'"),
        ("x", "is a link to 'x', which is not there"),
        ("../a", "has '..' in its name"),
    ] {
        let message = place.refused(&Unpack::Layer, &Tar::new().link("x", target).end());
        assert!(message.ends_with(why), "{message}");
    }
}

#[test]
fn mounts_and_devices_are_skipped() {
    let Some(place) = Place::new() else { return };
    let archive = Tar::new()
        .directory("proc")
        .file("proc/x", "")
        .other("dev/null", b'3')
        .directory("./sys/")
        .file("run/lock/x", "")
        .file(".wh.dev", "")
        .link("etc/x", "dev/null")
        .other("etc/sda", b'4')
        .file("processes", "kept");
    let unpacked = place.layer(archive);
    assert_eq!((unpacked.skipped_on_mounts, unpacked.skipped_devices, unpacked.entries), (7, 1, 1));
    assert_eq!(place.listing(), ["processes=kept"]);
}

/// In a user and mount namespace of its own, real mounts below the root.
#[test]
fn nothing_crosses_to_another_mount() {
    let Some(place) = Place::new() else { return };
    fs::create_dir_all(place.path("data/old")).unwrap();
    fs::create_dir_all(place.path("etc")).unwrap();
    fs::write(place.path("etc/hosts"), "").unwrap();
    let mounted = place.outside();
    let root = place.root();
    // A thread of its own, so that the mounts are its alone and end with it.
    let done = std::thread::spawn(move || {
        use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
        // SAFETY: only this thread changes its namespace, and it ends below.
        let left = unsafe {
            rustix::thread::unshare_unsafe(
                rustix::thread::UnshareFlags::NEWNS | rustix::thread::UnshareFlags::FS,
            )
        };
        if let Err(errno) = left {
            println!("SKIPPED: no mount namespace of its own: {errno}");
            return;
        }
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
        mount_bind(&mounted, root.join("data")).unwrap();
        mount_bind(mounted.join("kept"), root.join("etc/hosts")).unwrap();
        symlink("/data", root.join("link")).unwrap();
        let archive = Tar::new()
            .directory("data")
            .file("data/x", "")
            .file("link/x", "")
            .file("etc/hosts", "changed")
            .file("etc/.wh.hosts", "")
            .file("data/.wh.kept", "")
            .file("link/.wh..wh..opq", "")
            .file("data", "")
            .link("y", "data/kept")
            .file("z", "written")
            .end();
        let unpacked = super::run(&Unpack::Layer, &root, &archive[..]).unwrap();
        assert_eq!((unpacked.skipped_on_mounts, unpacked.entries, unpacked.removed), (9, 1, 0));
        // What is opaque goes, mounts stay.
        let archive = Tar::new().file("new", "").file(".wh..wh..opq", "").end();
        let refused = super::run(&Unpack::Layer, &root, &archive[..]).unwrap_err();
        assert!(refused.message.contains("could not write 'etc'"), "{refused:?}");
        assert_eq!(fs::read_to_string(root.join("etc/hosts")).unwrap(), "kept");
    });
    done.join().unwrap();
    assert_eq!(super::listing(&place.outside()), ["kept=kept"]);
}

#[test]
fn only_harmless_attributes_are_set() {
    let Some(place) = Place::new() else { return };
    // cap_net_raw=ep, with a newline in it as any value may have one.
    let capability = b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\x0a\0\0\0\0\0\0\0";
    let unpacked = place.layer(
        Tar::new()
            .pax(&[
                ("SCHILY.xattr.security.capability", capability),
                ("SCHILY.xattr.user.note", b"a\nb"),
                ("SCHILY.xattr.user.overlay.opaque", b"y"),
                ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
                ("SCHILY.xattr.security.selinux", b"x"),
            ])
            .raw(b"ping", b'0', b"", b"x", |header| header.set_mode(0o755))
            .pax(&[("SCHILY.xattr.user.note", b"dir")])
            .directory("d")
            .file("plain", ""),
    );
    let value = |name: &str, attribute: &str| {
        let mut buffer = vec![0; 64];
        let length = rustix::fs::getxattr(place.path(name), attribute, &mut buffer).ok()?;
        buffer.truncate(length);
        Some(buffer)
    };
    if value("ping", "user.note").is_none() {
        println!("SKIPPED: this file system has no extended attributes");
        return;
    }
    assert_eq!(unpacked.skipped_xattrs, 3);
    assert_eq!(value("ping", "security.capability").as_deref(), Some(&capability[..]));
    assert_eq!(value("ping", "user.note").as_deref(), Some(&b"a\nb"[..]));
    assert_eq!(value("d", "user.note").as_deref(), Some(&b"dir"[..]));
    for attribute in ["user.overlay.opaque", "trusted.overlay.opaque", "security.selinux"] {
        assert_ne!(value("ping", attribute).as_deref(), Some(&b"y"[..]), "{attribute}");
    }
    assert_eq!(value("plain", "user.note"), None);
}

/// Some tools that make images leave the end out.
#[test]
fn the_end_may_be_unmarked() {
    let Some(place) = Place::new() else { return };
    let archive = Tar::new().file("a", "1").0;
    place.unpack(&Unpack::Layer, &archive).unwrap();
    assert_eq!(place.listing(), ["a=1"]);
    assert_eq!(
        place.refused(&super::copy(".", "/"), &archive),
        "the archive is truncated; unpacked in part, entries written: 1"
    );
}
