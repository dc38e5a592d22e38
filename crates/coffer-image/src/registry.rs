//! The client of registries.

mod auth;
mod challenge;
mod ecr;
mod wire;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use coffer_http::{Client, Pieces, PrivateHosts, retry_after};
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE};
use http::{Response, StatusCode};
use serde_json::Value;

use crate::config::ConfigFile;
use crate::credentials::Credentials;
use crate::digest::Digest;
use crate::error::ImageError;
use crate::image::{Image, ServedBy};
use crate::manifest::{
    ACCEPT, Descriptor, LONGEST_CONFIG, LONGEST_MANIFEST, Manifest, check_platform, select, shown,
};
use crate::platform::Platform;
use crate::reference::{ImageRef, is_authority};
use auth::Logins;
pub(crate) use wire::Source;
use wire::{Answer, Ask, PATIENCE, Wire};

const LONGEST_REASON: usize = 8 << 10;

/// How registries are reached. The operator's.
#[derive(Debug, Clone, Default)]
pub struct RegistrySettings {
    /// For a registry (`docker.io`), the hosts to try before it, in order. They get no credentials, and may be at private
    /// addresses.
    pub mirrors: BTreeMap<String, Vec<String>>,
    /// Registries, blob stores and token servers that may be at private addresses.
    pub private_hosts: PrivateHosts,
    /// Hosts that are asked over plain HTTP.
    pub plain_http: PrivateHosts,
    /// Certificates to trust in addition to this machine's, in PEM.
    pub extra_roots: Option<String>,
}

/// A mirror that is not a host with or without a port.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the name of a registry, such as `mirror.example.com:5000`")]
pub struct BadMirror(pub String);

/// Finds images in registries.
#[derive(Debug)]
pub struct Registry {
    wire: Wire,
    logins: Logins,
    mirrors: BTreeMap<String, Vec<String>>,
}

/// A blob that is being downloaded.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) body: Pieces,
    pub(crate) host: String,
    /// The offset of the first byte: 0 if the host does not send parts.
    pub(crate) starts_at: u64,
    /// Bytes from there on, if the host says.
    pub(crate) length: Option<u64>,
}

impl Registry {
    /// Reads the machine's trust store: create one and share it.
    pub fn new(settings: RegistrySettings) -> Result<Self, BadMirror> {
        let mut mirrors = BTreeMap::new();
        for (registry, hosts) in settings.mirrors {
            let names = std::iter::once(&registry).chain(&hosts);
            if let Some(bad) = names.into_iter().find(|name| !is_authority(&name.to_ascii_lowercase())) {
                return Err(BadMirror(bad.clone()));
            }
            mirrors.insert(registry.to_ascii_lowercase(), hosts);
        }
        let wire = Wire {
            client: Client::new(settings.extra_roots.as_deref()),
            private_hosts: settings.private_hosts,
            plain_http: settings.plain_http,
        };
        Ok(Self { wire, logins: Logins::default(), mirrors })
    }

    /// Finds an image for a platform: at the mirrors of its registry, then at the registry itself. Credentials go to the
    /// registry alone.
    pub async fn resolve(
        &self,
        image: &ImageRef,
        credentials: Option<&Credentials>,
        platform: &Platform,
    ) -> Result<Image, ImageError> {
        let mut skipped = Vec::new();
        let mut failed = None;
        for source in self.sources(image) {
            match self.resolve_at(&source, image, credentials, platform).await {
                Ok(found) => return Ok(Image { skipped, ..found }),
                Err(error) if source.is_mirror => {
                    tracing::warn!(mirror = source.host, %image, %error, "mirror does not serve an image");
                    skipped.push(format!("mirror {}: {error}", source.host));
                }
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.expect("the last source is the registry"))
    }

    /// Where an image is available: mirrors first, the registry last.
    pub(crate) fn sources(&self, image: &ImageRef) -> Vec<Source> {
        let source = |host: &str, is_mirror| Source {
            host: host.to_string(),
            repository: image.repository().to_string(),
            is_mirror,
        };
        let mirrors = self.mirrors.get(image.registry()).into_iter().flatten();
        let mirrors = mirrors.map(|host| source(host, true));
        mirrors.chain([source(image.api_host(), false)]).collect()
    }

    async fn resolve_at(
        &self,
        source: &Source,
        image: &ImageRef,
        credentials: Option<&Credentials>,
        platform: &Platform,
    ) -> Result<Image, ImageError> {
        let name = image.to_string();
        let (mut digest, mut manifest) =
            self.manifest(source, credentials, &name, &image.pointer(), image.digest()).await?;
        let mut index = None;
        if let Manifest::Index(entries) = &manifest {
            let entry = select(entries, platform).map_err(|available| ImageError::NoPlatform {
                image: name.clone(),
                wanted: platform.clone(),
                available,
            })?;
            let chosen = entry.descriptor.digest;
            index = Some(digest);
            (digest, manifest) =
                self.manifest(source, credentials, &name, &chosen.to_string(), Some(chosen)).await?;
        }
        let Manifest::Image(manifest) = manifest else {
            return Err(ImageError::invalid(
                format!("the image `{name}`"),
                "has an index that lists an index",
            ));
        };
        let what = format!("the configuration of `{name}`");
        let bytes = self.small_blob(source, credentials, &manifest.config, &what).await?;
        let file = ConfigFile::read(&bytes).map_err(|why| ImageError::invalid(what, why))?;
        let platform = check_platform(&file, platform, &name)?;
        let layers = manifest.layers(&file, &format!("the image `{name}`"))?;
        let host = source.host.clone();
        Ok(Image {
            reference: Some(image.clone()),
            digest,
            index,
            platform,
            config: file.config,
            layers,
            served_by: if source.is_mirror { ServedBy::Mirror(host) } else { ServedBy::Registry(host) },
            skipped: Vec::new(),
        })
    }

    /// A manifest by tag or digest, and its digest. `expected` is checked, or else what the registry claims.
    async fn manifest(
        &self,
        source: &Source,
        credentials: Option<&Credentials>,
        name: &str,
        pointer: &str,
        expected: Option<Digest>,
    ) -> Result<(Digest, Manifest), ImageError> {
        let what = format!("the manifest of `{name}`");
        let answer = self.get(source, credentials, format!("manifests/{pointer}"), ACCEPT, 0).await?;
        let host = answer.host.clone();
        let unknown = || ImageError::UnknownImage { image: name.to_string(), host: source.host.clone() };
        let response = judge(answer, source, unknown).await?;
        let (head, body) = response.into_parts();
        let bytes = whole(body, &host, LONGEST_MANIFEST, &what).await?;
        let claimed = head.headers.get("docker-content-digest").and_then(|value| value.to_str().ok());
        let expected = expected.or_else(|| claimed.and_then(|text| text.parse().ok()));
        let found = verified(&bytes, expected, &what)?;
        let content_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        Ok((found, Manifest::read(&bytes, content_type, &what)?))
    }

    async fn small_blob(
        &self,
        source: &Source,
        credentials: Option<&Credentials>,
        blob: &Descriptor,
        what: &str,
    ) -> Result<Bytes, ImageError> {
        let opened = self.open_blob(source, credentials, &blob.digest, 0).await?;
        let bytes = whole(opened.body, &opened.host, LONGEST_CONFIG, what).await?;
        verified(&bytes, Some(blob.digest), what)?;
        Ok(bytes)
    }

    /// Opens a blob from byte `from` on, or from the beginning if the host does not send parts.
    pub(crate) async fn open_blob(
        &self,
        source: &Source,
        credentials: Option<&Credentials>,
        digest: &Digest,
        from: u64,
    ) -> Result<Opened, ImageError> {
        let answer = self.get(source, credentials, format!("blobs/{digest}"), "*/*", from).await?;
        let host = answer.host.clone();
        let unknown = || ImageError::UnknownBlob { host: source.host.clone(), digest: *digest };
        let response = judge(answer, source, unknown).await?;
        let text = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let starts_at = match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let start =
                    text(CONTENT_RANGE).and_then(|range| range.strip_prefix("bytes ")?.split('-').next());
                let start = start.and_then(|start| start.trim().parse().ok()).filter(|start| *start == from);
                let why =
                    || ImageError::Broken { host: host.clone(), why: "another part than requested".into() };
                start.ok_or_else(why)?
            }
            _ => 0,
        };
        let length = text(CONTENT_LENGTH).and_then(|length| length.parse().ok());
        Ok(Opened { body: response.into_body(), host, starts_at, length })
    }

    /// Asks a source, and answers its challenge if it has one.
    async fn get(
        &self,
        source: &Source,
        credentials: Option<&Credentials>,
        path: String,
        accept: &'static str,
        from: u64,
    ) -> Result<Answer, ImageError> {
        // Mirrors are other hosts than the one the credentials are for.
        let credentials = credentials.filter(|_| !source.is_mirror);
        let known = self.logins.known(source, credentials);
        let mut ask = Ask { path, accept, from, authorization: known.as_ref() };
        let sent = |answer: Answer, was_authorized: bool| Answer {
            credentials_sent: was_authorized && credentials.is_some(),
            ..answer
        };
        let answer = sent(self.wire.get(source, &ask).await?, known.is_some());
        if answer.response.status() != StatusCode::UNAUTHORIZED || !answer.is_home {
            return Ok(answer);
        }
        let headers = answer.response.headers();
        let value = self.logins.answer(&self.wire, source, credentials, headers).await?;
        ask.authorization = Some(&value);
        Ok(sent(self.wire.get(source, &ask).await?, true))
    }
}

async fn whole(body: Pieces, host: &str, most: usize, what: &str) -> Result<Bytes, ImageError> {
    body.whole(most, PATIENCE).await.map_err(|failure| match failure {
        coffer_http::Failure::TooLong => ImageError::TooLong { what: what.into(), most: most as u64 },
        other => ImageError::from_failure(host, other, most),
    })
}

fn verified(bytes: &[u8], expected: Option<Digest>, what: &str) -> Result<Digest, ImageError> {
    let found = Digest::of(bytes);
    match expected.filter(|expected| *expected != found) {
        Some(expected) => Err(ImageError::BadDigest { what: what.into(), expected, found }),
        None => Ok(found),
    }
}

/// Passes success on and turns other statuses into errors; `unknown` is the one for 404.
async fn judge(
    answer: Answer,
    source: &Source,
    unknown: impl Fn() -> ImageError,
) -> Result<Response<Pieces>, ImageError> {
    let Answer { response, host, credentials_sent, .. } = answer;
    let (head, body) = match response.status() {
        StatusCode::OK | StatusCode::PARTIAL_CONTENT => return Ok(response),
        _ => response.into_parts(),
    };
    Err(match head.status {
        StatusCode::NOT_FOUND => unknown(),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            ImageError::Unauthorized { host, repository: source.repository.clone(), credentials_sent }
        }
        StatusCode::TOO_MANY_REQUESTS => {
            ImageError::RateLimited { host, retry_after: retry_after(&head.headers) }
        }
        status => ImageError::Status { host, status: status.as_u16(), detail: reason(body).await },
    })
}

/// The reason in the body of an error, where there is one.
async fn reason(body: Pieces) -> String {
    let Ok(bytes) = body.whole(LONGEST_REASON, Duration::from_secs(5)).await else { return String::new() };
    let reply: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let error = &reply["errors"][0];
    let text = [&error["code"], &error["message"]]
        .into_iter()
        .filter_map(Value::as_str)
        .collect::<Vec<_>>()
        .join(": ");
    if text.is_empty() { text } else { format!(" ({})", shown(&text)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_come_before_the_registry_that_they_are_for() {
        let mirrors = |hosts: &[&str]| RegistrySettings {
            mirrors: [("docker.io".to_string(), hosts.iter().map(ToString::to_string).collect())].into(),
            ..RegistrySettings::default()
        };
        let registry = Registry::new(mirrors(&["a.example:5000", "b.example"])).unwrap();
        let hosts = |image: &str| -> Vec<String> {
            registry.sources(&image.parse().unwrap()).into_iter().map(|source| source.host).collect()
        };
        assert_eq!(hosts("debian"), ["a.example:5000", "b.example", "registry-1.docker.io"]);
        assert_eq!(hosts("ghcr.io/a/b"), ["ghcr.io"]);
        for bad in ["https://a.example", "a.example/path", "", "a b"] {
            assert_eq!(Registry::new(mirrors(&[bad])).unwrap_err(), BadMirror(bad.into()));
        }
    }
}
