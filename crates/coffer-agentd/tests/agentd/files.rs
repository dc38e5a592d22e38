//! `filesystem.Filesystem` and `/files`.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use bytes::Bytes;
use coffer_wire::envd::filesystem::{FileType, StatRequest, StatResponse};
use futures_util::stream;
use http::{Method, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use prost::Message as _;
use serde_json::json;

use crate::support::{Agentd, AnyBody, peak_memory, read, request, within};

const OCTETS: (&str, &str) = ("content-type", "application/octet-stream");
const FORM: (&str, &str) = ("content-type", "multipart/form-data; boundary=xyz");

/// Transfers of any size fit into this much memory.
const FLAT: u64 = 48 << 20;
const GIB: u64 = 1 << 30;

fn form(parts: &[(&str, &str)]) -> String {
    let mut form = String::new();
    for (filename, content) in parts {
        form += &format!(
            "--xyz\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{filename}\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n{content}\r\n"
        );
    }
    form + "--xyz--\r\n"
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn one_file_goes_up_and_comes_down() {
    let agentd = Agentd::start().await;
    let path = agentd.path("new/dir/a b.txt");
    let target = format!("/files?path={}&username=nobody", path.replace(' ', "+"));
    let answer = agentd.post(&target, &[OCTETS], "content").await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert_eq!(answer.json(), json!([{"name": "a b.txt", "path": path, "type": "file"}]));
    for made in [path.as_str(), &agentd.path("new/dir"), &agentd.path("new")] {
        assert_eq!(std::fs::metadata(made).unwrap().uid(), 65534, "{made}");
    }
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o644);
    assert_eq!(std::fs::metadata(agentd.path("new")).unwrap().mode() & 0o7777, 0o755);

    let answer = agentd.get(&target, &[]).await;
    assert_eq!((answer.status, &answer.body[..]), (StatusCode::OK, &b"content"[..]));
    assert_eq!(answer.header("content-length"), "7");
    assert_eq!(answer.header("vary"), "Accept-Encoding");
    assert_eq!(answer.header("content-disposition"), "inline; filename=\"a b.txt\"");
    assert_eq!(answer.header("access-control-allow-origin"), "*");

    agentd.post(&target, &[OCTETS], "x").await;
    assert_eq!(read(&path), "x", "a shorter one leaves nothing of the longer");
}

#[tokio::test]
async fn forms_write_one_file_or_many() {
    let agentd = Agentd::start().await;
    let (one, two) = (agentd.path("a/1.txt"), agentd.path("b/2.txt"));
    let answer = agentd.post("/files", &[FORM], form(&[(&one, "1"), (&two, "two")])).await;
    assert_eq!(
        answer.json(),
        json!([
            {"name": "1.txt", "path": one, "type": "file"},
            {"name": "2.txt", "path": two, "type": "file"},
        ])
    );
    assert_eq!((read(&one), read(&two)), ("1".into(), "two".into()));

    let target = format!("/files?path={one}");
    let answer = agentd.post(&target, &[FORM], form(&[("ignored", "new")])).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(read(&one), "new");

    let answer = agentd.post("/files", &[FORM], form(&[(&one, "x"), (&one, "y")])).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    let answer = agentd.post("/files", &[FORM], form(&[(&two, "x")]).replace("--xyz--", "")).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "cut off");
    assert_eq!(agentd.post("/files", &[FORM], "--xyz--\r\n").await.json(), json!([]));
}

#[tokio::test]
async fn compression_works_both_ways() {
    let agentd = Agentd::start().await;
    let path = agentd.path("z.txt");
    let target = format!("/files?path={path}");
    let content = "line of text\n".repeat(50_000);
    let packed = gzip(content.as_bytes());
    let headers = [OCTETS, ("content-encoding", "gzip")];
    assert_eq!(agentd.post(&target, &headers, packed).await.status, StatusCode::OK);
    assert_eq!(read(&path), content);

    let packed = gzip(form(&[(&path, "from a form")]).as_bytes());
    let headers = [FORM, ("content-encoding", "gzip")];
    assert_eq!(agentd.post("/files", &headers, packed).await.status, StatusCode::OK);
    assert_eq!(read(&path), "from a form");

    let answer = agentd.get(&target, &[("accept-encoding", "gzip, deflate, br")]).await;
    assert_eq!(answer.header("content-encoding"), "gzip");
    let mut unpacked = String::new();
    flate2::read::GzDecoder::new(&answer.body[..]).read_to_string(&mut unpacked).unwrap();
    assert_eq!(unpacked, "from a form");

    let answer = agentd.get(&target, &[("accept-encoding", "br, identity;q=0")]).await;
    assert_eq!((answer.status, answer.json()["code"].as_u64()), (StatusCode::NOT_ACCEPTABLE, Some(406)));
    let headers = [OCTETS, ("content-encoding", "gzip")];
    let new = format!("/files?path={}", agentd.path("never"));
    assert_eq!(agentd.post(&new, &headers, "not gzip").await.status, StatusCode::BAD_REQUEST);
    let mut cut = gzip(content.as_bytes());
    cut.truncate(cut.len() / 2);
    assert_eq!(agentd.post(&new, &headers, cut).await.status, StatusCode::BAD_REQUEST);
    assert!(!Path::new(&agentd.path("never")).exists(), "a failed upload leaves no file");
    let headers = [OCTETS, ("content-encoding", "br")];
    assert_eq!(agentd.post(&new, &headers, "x").await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn parts_and_conditions_are_honoured() {
    let agentd = Agentd::start().await;
    let path = agentd.path("r.bin");
    std::fs::write(&path, "0123456789").unwrap();
    let target = format!("/files?path={path}");
    let answer = agentd.get(&target, &[("range", "bytes=2-4"), ("accept-encoding", "gzip")]).await;
    assert_eq!((answer.status, &answer.body[..]), (StatusCode::PARTIAL_CONTENT, &b"234"[..]));
    assert_eq!(answer.header("content-range"), "bytes 2-4/10");
    let answer = agentd.get(&target, &[("range", "bytes=20-")]).await;
    assert_eq!(answer.status, StatusCode::RANGE_NOT_SATISFIABLE);
    assert_eq!(answer.header("content-range"), "bytes */10");
    let whole = agentd.get(&target, &[]).await;
    let modified = whole.header("last-modified");
    let answer = agentd.get(&target, &[("if-modified-since", modified)]).await;
    assert_eq!((answer.status, answer.body.len()), (StatusCode::NOT_MODIFIED, 0));
    let head = agentd.call(request(Method::HEAD, &target, &[], "")).await;
    assert_eq!((head.status, head.header("content-length"), head.body.len()), (StatusCode::OK, "10", 0));
    // Files that report no size.
    let answer = agentd.get("/files?path=/proc/self/comm", &[]).await;
    assert_eq!(&answer.body[..], b"coffer-agentd\n");
}

#[tokio::test]
async fn refusals_have_their_status_and_body() {
    let agentd = Agentd::start().await;
    let dir = agentd.path("");
    std::fs::write(agentd.path("file"), "x").unwrap();
    let cases = [
        (agentd.get("/files?path=/nowhere", &[]).await, 404, "path '/nowhere' does not exist"),
        (agentd.get("/files?path=/etc", &[]).await, 400, "path '/etc' is a directory"),
        (agentd.get("/files?path=/dev/zero", &[]).await, 400, "path '/dev/zero' is not a regular file"),
        (agentd.get("/files?path=x&username=who", &[]).await, 401, "invalid username: 'who'"),
        (agentd.post("/files?path=/etc", &[OCTETS], "x").await, 400, "path is a directory: /etc"),
        (
            agentd.post("/files", &[OCTETS], "x").await,
            400,
            "path is required for an application/octet-stream upload",
        ),
        (agentd.get("/nothing/here", &[]).await, 404, "not found"),
    ];
    for (answer, code, message) in cases {
        assert_eq!(answer.status.as_u16(), code);
        assert_eq!(answer.json(), json!({"code": code, "message": message}));
    }
    let below_file = format!("/files?path={dir}file/below");
    assert_eq!(agentd.post(&below_file, &[OCTETS], "x").await.status, StatusCode::BAD_REQUEST);
    assert_eq!(agentd.get(&below_file, &[]).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_full_disk_is_507_and_leaves_no_file() {
    let agentd = Agentd::start().await;
    let mounted = agentd.path("small");
    std::fs::create_dir(&mounted).unwrap();
    let mount = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=256k", "agentd-test", &mounted])
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        println!("SKIPPED: mounting a small tmpfs needs root");
        return;
    }
    let target = format!("/files?path={mounted}/big");
    let answer = agentd.post(&target, &[OCTETS], vec![7; 4 << 20]).await;
    let left = Path::new(&format!("{mounted}/big")).exists();
    let unmounted = std::process::Command::new("umount").arg(&mounted).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    assert_eq!(answer.json(), json!({"code": 507, "message": "not enough disk space available"}));
    assert_eq!((answer.status.as_u16(), left), (507, false));
}

#[tokio::test]
async fn metadata_stays_with_the_file() {
    let agentd = Agentd::start().await;
    let path = agentd.path("m.txt");
    let target = format!("/files?path={path}");
    let headers = [OCTETS, ("X-Metadata-Author", "mish"), ("x-metadata-purpose", "upload")];
    let answer = agentd.post(&target, &headers, "x").await;
    let metadata = json!({"author": "mish", "purpose": "upload"});
    assert_eq!(answer.json()[0]["metadata"], metadata);
    let stat = json!({"path": path});
    let entry = agentd.rpc("filesystem.Filesystem/Stat", stat.clone()).await;
    assert_eq!(entry["entry"]["metadata"], metadata);
    agentd.post(&target, &[OCTETS, ("x-metadata-author", "new")], "x").await;
    let entry = agentd.rpc("filesystem.Filesystem/Stat", stat.clone()).await;
    assert_eq!(entry["entry"]["metadata"], json!({"author": "new"}));
    agentd.post(&target, &[OCTETS], "x").await;
    let entry = agentd.rpc("filesystem.Filesystem/Stat", stat).await;
    assert_eq!(entry["entry"]["metadata"], json!(null));
    let huge = "v".repeat(5000);
    let answer = agentd.post(&target, &[OCTETS, ("x-metadata-big", &huge)], "x").await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_gibibyte_up_takes_no_memory() {
    let agentd = Agentd::start().await;
    for (target, headers, head, tail) in [
        ("/files?path=/dev/null", OCTETS, String::new(), ""),
        (
            "/files?path=/dev/null",
            FORM,
            "--xyz\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n".to_owned(),
            "\r\n--xyz--\r\n",
        ),
    ] {
        let chunk = Bytes::from(vec![0; 1 << 20]);
        let chunks = std::iter::once(Bytes::from(head))
            .chain(std::iter::repeat_n(chunk, 1024))
            .chain(std::iter::once(Bytes::from(tail)));
        let body = StreamBody::new(stream::iter(chunks.map(|chunk| Ok(Frame::data(chunk)))));
        let body: AnyBody = body.boxed_unsync();
        let upload = request(Method::POST, target, &[headers], "").map(|_| body);
        let response = agentd.send(upload).await;
        assert_eq!(response.status(), StatusCode::OK);
    }
    let peak = peak_memory(agentd.pid());
    assert!(peak < FLAT, "{peak}");
}

#[tokio::test]
async fn a_gibibyte_down_takes_no_memory() {
    let agentd = Agentd::start().await;
    let path = agentd.path("sparse");
    std::fs::File::create(&path).unwrap().set_len(GIB).unwrap();
    let target = format!("/files?path={path}");
    let response = agentd.send(request(Method::GET, &target, &[], "")).await;
    let mut body = response.into_body();
    let mut total = 0;
    while let Some(frame) = within(body.frame()).await {
        total += frame.unwrap().data_ref().unwrap().len() as u64;
    }
    assert_eq!(total, GIB);
    // If a client stops reading, agentd stops reading the file.
    let mut stalled = agentd.send(request(Method::GET, &target, &[], "")).await.into_body();
    assert!(stalled.frame().await.is_some());
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let peak = peak_memory(agentd.pid());
    assert!(peak < FLAT, "{peak}");
}

#[tokio::test]
async fn files_are_described_listed_moved_and_removed() {
    let agentd = Agentd::start().await;
    let root = agentd.dir.path().canonicalize().unwrap();
    let root = root.to_str().unwrap();
    let fs = |method: &str| format!("filesystem.Filesystem/{method}");
    let path = |name: &str| json!({"path": format!("{root}/{name}")});

    let made = agentd.rpc(&fs("MakeDir"), path("d/sub")).await;
    assert_eq!(made["entry"]["type"], "FILE_TYPE_DIRECTORY");
    assert_eq!(made["entry"]["path"], format!("{root}/d/sub"));
    assert_eq!(agentd.rpc_error(&fs("MakeDir"), path("d/sub")).await, (409, "already_exists".into()));
    std::fs::write(format!("{root}/d/file.txt"), "1234").unwrap();
    assert_eq!(agentd.rpc_error(&fs("MakeDir"), path("d/file.txt")).await, (400, "invalid_argument".into()));
    std::os::unix::fs::symlink("file.txt", format!("{root}/d/link")).unwrap();
    std::os::unix::fs::symlink("d", format!("{root}/way")).unwrap();

    let stat = agentd.rpc(&fs("Stat"), path("d/file.txt")).await;
    let mut entry = stat["entry"].clone();
    assert!(entry["modifiedTime"].as_str().unwrap().ends_with('Z'), "{entry}");
    entry.as_object_mut().unwrap().remove("modifiedTime");
    assert_eq!(
        entry,
        json!({
            "name": "file.txt", "type": "FILE_TYPE_FILE", "path": format!("{root}/d/file.txt"),
            "size": "4", "mode": 0o644, "permissions": "-rw-r--r--", "owner": "root", "group": "root",
        })
    );
    let link = agentd.rpc(&fs("Stat"), path("d/link")).await;
    assert_eq!(link["entry"]["type"], "FILE_TYPE_FILE");
    assert_eq!(link["entry"]["symlinkTarget"], format!("{root}/d/file.txt"));
    assert_eq!(link["entry"]["isSymlink"], true);
    assert_eq!(agentd.rpc_error(&fs("Stat"), path("none")).await, (404, "not_found".into()));

    let listed = |value: serde_json::Value| -> Vec<String> {
        let entries = value["entries"].as_array().cloned().unwrap_or_default();
        entries.iter().map(|entry| entry["path"].as_str().unwrap().replace(root, "")).collect()
    };
    assert_eq!(listed(agentd.rpc(&fs("ListDir"), path("d")).await), ["/d/file.txt", "/d/link", "/d/sub"]);
    let deep = json!({"path": format!("{root}/way"), "depth": 2});
    std::fs::write(format!("{root}/d/sub/x"), "").unwrap();
    assert_eq!(
        listed(agentd.rpc(&fs("ListDir"), deep).await),
        ["/way/file.txt", "/way/link", "/way/sub", "/way/sub/x"]
    );
    assert_eq!(agentd.rpc_error(&fs("ListDir"), path("none")).await.1, "not_found");
    assert_eq!(agentd.rpc_error(&fs("ListDir"), path("d/file.txt")).await.1, "invalid_argument");

    let moved =
        json!({"source": format!("{root}/d/file.txt"), "destination": format!("{root}/new/place.txt")});
    let entry = agentd.rpc(&fs("Move"), moved.clone()).await;
    assert_eq!(entry["entry"]["name"], "place.txt");
    assert_eq!(agentd.rpc_error(&fs("Move"), moved).await, (404, "not_found".into()));
    assert_eq!(agentd.rpc(&fs("Remove"), path("d")).await, json!({}));
    assert_eq!(agentd.rpc(&fs("Remove"), path("d")).await, json!({}), "gone is fine");
    assert!(!Path::new(&format!("{root}/d")).exists());
}

#[tokio::test]
async fn the_binary_form_says_the_same() {
    let agentd = Agentd::start().await;
    let message = StatRequest { path: "/etc".into() }.encode_to_vec();
    let headers = [("content-type", "application/proto")];
    let answer = agentd.post("/filesystem.Filesystem/Stat", &headers, message).await;
    assert_eq!((answer.status, answer.header("content-type")), (StatusCode::OK, "application/proto"));
    let entry = StatResponse::decode(answer.body).unwrap().entry.unwrap();
    assert_eq!((entry.r#type(), &*entry.path, &*entry.owner), (FileType::Directory, "/etc", "root"));
    let answer = agentd.post("/filesystem.Filesystem/Stat", &[("content-type", "text/plain")], "x").await;
    assert_eq!(answer.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let snake = json!({"source": "/nowhere/a", "destination": "/nowhere/b", "unknown_field": [1]});
    assert_eq!(agentd.rpc_error("filesystem.Filesystem/Move", snake).await.1, "not_found");
}

#[tokio::test]
async fn pieces_compose_to_one_file() {
    let agentd = Agentd::start().await;
    for (name, content) in [("p1", "one"), ("p2", "two")] {
        std::fs::write(agentd.path(name), content).unwrap();
    }
    let compose = json!({
        "source_paths": [agentd.path("p1"), agentd.path("p2")],
        "destination": agentd.path("whole/f"), "username": "nobody",
    });
    let json_type = [("content-type", "application/json")];
    let answer = agentd.post("/files/compose", &json_type, compose.to_string()).await;
    assert_eq!(answer.json(), json!({"name": "f", "path": agentd.path("whole/f"), "type": "file"}));
    assert_eq!(read(agentd.path("whole/f")), "onetwo");
    assert_eq!(std::fs::metadata(agentd.path("whole/f")).unwrap().uid(), 65534);
    let answer = agentd.post("/files/compose", &json_type, compose.to_string()).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND, "the pieces are gone");
    assert_eq!(agentd.post("/files/compose", &json_type, "{}").await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn signed_urls_open_one_file() {
    let agentd = Agentd::start().await;
    // The vector of the protocol's own tests.
    let token = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0";
    let home = agentd.path("");
    agentd.init(json!({"accessToken": token, "defaultUser": "root"})).await;
    let user = "username=user&signature=v1_gUtH%2Fs9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E";
    let signed = agentd.get(&format!("/files?path=hello.txt&{user}"), &[]).await;
    // The signature is right, so the user or its file is missing.
    assert_ne!(signed.json()["message"], "invalid signature");
    let other = agentd.get(&format!("/files?path=other.txt&{user}"), &[]).await;
    assert_eq!(other.json(), json!({"code": 401, "message": "invalid signature"}));
    let none = agentd.get("/files?path=hello.txt", &[]).await;
    assert_eq!(none.json(), json!({"code": 401, "message": "missing signature query parameter"}));
    let target = format!("/files?path={home}t.txt");
    let answer = agentd.post(&target, &[OCTETS, ("x-access-token", token)], "x").await;
    assert_eq!(answer.status, StatusCode::OK);
    let wrong = agentd.get(&target, &[("x-access-token", "wrong")]).await;
    assert_eq!(wrong.status, StatusCode::UNAUTHORIZED);
}
