//! What Docker's `COPY` does, done here.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, symlink};

use coffer_wire::agentd::Unpack;

use super::{MTIME, Place, Tar, copy};

fn context() -> Tar {
    Tar::new()
        .directory("app/")
        .file("app/a.txt", "a")
        .file("app/b.md", "b")
        .directory("app/sub/")
        .file("app/sub/c.txt", "c")
        .file("top.txt", "top")
}

#[test]
fn the_source_and_the_destination_decide_about_names() {
    let cases: [(&str, &str, &[&str]); 10] = [
        (
            "app",
            "/new/dest",
            &[
                "new/",
                "new/dest/",
                "new/dest/a.txt=a",
                "new/dest/b.md=b",
                "new/dest/sub/",
                "new/dest/sub/c.txt=c",
            ],
        ),
        (
            "app/",
            "/there",
            &["there/", "there/a.txt=a", "there/b.md=b", "there/old=old", "there/sub/", "there/sub/c.txt=c"],
        ),
        ("top.txt", "/x/name", &["x/", "x/name=top"]),
        ("top.txt", "/x/name/", &["x/", "x/name/", "x/name/top.txt=top"]),
        ("top.txt", "/there", &["there/", "there/old=old", "there/top.txt=top"]),
        ("top.txt", "/none/../there/./new", &["there/", "there/new=top", "there/old=old"]),
        ("top.txt", "/there/old", &["there/", "there/old=top"]),
        ("app/*.txt", "/d", &["d/", "d/a.txt=a"]),
        ("*", "/d", &["d/", "d/a.txt=a", "d/b.md=b", "d/sub/", "d/sub/c.txt=c", "d/top.txt=top"]),
        (".", "/", &["app/", "app/a.txt=a", "app/b.md=b", "app/sub/", "app/sub/c.txt=c", "top.txt=top"]),
    ];
    for (source, dest, expected) in cases {
        let Some(place) = Place::new() else { return };
        fs::create_dir(place.path("there")).unwrap();
        fs::write(place.path("there/old"), "old").unwrap();
        place
            .unpack(&copy(source, dest), &context().end())
            .unwrap_or_else(|error| panic!("{source} {dest}: {error:?}"));
        let all = place.listing();
        let mut expected: Vec<_> = expected.iter().map(|text| (*text).to_owned()).collect();
        if !expected.iter().any(|name| name == "there/") {
            expected.extend(["there/".to_owned(), "there/old=old".to_owned()]);
            expected.sort();
        }
        assert_eq!(all, expected, "COPY {source} {dest}");
    }
}

#[test]
fn owners_come_from_the_order_and_modes_and_times_from_the_archive() {
    let Some(place) = Place::new() else { return };
    let archive = context()
        .raw(b"app/tool", b'0', b"", b"#!", |header| header.set_mode(0o4755))
        .symlink("app/link", "a.txt");
    let order = |dest: &str, mode| Unpack::Copy {
        source: "app".into(),
        dest: dest.into(),
        into_directory: false,
        owner: Some("12:34".into()),
        mode,
    };
    let unpacked = place.unpack(&order("/p/kept", None), &archive.clone().end()).unwrap();
    assert_eq!((unpacked.entries, unpacked.bytes, unpacked.squashed_ids), (7, 5, 0));
    assert_eq!(place.attributes("p"), (0, 0, 0o755));
    assert_eq!(place.attributes("p/kept"), (12, 34, 0o750));
    assert_eq!(place.attributes("p/kept/sub"), (12, 34, 0o750));
    assert_eq!(place.attributes("p/kept/a.txt"), (12, 34, 0o640));
    assert_eq!(place.attributes("p/kept/tool"), (12, 34, 0o4755));
    assert_eq!(place.attributes("p/kept/link"), (12, 34, 0o777));
    for name in ["p/kept", "p/kept/sub", "p/kept/a.txt", "p/kept/link", "p/kept/sub/c.txt"] {
        assert_eq!(place.path(name).symlink_metadata().unwrap().mtime(), MTIME.cast_signed(), "{name}");
    }
    place.unpack(&order("/p/set", Some(0o705)), &archive.end()).unwrap();
    for name in ["p/set", "p/set/sub", "p/set/a.txt", "p/set/tool", "p/set/sub/c.txt"] {
        assert_eq!(place.attributes(name), (12, 34, 0o705), "{name}");
    }
}

#[test]
fn an_existing_destination_keeps_its_attributes_and_directories_in_it_do_not() {
    let Some(place) = Place::new() else { return };
    fs::create_dir_all(place.path("d/sub")).unwrap();
    let before = place.attributes("d");
    place.unpack(&copy("app", "/d"), &context().end()).unwrap();
    assert_eq!(place.attributes("d"), before);
    assert_eq!(place.attributes("d/sub"), (0, 0, 0o750));
}

#[test]
fn owners_may_have_names() {
    let Some(place) = Place::new() else { return };
    let order = |owner: &str| Unpack::Copy {
        source: "top.txt".into(),
        dest: "/f".into(),
        into_directory: false,
        owner: Some(owner.into()),
        mode: None,
    };
    for (owner, uid, gid) in [("root", 0, 0), ("7", 7, 7), ("7:root", 7, 0), ("root:9", 0, 9), ("0:", 0, 0)] {
        place.unpack(&order(owner), &context().end()).unwrap();
        assert_eq!(place.attributes("f"), (uid, gid, 0o640), "{owner}");
    }
    for (owner, message) in [
        ("root123", "user 'root123' not found"),
        ("root:nix", "group 'nix' not found"),
        ("", "user '' not found"),
        ("65536", "owner '65536': ids of a sandbox are below 65536"),
        ("0:4294967295", "owner '0:4294967295': ids of a sandbox are below 65536"),
    ] {
        assert_eq!(place.refused(&order(owner), &context().end()), message);
    }
}

#[test]
fn links_inside_of_the_destination_are_followed() {
    let Some(place) = Place::new() else { return };
    // As the JavaScript SDK packs a link to a directory: the link, then the directory's files below it.
    let archive = Tar::new()
        .directory("app")
        .symlink("app/l", "real")
        .file("app/l.txt", "between")
        .directory("app/l/deep")
        .file("app/l/deep/x", "x")
        .file("app/real/y", "y");
    // `real` does not exist when the link's files come.
    place.unpack(&copy("app", "/d"), &archive.end()).unwrap();
    assert_eq!(
        place.listing(),
        ["d/", "d/l->real", "d/l.txt=between", "d/real/", "d/real/deep/", "d/real/deep/x=x", "d/real/y=y"]
    );
}

#[test]
fn links_to_directories_that_come_later_stay_inside() {
    let Some(place) = Place::new() else { return };
    let archive =
        Tar::new().directory("app").symlink("app/a", "b/c").symlink("app/b", "./y").file("app/a/f", "f");
    place.unpack(&copy("app", "/d"), &archive.end()).unwrap();
    assert_eq!(place.read("d/y/c/f"), "f");
    for (target, why) in [
        ("../outside", "leaves the destination"),
        ("/outside", "leaves the destination"),
        ("y/../../../outside", "leaves the destination"),
        ("l", "leads"),
    ] {
        let archive = Tar::new().directory("app").symlink("app/l", target).file("app/l/f", "");
        let message = place.refused(&copy("app", "/e"), &archive.end());
        assert!(message.contains(why), "{target}: {message}");
        assert!(!place.path("outside").exists());
    }
}

#[test]
fn a_source_that_is_a_link_is_a_directory_if_files_follow() {
    let Some(place) = Place::new() else { return };
    let archive = Tar::new().symlink("app", "real").file("app.txt", "").file("app/x", "x");
    place.unpack(&copy("app", "/d"), &archive.end()).unwrap();
    assert_eq!(place.listing(), ["d/", "d/x=x"]);
    let archive = Tar::new().symlink("./app/", "real").file("other", "");
    place.unpack(&copy("app", "/l"), &archive.clone().end()).unwrap();
    place.unpack(&copy("app", "/d/"), &archive.end()).unwrap();
    assert_eq!(place.listing(), ["d/", "d/app->real", "d/x=x", "l->real"]);
}

#[test]
fn hard_links_stay_links_or_are_refused() {
    let Some(place) = Place::new() else { return };
    let archive =
        Tar::new().directory("app").file("app/a", "same").link("app/b", "app/a").link("./app/c", "./app/b");
    place.unpack(&copy("app", "/d"), &archive.clone().end()).unwrap();
    let inode = |name: &str| fs::metadata(place.path(name)).unwrap().ino();
    assert_eq!((inode("d/a"), inode("d/a")), (inode("d/b"), inode("d/c")));
    // Both names of a pattern go to one place.
    let both = Tar::new().file("x/f", "1").link("y/f", "x/f");
    place.unpack(&copy("*/f", "/e"), &both.end()).unwrap();
    assert_eq!(place.read("e/f"), "1");

    let message = place.refused(&copy("app/b", "/f"), &archive.end());
    assert_eq!(message, "'app/b' in the archive is a link to 'app/a', which is not among the copied files");
    // A file that was there before is not the archive's to link to.
    fs::write(place.path("d/secret"), "").unwrap();
    let message = place.refused(&copy("app", "/d"), &Tar::new().link("app/x", "app/secret").end());
    assert!(message.ends_with("which is not among the copied files"), "{message}");
}

#[test]
fn a_link_at_the_destination_is_followed_like_by_docker() {
    let Some(place) = Place::new() else { return };
    fs::create_dir_all(place.path("etc/app")).unwrap();
    fs::write(place.path("etc/app/real"), "old").unwrap();
    symlink("../etc/app/real", place.path("etc/conf")).unwrap();
    // The root of the sandbox, not ours.
    symlink("/etc/app", place.path("dir")).unwrap();
    place.unpack(&copy("top.txt", "/etc/conf"), &context().end()).unwrap();
    assert_eq!(place.read("etc/app/real"), "top");
    place.unpack(&copy("top.txt", "/dir"), &context().end()).unwrap();
    place.unpack(&copy("app/sub", "/dir/"), &context().end()).unwrap();
    assert_eq!((place.read("etc/app/top.txt"), place.read("etc/app/c.txt")), ("top".into(), "c".into()));
    assert!(place.path("dir").is_symlink() && place.path("etc/conf").is_symlink());
    symlink("loop", place.path("loop")).unwrap();
    let message = place.refused(&copy("top.txt", "/loop"), &context().end());
    assert_eq!(message, "the destination '/loop' leads through too many symbolic links");
}

#[test]
fn what_cannot_be_copied_has_a_clear_refusal() {
    let Some(place) = Place::new() else { return };
    fs::create_dir_all(place.path("d/a.txt")).unwrap();
    fs::write(place.path("file"), "").unwrap();
    for (source, dest, message) in [
        ("missing/x", "/d", "nothing in the archive matches the source 'missing/x'"),
        ("*.rs", "/d", "nothing in the archive matches the source '*.rs'"),
        ("../x", "/d", "the source '../x' is outside of the build context"),
        ("app", "relative", "the destination 'relative' is not an absolute path"),
        ("app", "/a\0b", "the destination '/a\\0b' is not an absolute path"),
        ("app", "/file", "the destination '/file' is not a directory, or below a file"),
        ("top.txt", "/file/", "the destination '/file' is not a directory, or below a file"),
        ("top.txt", "/file/x", "the destination '/file/x' is not a directory, or below a file"),
        (
            "app/a.txt",
            "/d",
            "'app/a.txt' in the archive is a file, but there is a directory at its destination",
        ),
    ] {
        assert_eq!(place.refused(&copy(source, dest), &context().end()), message, "{source} {dest}");
    }
    fs::remove_dir(place.path("d/a.txt")).unwrap();
    fs::write(place.path("d/sub"), "").unwrap();
    let message = place.refused(&copy("app", "/d"), &context().end());
    assert_eq!(
        message,
        "'app/sub' in the archive needs a directory where a file is; unpacked in part, entries written: 3"
    );
}

#[test]
fn devices_are_skipped_and_pipes_are_made() {
    let Some(place) = Place::new() else { return };
    let archive = Tar::new().other("a/null", b'3').other("a/sda", b'4').other("a/pipe", b'6');
    let unpacked = place.unpack(&copy("a", "/d"), &archive.end()).unwrap();
    assert_eq!((unpacked.skipped_devices, unpacked.entries), (2, 1));
    assert_eq!(place.listing(), ["d/", "d/pipe|"]);
    assert_eq!(place.attributes("d/pipe"), (0, 0, 0o640));
}

#[test]
fn compression_is_recognised() {
    let Some(place) = Place::new() else { return };
    let plain = context().end();
    let (half, rest) = plain.split_at(700);
    let gzip = |data: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    };
    let zstd = |data: &[u8]| {
        let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
        encoder.include_checksum(true).unwrap();
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    };
    // Several members and frames, one of them to be skipped, as in images that can be read lazily.
    let skipped = [&[0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"xyz"].concat();
    let archives = [
        plain.clone(),
        gzip(&plain),
        [gzip(half), gzip(rest)].concat(),
        zstd(&plain),
        [skipped.clone(), zstd(half), skipped.clone(), zstd(rest), skipped].concat(),
    ];
    for (number, archive) in archives.iter().enumerate() {
        place.unpack(&copy("app", &format!("/{number}")), archive).unwrap();
        assert_eq!(place.read(&format!("{number}/sub/c.txt")), "c");
        // The last byte belongs to a checksum, or to a frame.
        let mut bad = archive.clone();
        bad.pop();
        if number > 0 {
            let message = place.refused(&copy("app", "/cut"), &bad);
            assert!(message.contains("truncated") || message.contains("corrupt"), "{number}: {message}");
        }
        if (1..4).contains(&number) {
            bad.push(archive.last().unwrap() ^ 1);
            place.refused(&copy("app", "/bad"), &bad);
        }
    }
    for (magic, name) in [(&b"BZh91AY"[..], "bzip2"), (b"\xfd7zXZ\0", "xz")] {
        assert!(place.refused(&copy("app", "/x"), magic).contains(name));
    }
}

#[test]
fn long_names_and_old_headers_are_read() {
    let Some(place) = Place::new() else { return };
    let long = format!("{}/{}", "d".repeat(120), "f".repeat(200));
    let archive = Tar::new()
        .file(&long, "gnu")
        .pax(&[("path", b"pax/n\xc3\xa4me"), ("mtime", b"12.5"), ("comment", b"x")])
        .file("cut", "pax")
        .pax(&[("size", b"3")])
        .raw(b"large", b'0', b"", b"big", |header| header.set_size(0))
        .raw(b"v7/", 0, b"", b"", |_| {})
        .raw(b"g", b'g', b"", b"12 comment=\n", |_| {})
        .raw(b"empty-fields", b'7', b"", b"x", |header| {
            header.as_old_mut().mtime = [0; 12];
            header.as_old_mut().uid = [b' '; 8];
        });
    place.unpack(&copy(".", "/"), &archive.end()).unwrap();
    assert_eq!(place.read(&long), "gnu");
    assert_eq!(place.read("pax/näme"), "pax");
    let time = fs::metadata(place.path("pax/näme")).unwrap();
    assert_eq!((time.mtime(), time.mtime_nsec()), (12, 500_000_000));
    assert_eq!(place.read("large"), "big");
    assert!(place.path("v7").is_dir());
    assert_eq!(place.read("empty-fields"), "x");
}
