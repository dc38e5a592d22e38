//! Packs that are small on the wire and large in memory, and those that are simply large.

use std::io::Write as _;

use base64::Engine as _;
use coffer_core::settings::ByteSize;
use coffer_server::{ForgeSettings, ServerConfig};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use http::Method;
use http_body_util::Full;
use serde_json::json;

use crate::app::TestApp;
use crate::bundles::{import, leftovers};
use crate::forge::{Work, git, good};

const MIB: usize = 1 << 20;

fn deflated(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// The type and size at the start of an object in a pack.
fn object_header(kind: u8, mut size: usize) -> Vec<u8> {
    let mut header = vec![(kind << 4) | u8::try_from(size & 15).unwrap()];
    size >>= 4;
    while size > 0 {
        *header.last_mut().unwrap() |= 0x80;
        header.push(u8::try_from(size & 0x7f).unwrap());
        size >>= 7;
    }
    header
}

/// A number in the encoding of deltas.
fn delta_size(mut size: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = u8::try_from(size & 0x7f).unwrap();
        size >>= 7;
        bytes.push(if size > 0 { low | 0x80 } else { low });
        if size == 0 {
            return bytes;
        }
    }
}

fn sha1(bytes: &[u8]) -> Vec<u8> {
    ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, bytes).as_ref().to_vec()
}

fn pack(objects: &[Vec<u8>]) -> Vec<u8> {
    let count = u32::try_from(objects.len()).unwrap().to_be_bytes();
    let mut pack = [b"PACK\0\0\0\x02", &count[..], &objects.concat()].concat();
    let sum = sha1(&pack);
    pack.extend(sum);
    pack
}

/// A blob of a mebibyte, and a delta that copies it 1,536 times.
fn delta_bomb() -> Vec<u8> {
    const COPIES: usize = 1536;
    let base = vec![b'x'; MIB];
    let id = sha1(&[format!("blob {MIB}\0").as_bytes(), &base].concat());
    let copies = [0xc0, 0x10].repeat(COPIES);
    let delta = [delta_size(MIB), delta_size(COPIES * MIB), copies].concat();
    pack(&[
        [object_header(3, MIB), deflated(&base)].concat(),
        [object_header(7, delta.len()), id, deflated(&delta)].concat(),
    ])
}

/// A tree that declares a size of one and a half gibibytes.
fn tree_bomb() -> Vec<u8> {
    pack(&[[object_header(2, 1536 * MIB), deflated(&vec![0; 4 * MIB])].concat()])
}

fn command(id: &str, capabilities: &str) -> Vec<u8> {
    let line = format!("{} {id} refs/heads/bomb\0{capabilities}", "0".repeat(40));
    format!("{:04x}{line}0000", line.len() + 4).into_bytes()
}

/// Pushes bytes as git would, without git.
async fn push(app: &TestApp, url: &str, body: Vec<u8>) -> crate::app::Answer {
    let path = url.split_once('@').unwrap().1.split_once('/').unwrap().1;
    let login = base64::prelude::BASE64_STANDARD.encode(format!("any:{}", app.key));
    let request = http::Request::builder()
        .method(Method::POST)
        .uri(format!("/{path}/git-receive-pack"))
        .header("host", app.address().to_string())
        .header("authorization", format!("Basic {login}"))
        .header("content-type", "application/x-git-receive-pack-request")
        .body(Full::new(body.into()))
        .unwrap();
    app.send(request).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_push_that_is_large_in_memory_is_refused() {
    let work = Work::start().await;
    let (app, id) = (&work.app, "1".repeat(40));
    let repository = work.path.rsplit('/').next().unwrap().to_string();
    let before = leftovers(app, &repository);
    for (name, bomb) in [("a delta", delta_bomb()), ("a tree", tree_bomb())] {
        assert!(bomb.len() < 16 << 10, "{name} has {} bytes", bomb.len());
        let body = [command(&id, "report-status side-band-64k"), bomb.clone()].concat();
        let refused = push(app, &work.url, body).await;
        assert_eq!(refused.status, 200, "git's protocol has its own refusals: {}", refused.text());
        let text = refused.text();
        for part in ["ng refs/heads/bomb pack_too_large", "512MiB", "forge.git_memory"] {
            assert!(text.contains(part), "{name}: {text}");
        }
        // Without a report, the result would be unknown.
        let refused = push(app, &work.url, [command(&id, "side-band-64k"), bomb].concat()).await;
        assert!(refused.status == 422 && refused.text().contains("report-status"), "{}", refused.text());
    }
    let branches = app.get(&format!("{}/branches", work.path)).await.expect(200).json();
    assert_eq!(branches["items"].as_array().map(Vec::len), Some(1), "{branches}");
    assert_eq!(leftovers(app, &repository), before);
    work.branch("after", "more", "x\n").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_that_is_large_in_memory_is_refused() {
    let app = TestApp::start().await;
    let made =
        app.as_key(&app.other_key, Method::POST, "/api/v1/repositories", json!({"name": "mine"})).await;
    let mine = made.expect(201).json()["id"].as_str().unwrap().to_string();
    for bomb in [delta_bomb(), tree_bomb()] {
        let header = format!("# v2 git bundle\n{} refs/heads/main\n\n", "1".repeat(40));
        let refused = import(&app, &mine, &[header.as_bytes(), &bomb].concat()).await.expect(413).json();
        assert_eq!(refused["code"], json!("pack_too_large"));
        assert!(refused["message"].as_str().unwrap().contains("forge.git_memory"), "{refused}");
        assert_eq!(leftovers(&app, &mine), Vec::<std::path::PathBuf>::new());
    }
}

/// Incompressible bytes, the same each time.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_within_the_limits_passes_and_a_longer_one_says_which_it_broke() {
    let forge = ForgeSettings {
        max_push: ByteSize::mib(80),
        git_memory: ByteSize::mib(64),
        ..ForgeSettings::default()
    };
    let work = Work::on(TestApp::configured(ServerConfig { forge, ..ServerConfig::default() }).await).await;
    let at = work.at("one");
    // More than git's memory: one blob that it streams, and many that fit.
    let noise = noise(40 * MIB);
    std::fs::write(at.join("large"), &noise).unwrap();
    for (number, part) in noise.chunks(MIB).take(24).enumerate() {
        std::fs::write(at.join(format!("part-{number}")), part).unwrap();
    }
    let save = |message: &'static str| {
        let at = at.clone();
        async move {
            good(&git(&at, &["add", "--all"]).await);
            good(&git(&at, &["commit", "--quiet", "--message", message]).await);
        }
    };
    save("large").await;
    good(&git(&at, &["push", "--quiet", "origin", "HEAD:refs/heads/large"]).await);
    std::fs::write(at.join("larger"), self::noise(90 * MIB)).unwrap();
    save("larger").await;
    let refused = git(&at, &["push", "--quiet", "origin", "HEAD:refs/heads/larger"]).await;
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    for part in ["pack_too_large", "80MiB", "forge.max_push"] {
        assert!(!refused.status.success() && told.contains(part), "{told}");
    }
    let branches = work.app.get(&format!("{}/branches", work.path)).await.expect(200).json();
    assert_eq!(branches["items"].as_array().map(Vec::len), Some(2), "{branches}");
    good(&git(&work.at(""), &["clone", "--quiet", "--branch", "large", &work.url, "two"]).await);
    assert!(std::fs::read(work.at("two").join("large")).unwrap() == noise);
}
