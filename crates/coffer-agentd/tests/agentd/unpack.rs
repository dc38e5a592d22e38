//! `/coffer/unpack`, as the server uses it.

use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;

use bytes::Bytes;
use coffer_wire::agentd::{Unpack, Unpacked};
use futures_util::stream;
use http::{Method, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::io::AsyncWriteExt as _;

use crate::support::{Agentd, AnyBody, eventually, peak_memory, read, request, within};

const MIB: usize = 1 << 20;

/// Whatever an archive holds, unpacking it fits into this much memory.
const FLAT: u64 = 48 << 20;

fn target(order: &Unpack) -> String {
    let order = serde_json::to_string(order).unwrap();
    format!("/coffer/unpack?order={}", utf8_percent_encode(&order, NON_ALPHANUMERIC))
}

fn copy(source: &str, dest: &str) -> Unpack {
    Unpack::Copy {
        source: source.into(),
        dest: dest.into(),
        into_directory: false,
        owner: Some("nobody".into()),
        mode: Some(0o604),
    }
}

fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, *content).unwrap();
    }
    builder.into_inner().unwrap()
}

/// The header of a file, whose contents do not follow.
fn head(name: &str, size: u64) -> Bytes {
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_size(size);
    header.set_mode(0o644);
    header.set_cksum();
    Bytes::copy_from_slice(header.as_bytes())
}

fn streamed(pieces: impl Iterator<Item = Bytes> + Send + 'static) -> AnyBody {
    StreamBody::new(stream::iter(pieces.map(|piece| Ok(Frame::data(piece))))).boxed_unsync()
}

#[tokio::test]
async fn an_archive_is_unpacked_and_counted() {
    let agentd = Agentd::start().await;
    let dest = agentd.path("new dir/d&st");
    let body = archive(&[("app/a b+c%", b"one"), ("app/sub/x", b"two"), ("other", b"three")]);
    let answer = agentd.post(&target(&copy("app", &dest)), &[], body).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let unpacked: Unpacked = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(unpacked, Unpacked { entries: 2, bytes: 6, ..Unpacked::default() });
    assert_eq!(read(format!("{dest}/a b+c%")), "one");
    let file = std::fs::metadata(format!("{dest}/sub/x")).unwrap();
    assert_eq!((file.uid(), file.mode() & 0o7777), (65534, 0o604));
    assert_eq!(std::fs::metadata(agentd.path("new dir")).unwrap().uid(), 0);
}

#[tokio::test]
async fn programs_inside_cannot_unpack() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let agentd = Agentd::start_with(&["--tcp", &free.to_string()]).await;
    let dest = agentd.path("dest");
    let mut stream = std::net::TcpStream::connect(free).unwrap();
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        target(&copy(".", &dest))
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
}

#[tokio::test]
async fn malformed_orders_are_refused() {
    let agentd = Agentd::start().await;
    for order in ["", "{}", r#"{"kind":"other"}"#, r#"{"kind":"copy","source":"x"}"#] {
        let path = format!("/coffer/unpack?order={}", utf8_percent_encode(order, NON_ALPHANUMERIC));
        let answer = agentd.post(&path, &[], "").await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{order}: {answer:?}");
    }
    let answer = agentd.get(&target(&copy(".", "/x")), &[]).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
}

/// The refusal comes before the body has been sent, and the client reads it all the same.
#[tokio::test]
async fn a_refusal_is_read_by_a_client_that_still_sends() {
    let agentd = Agentd::start().await;
    let dest = agentd.path("dest");
    let pieces = std::iter::once(head("../evil", 512 * MIB as u64))
        .chain(std::iter::repeat_n(Bytes::from(vec![1; MIB]), 512));
    let asked = request(Method::POST, &target(&copy(".", &dest)), &[], "").map(|_| streamed(pieces));
    let answer = agentd.call(asked).await;
    assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
    let problem = answer.json();
    assert_eq!(problem["code"], 422);
    assert_eq!(problem["message"], "'../evil' in the archive has '..' in its name");
}

#[tokio::test]
async fn a_client_that_goes_away_stops_it() {
    let agentd = Agentd::start().await;
    let dest = agentd.path("dest");
    let mut stream = agentd.connect().await;
    let start = format!(
        "POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n",
        target(&copy(".", &dest)),
        1_u64 << 40
    );
    stream.write_all(start.as_bytes()).await.unwrap();
    stream.write_all(&head("large", 1 << 39)).await.unwrap();
    let writers = || {
        let files = std::fs::read_dir(format!("/proc/{}/fd", agentd.pid())).unwrap();
        let is_ours = |path: std::path::PathBuf| path.ends_with("dest/large");
        files.filter(|file| std::fs::read_link(file.as_ref().unwrap().path()).is_ok_and(is_ours)).count()
    };
    eventually("the file is open", || writers() == 1).await;
    drop(stream);
    eventually("the file is closed", || writers() == 0).await;
    let answer = agentd.post(&target(&copy(".", &dest)), &[], archive(&[("x", b"1")])).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
}

/// 2 GiB in 2 MiB: a file that the source does not name, so that only reading it is measured.
#[tokio::test]
async fn a_bomb_is_read_in_little_memory() {
    let agentd = Agentd::start().await;
    let dest = agentd.path("dest");
    let zeros = vec![0; MIB];
    let size = 2048 * MIB as u64;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&head("bomb", size)).unwrap();
    for _ in 0..2048 {
        encoder.write_all(&zeros).unwrap();
    }
    encoder.write_all(&archive(&[("x", b"1")])).unwrap();
    let body = encoder.finish().unwrap();
    let asked = request(Method::POST, &target(&copy("x", &dest)), &[], body);
    let answer = within(agentd.call(asked)).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert_eq!(read(&dest), "1");
    let peak = peak_memory(agentd.pid());
    assert!(peak < FLAT, "{peak} bytes");
}
