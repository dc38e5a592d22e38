//! Debian's `docker-registry`, with TLS and passwords.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use coffer_http::{Address, Client, PrivateHosts, Read, anywhere};
use coffer_image::{Compression, Credentials, ImageError, Platform, Registry, RegistrySettings, ServedBy};
use http::{Method, Request, Response};
use http_body_util::Full;
use serde_json::json;

use crate::fixture::{BASIC, GZIP, Made, OCI_INDEX, digest, fetch, login, store};

/// `user:password`, as bcrypt with the least cost.
const HTPASSWD: &str = "user:$2b$04$ZI6QJbqc0HP5HCd9d5/.b.7y66ioTR1dfHlD7M./nG37Hr2UvNaZG\n";
const PATIENCE: Duration = Duration::from_secs(20);

/// A registry, and what its clients must know.
struct Real {
    child: Child,
    dir: tempfile::TempDir,
    port: u16,
    pem: String,
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program: on the path, or where `scripts/setup test` puts it.
fn program() -> Option<PathBuf> {
    let tools = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/test-tools");
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([tools])
        .map(|dir| dir.join("docker-registry"))
        .find(|file| file.is_file())
}

impl Real {
    async fn start() -> Option<Self> {
        let Some(program) = program() else {
            eprintln!("SKIPPED: docker-registry is not installed (`scripts/setup test` gets it)");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_string()]).unwrap();
        let pem = made.cert.pem();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("cert.pem"), &pem).unwrap();
        std::fs::write(at("key.pem"), made.signing_key.serialize_pem()).unwrap();
        std::fs::write(at("htpasswd"), HTPASSWD).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = json!({
            "version": "0.1", "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": at("data")}},
            "http": {"addr": format!("127.0.0.1:{port}"), "tls": {"certificate": at("cert.pem"), "key": at("key.pem")}},
            "auth": {"htpasswd": {"realm": "test", "path": at("htpasswd")}},
        });
        // JSON is YAML.
        std::fs::write(at("config.yml"), config.to_string()).unwrap();
        let log = std::fs::File::create(at("log")).unwrap();
        let child = Command::new(program)
            .arg("serve")
            .arg(at("config.yml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut real = Self { child, dir, port, pem };
        let deadline = Instant::now() + PATIENCE;
        while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            let log = || std::fs::read_to_string(real.dir.path().join("log")).unwrap_or_default();
            let ended = real.child.try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "docker-registry does not start: {}",
                log()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Some(real)
    }

    fn host(&self) -> String {
        format!("localhost:{}", self.port)
    }

    fn registry(&self) -> Registry {
        let settings = RegistrySettings {
            private_hosts: PrivateHosts::parse([self.host().as_str()]).unwrap(),
            extra_roots: Some(self.pem.clone()),
            ..RegistrySettings::default()
        };
        Registry::new(settings).unwrap()
    }

    async fn send(&self, method: Method, url: &str, kind: &str, body: &[u8]) -> Response<Bytes> {
        let url =
            if url.starts_with('/') { format!("https://{}{url}", self.host()) } else { url.to_string() };
        let to = Address::parse(&url).unwrap();
        let request = Request::builder()
            .method(method)
            .uri(to.path_and_query())
            .header("host", to.host_header())
            .header("authorization", BASIC)
            .header("content-type", kind)
            .body(Full::new(Bytes::copy_from_slice(body)))
            .unwrap();
        let client = Client::new(Some(&self.pem));
        client.send(&to, &anywhere, request, Read::Whole { most: 1 << 20 }, PATIENCE).await.unwrap()
    }

    async fn push(&self, repository: &str, tag: &str, made: &Made) {
        for (digest, bytes) in &made.blobs {
            let begun = self.send(Method::POST, &format!("/v2/{repository}/blobs/uploads/"), "", b"").await;
            let location = begun.headers()["location"].to_str().unwrap();
            let url = format!("{location}&digest={digest}");
            let put = self.send(Method::PUT, &url, "application/octet-stream", bytes).await;
            assert_eq!(put.status(), 201, "{:?}", put.body());
        }
        self.push_manifest(repository, tag, made.media_type, &made.manifest).await;
    }

    async fn push_manifest(&self, repository: &str, tag: &str, kind: &str, manifest: &[u8]) {
        let put = self.send(Method::PUT, &format!("/v2/{repository}/manifests/{tag}"), kind, manifest).await;
        assert_eq!(put.status(), 201, "{:?}", put.body());
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn platform(text: &str) -> Platform {
    text.parse().unwrap()
}

#[tokio::test]
async fn images_of_every_compression_are_pulled() {
    let Some(real) = Real::start().await else { return };
    let plain = |text: &str| text.repeat(100_000).into_bytes();
    let zstd = zstd::encode_all(&plain("zstd")[..], 1).unwrap();
    let oci = Made::new(
        "amd64",
        &[
            (GZIP, gzip(&plain("gzip")), plain("gzip")),
            ("application/vnd.oci.image.layer.v1.tar+zstd", zstd, plain("zstd")),
            ("application/vnd.oci.image.layer.v1.tar", plain("none"), plain("none")),
        ],
    );
    let docker = Made::new(
        "amd64",
        &[("application/vnd.docker.image.rootfs.diff.tar.gzip", gzip(&plain("docker")), plain("docker"))],
    );
    real.push("team/oci", "1", &oci).await;
    real.push("docker", "latest", &docker).await;
    let registry = real.registry();
    let (dir, blobs) = store();
    let user = login();
    for (name, made, compressions) in [
        (
            format!("{}/team/oci:1", real.host()),
            &oci,
            vec![Compression::Gzip, Compression::Zstd, Compression::None],
        ),
        (
            format!("{}/team/oci@{}", real.host(), oci.digest()),
            &oci,
            vec![Compression::Gzip, Compression::Zstd, Compression::None],
        ),
        (format!("{}/docker", real.host()), &docker, vec![Compression::Gzip]),
    ] {
        let image =
            registry.resolve(&name.parse().unwrap(), Some(&user), &platform("linux/amd64")).await.unwrap();
        assert_eq!((image.digest, &image.served_by), (made.digest(), &ServedBy::Registry(real.host())));
        assert_eq!(image.config.cmd, ["sh"]);
        let found: Vec<Compression> = image.layers.iter().map(|layer| layer.compression).collect();
        assert_eq!(found, compressions);
        for (layer, (digest, bytes)) in image.layers.iter().zip(&made.blobs[1..]) {
            assert_eq!(layer.digest, *digest);
            assert!(fetch(&blobs, &registry, &image, layer, Some(&user)).await.unwrap() == *bytes);
        }
    }
    // A real registry continues where a crash stopped.
    let (layer, bytes) = oci.layer();
    assert!(blobs.remove("p1", layer).await.unwrap());
    std::fs::write(dir.path().join("p1/partial").join(layer.hex()), &bytes[..bytes.len() / 2]).unwrap();
    let name = format!("{}/team/oci:1", real.host()).parse().unwrap();
    let image = registry.resolve(&name, Some(&user), &platform("linux/amd64")).await.unwrap();
    assert!(fetch(&blobs, &registry, &image, &image.layers[0], Some(&user)).await.unwrap() == *bytes);
}

#[tokio::test]
async fn an_index_gives_each_platform_its_image() {
    let Some(real) = Real::start().await else { return };
    let of = |architecture: &str| {
        Made::new(architecture, &[(GZIP, gzip(architecture.as_bytes()), architecture.into())])
    };
    let (amd, arm, extra) = (of("amd64"), of("arm64"), of("unknown"));
    let entry = |made: &Made, platform: serde_json::Value| json!({"mediaType": made.media_type, "digest": made.digest().to_string(), "size": made.manifest.len(), "platform": platform});
    for (tag, made) in [("amd", &amd), ("arm", &arm), ("extra", &extra)] {
        real.push("many", tag, made).await;
    }
    let index = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [
        entry(&arm, json!({"os": "linux", "architecture": "arm64", "variant": "v8"})),
        entry(&extra, json!({"os": "unknown", "architecture": "unknown"})),
        entry(&amd, json!({"os": "linux", "architecture": "amd64"})),
    ]});
    let index = index.to_string().into_bytes();
    real.push_manifest("many", "1", OCI_INDEX, &index).await;
    let registry = real.registry();
    let name = format!("{}/many:1", real.host()).parse().unwrap();
    for (wanted, made) in [("linux/amd64", &amd), ("linux/arm64", &arm), ("linux/arm64/v8", &arm)] {
        let image = registry.resolve(&name, Some(&login()), &platform(wanted)).await.unwrap();
        assert_eq!((image.digest, image.index), (made.digest(), Some(digest(&index))));
        assert_eq!(image.layers[0].diff_id, digest(&made_plain(made)));
    }
    let error = registry.resolve(&name, Some(&login()), &platform("linux/riscv64")).await.unwrap_err();
    assert!(error.to_string().contains("it is for linux/amd64, linux/arm64"), "{error}");
    // Without an index, the configuration says what it is for.
    let single = format!("{}/many:arm", real.host()).parse().unwrap();
    let error = registry.resolve(&single, Some(&login()), &platform("linux/amd64")).await.unwrap_err();
    assert!(matches!(error, ImageError::NoPlatform { .. }), "{error}");
}

fn made_plain(made: &Made) -> Vec<u8> {
    use std::io::Read as _;
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(&made.layer().1[..]).read_to_end(&mut plain).unwrap();
    plain
}

#[tokio::test]
async fn wrong_names_passwords_and_certificates_are_told_apart() {
    let Some(real) = Real::start().await else { return };
    real.push("app", "1", &Made::with_layer(b"layer")).await;
    let registry = real.registry();
    let name = format!("{}/app:1", real.host()).parse().unwrap();
    let amd = platform("linux/amd64");
    let error = registry.resolve(&name, None, &amd).await.unwrap_err();
    assert!(matches!(error, ImageError::Unauthorized { credentials_sent: false, .. }), "{error}");
    let wrong = Credentials::login("user", "wrong").unwrap();
    let error = registry.resolve(&name, Some(&wrong), &amd).await.unwrap_err();
    assert!(matches!(error, ImageError::Unauthorized { credentials_sent: true, .. }), "{error}");
    for unknown in ["app:2", "other:1"] {
        let unknown = format!("{}/{unknown}", real.host()).parse().unwrap();
        let error = registry.resolve(&unknown, Some(&login()), &amd).await.unwrap_err();
        assert!(matches!(error, ImageError::UnknownImage { .. }), "{error}");
    }
    assert!(registry.resolve(&name, Some(&login()), &amd).await.is_ok());
    let hosts = PrivateHosts::parse([real.host().as_str()]).unwrap();
    let strangers =
        Registry::new(RegistrySettings { private_hosts: hosts, ..RegistrySettings::default() }).unwrap();
    let error = strangers.resolve(&name, Some(&login()), &amd).await.unwrap_err();
    assert!(matches!(error, ImageError::Tls { .. }) && !error.is_transient(), "{error}");
    let unknown = format!("{}/app@{}", real.host(), digest(b"x")).parse().unwrap();
    let error = registry.resolve(&unknown, Some(&login()), &amd).await.unwrap_err();
    assert!(matches!(error, ImageError::UnknownImage { .. }), "{error}");
}
