use std::fs;
use std::io::Write as _;

use coffer_core::sync::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::digest::Digest;

const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const PLAIN: &str = "application/vnd.oci.image.layer.v1.tar";

struct Bytes(Mutex<Vec<u64>>, u64);

#[async_trait::async_trait]
impl Quota for Bytes {
    async fn reserve(&self, bytes: u64) -> Result<(), String> {
        self.0.lock().push(bytes);
        if bytes > self.1 { Err(format!("{bytes} bytes are too many")) } else { Ok(()) }
    }
}

type Files = Vec<(String, Vec<u8>)>;

fn tar_of(files: &Files) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, bytes) in files {
        add(&mut builder, name, bytes);
    }
    builder.into_inner().unwrap()
}

fn add(builder: &mut tar::Builder<Vec<u8>>, name: &str, bytes: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    header.set_entry_type(EntryType::Regular);
    builder.append_data(&mut header, name, bytes).unwrap();
}

use tar::EntryType;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn config(diffs: &[Digest], architecture: &str) -> Vec<u8> {
    let diffs: Vec<String> = diffs.iter().map(Digest::to_string).collect();
    json!({"os": "linux", "architecture": architecture, "config": {"Env": ["A=b"], "Cmd": ["sh"]},
        "rootfs": {"type": "layers", "diff_ids": diffs}})
    .to_string()
    .into_bytes()
}

/// As `docker save` wrote it until version 25, the second layer by a link.
fn saved() -> Vec<u8> {
    let layers = [b"first layer".to_vec(), b"second layer".to_vec()];
    let config = config(&[Digest::of(&layers[0]), Digest::of(&layers[1])], "amd64");
    let name = format!("{}.json", Digest::of(&config).hex());
    let list = json!([{"Config": name, "RepoTags": ["app:1"], "Layers": ["aa/layer.tar", "bb/layer.tar"]}]);
    let mut builder = tar::Builder::new(Vec::new());
    add(&mut builder, "aa/layer.tar", &layers[0]);
    add(&mut builder, "cc/layer.tar", &layers[1]);
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(EntryType::Symlink);
    header.set_size(0);
    builder.append_link(&mut header, "bb/layer.tar", "../cc/layer.tar").unwrap();
    add(&mut builder, &name, &config);
    add(&mut builder, "manifest.json", list.to_string().as_bytes());
    builder.into_inner().unwrap()
}

/// The blobs of one image, and its descriptor.
fn image(files: &mut Files, layers: &[(&str, Vec<u8>, Digest)], architecture: &str) -> Value {
    let mut put = |bytes: Vec<u8>, media_type: &str| {
        let digest = Digest::of(&bytes);
        let descriptor = json!({"mediaType": media_type, "digest": digest.to_string(), "size": bytes.len()});
        let name = format!("blobs/sha256/{}", digest.hex());
        if !files.iter().any(|(known, _)| *known == name) {
            files.push((name, bytes));
        }
        descriptor
    };
    let diffs: Vec<Digest> = layers.iter().map(|(.., diff)| *diff).collect();
    let config = put(config(&diffs, architecture), "application/vnd.oci.image.config.v1+json");
    let layers: Vec<Value> = layers.iter().map(|(kind, bytes, _)| put(bytes.clone(), kind)).collect();
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
    let mut entry = put(manifest.to_string().into_bytes(), "application/vnd.oci.image.manifest.v1+json");
    entry["platform"] = json!({"os": "linux", "architecture": architecture});
    entry
}

/// An OCI layout with two platforms, behind an index of their own.
fn layout() -> Files {
    let mut files = vec![("oci-layout".into(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec())];
    let packed = || (GZIP, gzip(b"shared"), Digest::of(b"shared"));
    let amd = image(&mut files, &[packed(), (PLAIN, b"amd".to_vec(), Digest::of(b"amd"))], "amd64");
    let arm = image(&mut files, &[packed(), (PLAIN, b"arm".to_vec(), Digest::of(b"arm"))], "arm64");
    let inner = json!({"schemaVersion": 2, "manifests": [arm, amd]}).to_string().into_bytes();
    let digest = Digest::of(&inner);
    let index = json!({"schemaVersion": 2, "manifests": [{
        "mediaType": "application/vnd.oci.image.index.v1+json", "digest": digest.to_string(), "size": inner.len(),
        "annotations": {"org.opencontainers.image.ref.name": "1"},
    }]});
    files.push((format!("blobs/sha256/{}", digest.hex()), inner));
    files.push(("index.json".into(), index.to_string().into_bytes()));
    files
}

struct Bench {
    dir: tempfile::TempDir,
    blobs: Blobs,
    quota: Bytes,
}

impl Bench {
    fn new(most: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(dir.path().join("blobs")).unwrap();
        Self { dir, blobs, quota: Bytes(Mutex::default(), most) }
    }

    async fn import(&self, archive: &[u8], name: Option<&str>, platform: &str) -> Result<Image, ImageError> {
        let path = self.dir.path().join("archive");
        fs::write(&path, archive).unwrap();
        self.import_at(&path, name, platform).await
    }

    async fn import_at(&self, path: &Path, name: Option<&str>, platform: &str) -> Result<Image, ImageError> {
        let (name, platform) = (name.map(|name| name.parse().unwrap()), platform.parse().unwrap());
        let order = Import {
            project: "p1",
            name: name.as_ref(),
            platform: &platform,
            quota: &self.quota,
            progress: &|done, total| assert!(done <= total),
        };
        // The server's tasks move between threads.
        fn on_any_thread<F: Future + Send>(future: F) -> F {
            future
        }
        on_any_thread(import(path, &self.blobs, &order)).await
    }

    async fn refusal(&self, archive: &[u8]) -> String {
        let why = self.import(archive, None, "linux/amd64").await.unwrap_err().to_string();
        let partial = self.dir.path().join("blobs/p1/partial");
        assert!(
            !partial.exists() || fs::read_dir(partial).unwrap().next().is_none(),
            "nothing is left: {why}"
        );
        why
    }

    fn bytes(&self, layer: &Layer) -> Vec<u8> {
        fs::read(self.blobs.path("p1", &layer.digest).unwrap()).unwrap()
    }
}

#[tokio::test]
async fn docker_save_archives_are_read() {
    for archive in [saved(), gzip(&saved())] {
        let bench = Bench::new(1000);
        let image = bench.import(&archive, None, "linux/amd64").await.unwrap();
        assert_eq!(image.reference.as_ref().unwrap().to_string(), "docker.io/library/app:1");
        assert_eq!(image.config.env, [("A".to_string(), "b".to_string())]);
        assert_eq!(image.layers.len(), 2);
        assert_eq!(bench.bytes(&image.layers[0]), b"first layer");
        assert_eq!(bench.bytes(&image.layers[1]), b"second layer");
        assert!(
            image
                .layers
                .iter()
                .all(|layer| layer.compression == Compression::None && layer.diff_id == layer.digest)
        );
        assert_eq!(*bench.quota.0.lock(), [23]);
        assert!(bench.import(&archive, Some("app:1"), "linux/amd64").await.is_ok());
        let why = bench.import(&archive, Some("app:2"), "linux/amd64").await.unwrap_err().to_string();
        assert!(why.contains("docker.io/library/app:1"), "{why}");
        let why = bench.import(&archive, None, "linux/arm64").await.unwrap_err().to_string();
        assert!(why.contains("it is for linux/amd64"), "{why}");
    }
}

#[tokio::test]
async fn layouts_are_read_from_archives_and_directories() {
    let bench = Bench::new(1000);
    let files = layout();
    let image = bench.import(&tar_of(&files), None, "linux/amd64").await.unwrap();
    assert_eq!(
        (image.layers[0].compression, image.layers[0].diff_id),
        (Compression::Gzip, Digest::of(b"shared"))
    );
    assert_eq!(
        (bench.bytes(&image.layers[0]), bench.bytes(&image.layers[1])),
        (gzip(b"shared"), b"amd".to_vec())
    );
    let packed: Files = files.iter().map(|(name, bytes)| (format!("./{name}"), bytes.clone())).collect();
    let arm = bench.import(&gzip(&tar_of(&packed)), Some("x/y:1"), "linux/arm64").await.unwrap();
    assert_eq!(bench.bytes(&arm.layers[1]), b"arm");
    let shared = image.layers[0].size;
    assert_eq!(*bench.quota.0.lock(), [shared + 3, 3], "what is there costs nothing");
    let dir = bench.dir.path().join("layout");
    for (name, bytes) in &files {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let again = bench.import_at(&dir, None, "linux/amd64").await.unwrap();
    assert_eq!((again.digest, again.layers), (image.digest, image.layers.clone()));
    assert_eq!(bench.quota.0.lock().len(), 2);
    let why = bench.import_at(&dir, None, "linux/s390x").await.unwrap_err().to_string();
    assert!(why.contains("linux/amd64, linux/arm64"), "{why}");
    // A link in the directory is not followed.
    bench.blobs.remove_project("p1").await.unwrap();
    let blob = dir.join(format!("blobs/sha256/{}", image.layers[1].digest.hex()));
    fs::write(bench.dir.path().join("secret"), "amd").unwrap();
    fs::remove_file(&blob).unwrap();
    std::os::unix::fs::symlink(bench.dir.path().join("secret"), &blob).unwrap();
    let why = bench.import_at(&dir, None, "linux/amd64").await.unwrap_err().to_string();
    assert!(why.contains("cannot be read"), "{why}");
}

#[tokio::test]
async fn wrong_bytes_are_refused() {
    let bench = Bench::new(1000);
    let change = |from: &[u8], to: &[u8]| {
        let files =
            layout().into_iter().map(|(name, bytes)| (name, if bytes == from { to.to_vec() } else { bytes }));
        tar_of(&files.collect())
    };
    let why = bench.refusal(&change(b"amd", b"AMD")).await;
    assert!(why.contains("has the digest"), "{why}");
    let why = bench.refusal(&change(b"amd", b"longer")).await;
    assert!(why.contains("6 bytes"), "{why}");
    let mut archive = saved();
    let at = archive.windows(11).position(|window| window == b"first layer").unwrap();
    archive[at] = b'F';
    let why = bench.refusal(&archive).await;
    assert!(why.contains("has the digest"), "{why}");
    let mut missing = layout();
    missing.retain(|(_, bytes)| bytes != b"amd");
    assert!(bench.refusal(&tar_of(&missing)).await.contains("has no file"));
    assert!(bench.refusal(&saved()[..1600]).await.contains("archive"));
    assert!(bench.refusal(b"not an archive").await.contains("archive"));
    assert!(bench.refusal(&tar_of(&vec![("x".into(), vec![1])])).await.contains("is no image"));
}

#[tokio::test]
async fn hostile_archives_are_refused() {
    let bench = Bench::new(10);
    let mut twice = layout();
    twice.push(twice[1].clone());
    assert!(bench.refusal(&tar_of(&twice)).await.contains("two files"));
    assert!(bench.refusal(&tar_of(&layout())).await.contains("too many"), "the quota decides");
    let many: Files = (0..20_001).map(|number| (number.to_string(), Vec::new())).collect();
    assert!(bench.refusal(&gzip(&tar_of(&many))).await.contains("more than 20000 entries"));
    // An extended header that claims to be endless.
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(EntryType::XHeader);
    header.set_size(1 << 40);
    header.set_cksum();
    let mut archive = header.as_bytes().to_vec();
    archive.extend_from_slice(&[b'x'; 4096]);
    assert!(bench.refusal(&archive).await.contains("too long"));
    // A layer that is a file of this machine, by its name or by a link.
    for layer in ["/etc/passwd", "../../../etc/passwd", "link"] {
        let config = config(&[Digest::of(b"x")], "amd64");
        let list = json!([{"Config": "c.json", "Layers": [layer]}]).to_string();
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(EntryType::Symlink);
        header.set_size(0);
        builder.append_link(&mut header, "link", "/etc/passwd").unwrap();
        add(&mut builder, "c.json", &config);
        add(&mut builder, "manifest.json", list.as_bytes());
        let why = bench.refusal(&builder.into_inner().unwrap()).await;
        assert!(why.contains("has no file"), "{why}");
    }
    // Links in a circle.
    let mut builder = tar::Builder::new(Vec::new());
    for (from, to) in [("a", "b"), ("b", "a")] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(EntryType::Symlink);
        header.set_size(0);
        builder.append_link(&mut header, from, to).unwrap();
    }
    add(&mut builder, "c.json", &config(&[Digest::of(b"x")], "amd64"));
    add(&mut builder, "manifest.json", br#"[{"Config":"c.json","Layers":["a"]}]"#);
    assert!(bench.refusal(&builder.into_inner().unwrap()).await.contains("has no file"));
    let blobs = bench.dir.path().join("blobs/p1/sha256");
    assert!(!blobs.exists() || fs::read_dir(blobs).unwrap().next().is_none(), "no layer was kept");
}

#[tokio::test]
async fn an_archive_that_is_a_pipe_is_not_waited_for() {
    let bench = Bench::new(10);
    let path = bench.dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    let why = bench.import_at(&path, None, "linux/amd64").await.unwrap_err().to_string();
    assert!(why.contains("neither a file nor a directory"), "{why}");
}
