//! Archives that were made to do harm.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::symlink;

use coffer_wire::agentd::Unpack;
use proptest::collection::vec;
use proptest::prelude::*;

use super::{Place, Tar, copy, listing};

#[test]
fn names_that_climb_or_are_absolute_are_refused() {
    let Some(place) = Place::new() else { return };
    for name in ["../x", "a/../../x", "..", "a/.."] {
        for order in [copy(".", "/d"), Unpack::Layer] {
            let message = place.refused(&order, &Tar::new().file(name, "").end());
            assert!(message.contains("has '..' in its name"), "{message}");
        }
    }
    let outside = place.outside().join("x");
    let message = place.refused(&copy(".", "/d"), &Tar::new().file(outside.to_str().unwrap(), "").end());
    assert!(message.contains("has an absolute name"), "{message}");
    // In a layer it begins at the root of the sandbox.
    place.layer(Tar::new().file("/x", "inside"));
    assert_eq!(place.read("x"), "inside");
    let message = place.refused(&Unpack::Layer, &Tar::new().pax(&[("path", b"a\0b")]).file("x", "").end());
    assert!(message.contains("has a NUL"), "{message}");
}

#[test]
fn links_that_leave_the_destination_are_refused() {
    let Some(place) = Place::new() else { return };
    fs::create_dir_all(place.path("d")).unwrap();
    fs::create_dir_all(place.path("secret")).unwrap();
    let outside = place.outside();
    for target in
        ["../secret", "/secret", outside.to_str().unwrap(), "..", "/proc/self/cwd", "x/../../secret"]
    {
        let archive = Tar::new().directory("x").symlink("l", target).file("l/evil", "evil").end();
        let message = place.refused(&copy(".", "/d"), &archive);
        assert_eq!(
            message,
            "'l/evil' in the archive leaves the destination through a symbolic link; unpacked in part, entries written: 2",
            "{target}"
        );
        let archive = Tar::new().symlink("l", target).directory("l/evil").end();
        assert!(place.refused(&copy(".", "/d"), &archive).contains("leaves the destination"), "{target}");
    }
    // A link that was there before is no better.
    symlink("../secret", place.path("d/before")).unwrap();
    let message = place.refused(&copy(".", "/d"), &Tar::new().file("before/evil", "").end());
    assert!(message.contains("leaves the destination"), "{message}");
    assert_eq!(listing(&place.path("secret")), [""; 0]);
}

#[test]
fn a_file_replaces_a_link_instead_of_writing_through_it() {
    let Some(place) = Place::new() else { return };
    let target = place.outside().join("kept");
    fs::create_dir(place.path("d")).unwrap();
    symlink(&target, place.path("d/f")).unwrap();
    symlink(&target, place.path("f")).unwrap();
    place.unpack(&copy(".", "/d"), &Tar::new().file("f", "new").end()).unwrap();
    place.layer(Tar::new().file("f", "new"));
    assert_eq!(place.listing(), ["d/", "d/f=new", "f=new"]);
}

#[test]
fn a_layer_cannot_leave_the_root_by_links() {
    let Some(place) = Place::new() else { return };
    let outside = place.outside();
    fs::create_dir(place.path("secret")).unwrap();
    let archive = Tar::new()
        .symlink("up", "../../..")
        .file("up/x", "in the root")
        .symlink("abs", outside.to_str().unwrap())
        .symlink("loop", "loop")
        .end();
    place.unpack(&Unpack::Layer, &archive).unwrap();
    assert_eq!(place.read("x"), "in the root");
    for (name, why) in [("abs/x", "leads nowhere"), ("loop/x", "leads to itself")] {
        let message = place.refused(&Unpack::Layer, &Tar::new().file(name, "").end());
        assert!(message.contains(why), "{message}");
    }
}

#[test]
fn a_whiteout_cannot_climb() {
    let Some(place) = Place::new() else { return };
    place.layer(Tar::new().file("a/b", ""));
    for name in ["a/.wh...", "a/.wh..", "a/.wh."] {
        let message = place.refused(&Unpack::Layer, &Tar::new().file(name, "").end());
        assert!(message.contains("is a whiteout of nothing"), "{name}: {message}");
    }
    symlink(place.outside(), place.path("out")).unwrap();
    place.layer(Tar::new().file("out/.wh.kept", "").file("out/.wh..wh..opq", ""));
    assert_eq!(place.listing()[..2], ["a/", "a/b="]);
}

#[test]
fn a_name_that_is_there_twice_is_refused() {
    let Some(place) = Place::new() else { return };
    for archive in [
        Tar::new().file("a", "1").file("./a", "2"),
        Tar::new().symlink("a", "b").file("a", "2"),
        Tar::new().file("a", "1").link("a/", "b"),
    ] {
        for order in [copy(".", "/d"), Unpack::Layer] {
            let message = place.refused(&order, &archive.clone().end());
            assert!(message.contains("'a' in the archive is there twice"), "{message}");
        }
    }
    for archive in [
        Tar::new().file("b", "1").directory("b"),
        Tar::new().directory("c").file("c", "1"),
        Tar::new().file("e/f", "1").file("e", "2"),
    ] {
        let message = place.refused(&Unpack::Layer, &archive.end());
        assert!(message.contains("is there twice, as a file and as a directory"), "{message}");
    }
    place.layer(Tar::new().directory("twice").directory("./twice/"));
}

#[test]
fn truncated_and_corrupt_archives_are_refused_wherever_they_are_cut() {
    let Some(place) = Place::new() else { return };
    let whole = Tar::new().file("a", &"x".repeat(700)).pax(&[("path", b"b")]).file("cut", "y").end();
    let end = whole.len() - 1024;
    for cut in (0..=end).step_by(100).chain([1, 511, 512, 513, end]) {
        let message = place.refused(&copy(".", "/d"), &whole[..cut]);
        assert!(message.contains("truncated") || message.contains("empty"), "{cut}: {message}");
    }
    for at in [0, 100, 150, 300, 500] {
        let mut bad = whole.clone();
        bad[at] ^= 0x10;
        assert!(place.refused(&copy(".", "/d"), &bad).contains("corrupt"), "{at}");
    }
    let mut after = whole.clone();
    after.extend_from_slice(&whole);
    assert!(place.refused(&Unpack::Layer, &after).contains("data follows its end"));
    assert!(place.refused(&Unpack::Layer, b"<html>Not found</html>").contains("truncated"));
    assert!(place.refused(&Unpack::Layer, &[b'x'; 1024]).contains("no tar archive"));
}

#[test]
fn sizes_are_claims_and_are_not_trusted() {
    let Some(place) = Place::new() else { return };
    // Exabytes in a header, and none in the archive.
    let huge = Tar::new().raw(b"a", b'0', b"", b"", |header| header.set_size(1 << 62)).end();
    assert!(place.refused(&Unpack::Layer, &huge).contains("truncated"));
    let negative = Tar::new().raw(b"b", b'0', b"", b"", |header| header.as_old_mut().size = [0xff; 12]).end();
    assert!(place.refused(&Unpack::Layer, &negative).contains("the size of a member is not a number"));
    for kind in [b'L', b'K', b'x', b'g'] {
        let long = Tar::new().raw(b"n", kind, b"", b"", |header| header.set_size((1 << 20) + 1)).end();
        assert!(place.refused(&Unpack::Layer, &long).contains("more than 1048576"), "{kind}");
    }
    let name = "n/".repeat(2048) + "n";
    assert!(
        place.refused(&Unpack::Layer, &Tar::new().file(&name, "").end()).contains("a name that is too long")
    );
    let name = "n".repeat(256);
    assert!(
        place.refused(&Unpack::Layer, &Tar::new().file(&name, "").end()).contains("a name that is too long")
    );
    let many = (0..20).fold(Tar::new(), |tar, _| tar.raw(b"g", b'g', b"", b"", |_| {})).end();
    assert!(place.refused(&Unpack::Layer, &many).contains("headers without a member"));
    // Contents of a directory are none.
    place.layer(Tar::new().raw(b"d", b'5', b"", b"", |header| header.set_size(1 << 40)).file("after", "x"));
    assert_eq!(place.read("after"), "x");
}

#[test]
fn odd_types_are_refused_by_name() {
    let Some(place) = Place::new() else { return };
    for (archive, why) in [
        (Tar::new().other("s", b'S'), "'s' in the archive is a sparse file"),
        (Tar::new().pax(&[("GNU.sparse.major", b"1")]).file("s", ""), "'s' in the archive is a sparse file"),
        (Tar::new().other("v", b'V'), "'v' in the archive has the unknown type 'V'"),
        (Tar::new().symlink("l", ""), "is a link whose target is empty"),
        (Tar::new().file(".", "x"), "takes the place of the top directory"),
    ] {
        let message = place.refused(&Unpack::Layer, &archive.end());
        assert!(message.contains(why), "{message}");
    }
    // Control characters of a name do not reach a log.
    let message = place.refused(&Unpack::Layer, &Tar::new().other("a\n\x1b[2Jb", b'V').end());
    assert!(message.contains("'a\\n\\u{1b}[2Jb'"), "{message}");
}

#[test]
fn a_zstd_window_has_a_limit() {
    let Some(place) = Place::new() else { return };
    // Frames that claim windows of 128 MiB, and of a half more.
    let frame = |descriptor: u8| [0x28, 0xb5, 0x2f, 0xfd, 0, descriptor, 1, 0, 0];
    let message = place.refused(&Unpack::Layer, &frame(17 << 3));
    assert_eq!(message, "the archive is empty");
    let message = place.refused(&Unpack::Layer, &frame(17 << 3 | 4));
    assert!(message.contains("its zstd window of 201326592 bytes is larger than 134217728"), "{message}");
}

/// A body that ends without its end: the client has gone, or its connection broke.
#[test]
fn an_archive_that_is_not_received_to_its_end_stops_it() {
    struct Gone<'a>(&'a [u8]);
    impl Read for Gone<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            match self.0.read(into)? {
                0 => Err(io::ErrorKind::ConnectionAborted.into()),
                length => Ok(length),
            }
        }
    }
    let Some(place) = Place::new() else { return };
    let archive = Tar::new().file("a", "1").0;
    let refusal = super::run(&Unpack::Layer, &place.root(), Gone(&archive)).unwrap_err();
    assert_eq!(
        refusal.message,
        "the archive was not received to its end; unpacked in part, entries written: 1"
    );
    let (sender, pieces) = tokio::sync::mpsc::channel(4);
    sender.blocking_send(Ok(archive.into())).unwrap();
    drop(sender);
    let refusal = super::run(&Unpack::Layer, &place.root(), super::super::Feed::new(pieces)).unwrap_err();
    assert!(refusal.message.contains("was not received to its end"), "{refusal:?}");
}

/// A decompressor may have mistakes.
#[tokio::test]
async fn a_panic_is_a_refusal() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            panic!("a mistake");
        }
    }
    let Some(place) = Place::new() else { return };
    let root = place.root();
    let outcome = tokio::task::spawn_blocking(move || super::run(&Unpack::Layer, &root, Broken)).await;
    let refusal = super::super::settled(outcome).unwrap_err();
    assert_eq!(refusal.status.as_u16(), 500);
    assert!(refusal.message.starts_with("could not unpack the archive:"), "{refusal:?}");
}

#[test]
fn a_full_disk_says_so() {
    let Some(place) = Place::new() else { return };
    let root = place.root();
    let done = std::thread::spawn(move || {
        use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
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
        mount("tmpfs", &root, "tmpfs", MountFlags::empty(), c"size=64k").unwrap();
        let archive = Tar::new().file("small", "1").file("large", &"x".repeat(100_000)).end();
        let refusal = super::run(&Unpack::Layer, &root, &archive[..]).unwrap_err();
        assert_eq!(refusal.status.as_u16(), 507);
        assert_eq!(
            refusal.message,
            "'large': the disk limit of the sandbox is reached; unpacked in part, entries written: 1"
        );
    });
    done.join().unwrap();
}

/// One member of a generated archive: a name, a kind, a target.
fn member() -> impl Strategy<Value = (String, u8, String)> {
    let part =
        || prop::sample::select(vec!["a", "b", "c", "..", ".", "", ".wh.a", ".wh..wh..opq", "proc", "OUT"]);
    let path = move || vec(part(), 1..4).prop_map(|parts| parts.join("/"));
    let kind = prop::sample::select(vec![b'0', b'0', b'1', b'2', b'2', b'5', b'5', b'6', b'3']);
    (path(), kind, path())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the archive holds: nothing appears, changes or vanishes outside of the destination.
    #[test]
    fn nothing_is_written_outside(members in vec(member(), 1..12), layer: bool, source in prop::sample::select(vec![".", "a", "*", "a/b"])) {
        let Some(place) = Place::new() else { return Ok(()) };
        let outside = place.outside().to_str().unwrap().trim_start_matches('/').to_owned();
        fs::create_dir_all(place.path("dest")).unwrap();
        fs::create_dir_all(place.path("beside")).unwrap();
        fs::write(place.path("beside/kept"), "kept").unwrap();
        symlink("../beside", place.path("dest/c")).unwrap();
        // Archives with a refused member end there, so each is also tried from its second member on.
        for skipped in 0..members.len() {
            let archive = members[skipped..].iter().fold(Tar::new(), |tar, (name, kind, target)| {
                let (name, target) = (name.replace("OUT", &outside), target.replace("OUT", &outside));
                if name.len() > 100 || target.len() > 100 {
                    return tar;
                }
                let content: &[u8] = if *kind == b'0' { b"evil" } else { b"" };
                tar.raw(name.as_bytes(), *kind, target.as_bytes(), content, |_| {})
            });
            let order = if layer { Unpack::Layer } else { copy(source, "/dest") };
            // Compares what is outside of the root.
            let _refused_or_not = place.unpack(&order, &archive.end());
            if !layer {
                prop_assert_eq!(listing(&place.path("beside")), ["kept=kept"]);
                let names: Vec<_> = fs::read_dir(place.root()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
                prop_assert_eq!(names.len(), 2, "{:?}", names);
            }
        }
    }
}
