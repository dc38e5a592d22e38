//! Archives unpacked by the real agentd, in real sandboxes: under their filter, ids, mounts and quota.

use bytes::Bytes;
use coffer_core::ProjectId;
use coffer_engine::Engine as _;
use coffer_guest::{Activity, Guest, GuestError, Reason, Spare, Target};
use coffer_wire::agentd::{Unpack, Unpacked};
use coffer_wire::envd::process::process_event::Event;
use coffer_wire::envd::process::process_event::data_event::Output;
use coffer_wire::envd::process::{ProcessConfig, StartRequest};
use http_body_util::Full;
use tar::{EntryType, Header};
use tokio_util::sync::CancellationToken;

use crate::agentd::built;
use crate::harness::{Home, Sandbox, small};

crate::tests![archives_are_unpacked_inside];

/// One member: name, type, target or contents, and its numbers.
fn member(to: &mut Vec<u8>, name: &str, kind: EntryType, text: &str, mode: u32, uid: u64) {
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(uid);
    header.set_gid(1001);
    header.set_mtime(1_000_000_000);
    let is_link = matches!(kind, EntryType::Symlink | EntryType::Link);
    let content = if is_link { "" } else { text };
    if is_link {
        header.as_old_mut().linkname[..text.len()].copy_from_slice(text.as_bytes());
    }
    header.set_size(content.len() as u64);
    header.set_cksum();
    to.extend_from_slice(header.as_bytes());
    to.extend_from_slice(content.as_bytes());
    to.resize(to.len().next_multiple_of(512), 0);
}

fn end(mut archive: Vec<u8>) -> Full<Bytes> {
    archive.resize(archive.len() + 1024, 0);
    Full::new(archive.into())
}

fn guest(sandbox: &Sandbox) -> Guest {
    let target = Target {
        sandbox: sandbox.id,
        project: ProjectId::generate(),
        socket: sandbox.placement.socket.clone(),
        spare: Spare::default(),
        traffic_token: None,
        mask_host: None,
        https_ports: Vec::new(),
        activity: Activity::default(),
        gone: CancellationToken::new(),
    };
    Guest::new(target, None)
}

async fn shell(guest: &Guest, script: &str) -> String {
    let process = ProcessConfig {
        cmd: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        cwd: Some("/".into()),
        ..ProcessConfig::default()
    };
    let start = StartRequest { process: Some(process), stdin: Some(false), ..StartRequest::default() };
    let mut events = guest.start(Some("root"), &start, None).await.unwrap();
    let mut output = Vec::new();
    while let Some(event) = events.next().await.unwrap() {
        match event {
            Event::Data(data) => match data.output {
                Some(Output::Stdout(bytes) | Output::Stderr(bytes) | Output::Pty(bytes)) => {
                    output.extend_from_slice(&bytes)
                }
                None => {}
            },
            Event::End(end) => assert_eq!(end.exit_code, 0, "{script}: {}", String::from_utf8_lossy(&output)),
            _ => {}
        }
    }
    String::from_utf8(output).unwrap().trim_end().to_owned()
}

async fn archives_are_unpacked_inside() {
    let Some(agentd) = built() else { return };
    let home = Home::new();
    let node = home.start_with(agentd).await;
    let sandbox = node.create(small()).await;
    let guest = guest(&sandbox);

    let mut layer = Vec::new();
    member(&mut layer, "srv/app/", EntryType::Directory, "", 0o750, 1000);
    // What `setcap cap_net_raw=ep` stores.
    let capability = "\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let record = format!("57 SCHILY.xattr.security.capability={capability}\n");
    assert_eq!(record.len(), 57);
    member(&mut layer, "pax", EntryType::XHeader, &record, 0, 0);
    member(&mut layer, "srv/app/tool", EntryType::Regular, "#!/bin/sh\necho it runs\n", 0o4755, 1000);
    member(&mut layer, "srv/app/again", EntryType::Link, "srv/app/tool", 0o755, 1000);
    member(&mut layer, "srv/app/pipe", EntryType::Fifo, "", 0o600, 2);
    member(&mut layer, "srv/app/null", EntryType::Char, "", 0o666, 0);
    member(&mut layer, "srv/app/high", EntryType::Regular, "", 0o600, 100_000);
    member(&mut layer, "srv/abs", EntryType::Symlink, "/srv/app", 0o777, 0);
    member(&mut layer, "srv/abs/through", EntryType::Regular, "through", 0o644, 0);
    // Ways to other mounts.
    member(&mut layer, "srv/self", EntryType::Symlink, "/proc/self", 0o777, 0);
    member(&mut layer, "srv/self/oom_score_adj", EntryType::Regular, "-1000", 0o644, 0);
    member(&mut layer, "srv/run", EntryType::Symlink, "/run", 0o777, 0);
    member(&mut layer, "srv/run/coffer/agentd", EntryType::Regular, "evil", 0o755, 0);
    member(&mut layer, "dev/null", EntryType::Regular, "evil", 0o644, 0);
    member(&mut layer, "proc/", EntryType::Directory, "", 0o700, 1000);
    let unpacked = guest.unpack(&Unpack::Layer, end(layer)).await.unwrap();
    let expected = Unpacked {
        entries: 9,
        bytes: 30,
        squashed_ids: 1,
        skipped_devices: 1,
        skipped_on_mounts: 4,
        ..Unpacked::default()
    };
    assert_eq!(unpacked, expected);
    assert_eq!(
        shell(
            &guest,
            "stat -c '%n %F %u %g %a %Y' srv/app srv/app/* && stat -c %h srv/app/tool && srv/abs/again && cat srv/abs/through"
        )
        .await,
        "srv/app directory 1000 1001 750 1000000000\n\
         srv/app/again regular file 1000 1001 4755 1000000000\n\
         srv/app/high regular empty file 65534 1001 600 1000000000\n\
         srv/app/pipe fifo 2 1001 600 1000000000\n\
         srv/app/through regular file 0 1001 644 1000000000\n\
         srv/app/tool regular file 1000 1001 4755 1000000000\n\
         2\nit runs\nthrough"
    );

    let mut second = Vec::new();
    member(&mut second, "srv/app/.wh.tool", EntryType::Regular, "", 0, 0);
    member(&mut second, "srv/abs/.wh.pipe", EntryType::Regular, "", 0, 0);
    member(&mut second, "srv/.wh.self", EntryType::Regular, "", 0, 0);
    assert_eq!(guest.unpack(&Unpack::Layer, end(second)).await.unwrap().removed, 3);
    assert_eq!(
        shell(&guest, "ls srv srv/app").await,
        "srv:\nabs\napp\nrun\n\nsrv/app:\nagain\nhigh\nthrough"
    );

    let copy = |source: &str, owner: &str| Unpack::Copy {
        source: source.into(),
        dest: "/home/build/dest".into(),
        into_directory: false,
        owner: Some(owner.into()),
        mode: None,
    };
    let mut context = Vec::new();
    member(&mut context, "ctx/a", EntryType::Regular, "copied", 0o640, 77);
    member(&mut context, "ctx/l", EntryType::Symlink, "../../../etc", 0o777, 77);
    let copied = guest.unpack(&copy("ctx", "7:root"), end(context.clone())).await.unwrap();
    assert_eq!((copied.entries, copied.bytes), (2, 6));
    assert_eq!(
        shell(&guest, "stat -c '%u %g %a' home/build home/build/dest home/build/dest/a").await,
        "0 0 755\n7 0 755\n7 0 640"
    );
    member(&mut context, "ctx/l/evil", EntryType::Regular, "evil", 0o640, 77);
    match guest.unpack(&copy("ctx", "0"), end(context.clone())).await {
        Err(GuestError::Refused { reason: Reason::Invalid, message }) => assert_eq!(
            message,
            "'ctx/l/evil' in the archive leaves the destination through a symbolic link; unpacked in part, entries written: 2"
        ),
        other => panic!("{other:?}"),
    }
    match guest.unpack(&copy("ctx", "root123"), end(context)).await {
        Err(GuestError::Refused { reason: Reason::Invalid, message }) => {
            assert_eq!(message, "user 'root123' not found");
        }
        other => panic!("{other:?}"),
    }

    // More than the disk of the sandbox holds; noise, so that no file system packs it.
    let mut large = Vec::new();
    let noise: String =
        (0..1_u32 << 20).map(|at| char::from(b' ' + (at.wrapping_mul(2_654_435_761) >> 26) as u8)).collect();
    for number in 0..96 {
        member(&mut large, &format!("srv/large/{number}"), EntryType::Regular, &noise, 0o644, 0);
    }
    match guest.unpack(&Unpack::Layer, end(large)).await {
        Err(GuestError::Refused { reason: Reason::Exhausted, message }) => {
            assert!(message.contains("the disk limit of the sandbox is reached"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    node.engine.destroy(sandbox.id).await.unwrap();
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}
