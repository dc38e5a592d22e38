//! Images made of a few bytes.

use std::sync::Mutex;

use coffer_http::PrivateHosts;
use coffer_image::{
    Blobs, Credentials, Digest, Fetch, Image, ImageError, Layer, Quota, Registry, RegistrySettings,
};
use serde_json::{Value, json};

pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub(crate) const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

pub(crate) fn digest(bytes: &[u8]) -> Digest {
    let hash = ring::digest::digest(&ring::digest::SHA256, bytes);
    format!("sha256:{}", hex::encode(hash)).parse().unwrap()
}

/// An image: a manifest, and blobs by digest, the configuration first.
#[derive(Clone)]
pub(crate) struct Made {
    pub(crate) media_type: &'static str,
    pub(crate) manifest: Vec<u8>,
    pub(crate) blobs: Vec<(Digest, Vec<u8>)>,
}

impl Made {
    /// Layers are a media type, the bytes and the bytes without compression.
    pub(crate) fn new(architecture: &str, layers: &[(&str, Vec<u8>, Vec<u8>)]) -> Self {
        let diffs: Vec<String> = layers.iter().map(|(.., plain)| digest(plain).to_string()).collect();
        let config = json!({
            "os": "linux", "architecture": architecture, "rootfs": {"type": "layers", "diff_ids": diffs},
            "config": {"Env": ["PATH=/bin"], "Cmd": ["sh"], "User": "app"},
        });
        let is_docker = layers.iter().any(|(kind, ..)| kind.contains("docker"));
        let (media_type, config_type) = match is_docker {
            true => (DOCKER_MANIFEST, "application/vnd.docker.container.image.v1+json"),
            false => (OCI_MANIFEST, "application/vnd.oci.image.config.v1+json"),
        };
        let mut blobs = Vec::new();
        let mut put = |bytes: Vec<u8>, kind: &str| {
            let digest = digest(&bytes);
            let descriptor = json!({"mediaType": kind, "digest": digest.to_string(), "size": bytes.len()});
            blobs.push((digest, bytes));
            descriptor
        };
        let config = put(config.to_string().into_bytes(), config_type);
        let layers: Vec<Value> = layers.iter().map(|(kind, bytes, _)| put(bytes.clone(), kind)).collect();
        let manifest =
            json!({"schemaVersion": 2, "mediaType": media_type, "config": config, "layers": layers});
        Self { media_type, manifest: manifest.to_string().into_bytes(), blobs }
    }

    /// One layer of these bytes; that they are no archive is nothing this crate notices.
    pub(crate) fn with_layer(bytes: &[u8]) -> Self {
        Self::new("amd64", &[(GZIP, bytes.to_vec(), b"unpacked".to_vec())])
    }

    pub(crate) fn digest(&self) -> Digest {
        digest(&self.manifest)
    }

    pub(crate) fn blob(&self, text: &str) -> Option<Vec<u8>> {
        self.blobs
            .iter()
            .find(|(digest, _)| text.ends_with(&digest.to_string()))
            .map(|(_, bytes)| bytes.clone())
    }

    pub(crate) fn layer(&self) -> &(Digest, Vec<u8>) {
        &self.blobs[1]
    }
}

/// Settings that allow these hosts: at loopback, and without TLS.
pub(crate) fn allow(hosts: &[&str]) -> RegistrySettings {
    let hosts = PrivateHosts::parse(hosts.iter().copied()).unwrap();
    RegistrySettings { private_hosts: hosts.clone(), plain_http: hosts, ..RegistrySettings::default() }
}

pub(crate) fn login() -> Credentials {
    Credentials::login("user", "password").unwrap()
}

pub(crate) const BASIC: &str = "Basic dXNlcjpwYXNzd29yZA==";

pub(crate) async fn resolve(
    registry: &Registry,
    name: &str,
    credentials: Option<&Credentials>,
) -> Result<Image, ImageError> {
    on_any_thread(registry.resolve(&name.parse().unwrap(), credentials, &"linux/amd64".parse().unwrap()))
        .await
}

/// Counts what is reserved and allows so much at a time.
pub(crate) struct Most(pub(crate) u64, pub(crate) Mutex<Vec<u64>>);

impl Most {
    pub(crate) fn new(most: u64) -> Self {
        Self(most, Mutex::default())
    }
}

#[async_trait::async_trait]
impl Quota for Most {
    async fn reserve(&self, bytes: u64) -> Result<(), String> {
        self.1.lock().unwrap().push(bytes);
        if bytes > self.0 { Err(format!("the project has no room for {bytes} bytes")) } else { Ok(()) }
    }
}

/// The server's tasks move between threads.
fn on_any_thread<F: Future + Send>(future: F) -> F {
    future
}

/// A store in a directory of its own, which retries without waiting long.
pub(crate) fn store() -> (tempfile::TempDir, Blobs) {
    let dir = tempfile::tempdir().unwrap();
    let blobs = Blobs::open(dir.path()).unwrap().with_first_pause(std::time::Duration::from_millis(5));
    (dir, blobs)
}

pub(crate) async fn fetch(
    blobs: &Blobs,
    registry: &Registry,
    image: &Image,
    layer: &Layer,
    credentials: Option<&Credentials>,
) -> Result<Vec<u8>, ImageError> {
    let quota = Most::new(1 << 30);
    let order = Fetch { project: "p1", image, layer, credentials, quota: &quota, progress: &|_, _| {} };
    on_any_thread(blobs.fetch(registry, &order)).await.map(|path| std::fs::read(path).unwrap())
}
