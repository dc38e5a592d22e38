//! One download: tries, continues and checks until the blob is there.

use std::time::Duration;

use bytes::BytesMut;

use super::home::{Home, blocking};
use super::order::Fetch;
use super::partial::Partial;
use crate::error::ImageError;
use crate::image::ServedBy;
use crate::registry::{Registry, Source};

/// Tries in a row that gain nothing.
const MOST_TRIES: u32 = 5;
/// Tries in all.
const MOST_TRIES_IN_ALL: u32 = 50;
/// A try that gains this much starts the count over: a large layer over a bad line gets there in the end.
const WORTHWHILE: u64 = 1 << 20;
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The longest wait that a registry may ask for; with a longer one the download fails, and its caller decides.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// A connection without a byte for this long is given up.
const STALLED: Duration = Duration::from_secs(60);
/// Bytes that are written at a time.
const PIECE: usize = 1 << 20;

pub(super) struct Download<'a> {
    pub(super) registry: &'a Registry,
    pub(super) order: &'a Fetch<'a>,
    pub(super) home: &'a Home,
    pub(super) first_pause: Duration,
    /// Told the bytes that are there.
    pub(super) report: &'a (dyn Fn(u64) + Send + Sync),
}

const WRITE: &str = "write a layer";

/// The file, passed to and from the threads that may block.
async fn with<T: Send + 'static>(
    partial: &mut Option<Partial>,
    work: impl FnOnce(&mut Partial) -> std::io::Result<T> + Send + 'static,
) -> Result<T, ImageError> {
    let gone = || ImageError::Disk { doing: WRITE, why: "an earlier write failed".into() };
    let mut file = partial.take().ok_or_else(gone)?;
    let (file, result) = blocking(WRITE, move || {
        let result = work(&mut file);
        Ok((file, result))
    })
    .await?;
    *partial = Some(file);
    result.map_err(ImageError::disk(WRITE))
}

impl Download<'_> {
    pub(super) async fn run(&self) -> Result<(), ImageError> {
        let (digest, size) = (self.order.layer.digest, self.order.layer.size);
        let mut sources = self.sources()?;
        let home = self.home.clone();
        let mut partial = Some(blocking(WRITE, move || home.partial(&digest, size)).await?);
        // Whether all bytes are of one source: those of a crash may be none.
        let mut is_pure = length(&partial) == 0;
        let (mut at, mut tries, mut tries_in_all) = (0, 0, 0);
        (self.report)(length(&partial));
        loop {
            if length(&partial) == size {
                let found = with(&mut partial, |file| Ok(file.digest())).await?;
                if found == digest {
                    let to = self.home.blob(&digest);
                    return with(&mut partial, move |file| file.finish(&to)).await;
                }
                if is_pure && sources.len() == 1 {
                    with(&mut partial, |file| file.delete()).await?;
                    let what = format!("the layer from `{}`", sources[at].host);
                    return Err(ImageError::BadDigest { what, expected: digest, found });
                }
                // Once more, and all of it from one source: the last is the registry itself.
                sources.drain(..sources.len() - 1);
                at = 0;
                with(&mut partial, Partial::restart).await?;
                is_pure = true;
            }
            let before = length(&partial);
            let Err(error) = self.attempt(&sources[at], &mut partial).await else { continue };
            if matches!(error, ImageError::Disk { .. }) {
                return Err(error);
            }
            tries_in_all += 1;
            tries = if length(&partial) >= before + WORTHWHILE { 1 } else { tries + 1 };
            let wait = self.pause(tries, &error);
            if !error.is_transient() || wait > LONGEST_WAIT {
                if sources.len() == 1 {
                    return Err(error);
                }
                tracing::warn!(host = sources[at].host, %digest, %error, "host does not serve a layer");
                sources.remove(at);
                at %= sources.len();
                is_pure &= length(&partial) == 0;
                continue;
            }
            if tries >= MOST_TRIES || tries_in_all >= MOST_TRIES_IN_ALL {
                return Err(error);
            }
            tracing::info!(host = sources[at].host, %digest, %error, "retrying a download");
            if sources.len() > 1 {
                at = (at + 1) % sources.len();
                is_pure &= length(&partial) == 0;
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// Where the layer is available: first of all from where the image's manifest came; the registry itself
    /// is last.
    fn sources(&self) -> Result<Vec<Source>, ImageError> {
        let (ServedBy::Registry(host) | ServedBy::Mirror(host), Some(reference)) =
            (&self.order.image.served_by, &self.order.image.reference)
        else {
            let why = "was deleted, and its image came from an archive";
            return Err(ImageError::invalid(format!("the layer {}", self.order.layer.digest), why));
        };
        let mut sources = self.registry.sources(reference);
        // Those before it did not have the image.
        if let Some(at) = sources.iter().position(|source| source.host == *host) {
            sources.drain(..at);
        }
        Ok(sources)
    }

    fn pause(&self, tries: u32, error: &ImageError) -> Duration {
        let pause = self.first_pause.saturating_mul(1 << tries.saturating_sub(1).min(10)).min(LONGEST_PAUSE);
        let pause = pause.mul_f64(rand::random_range(0.75..1.25));
        match error {
            ImageError::RateLimited { retry_after: Some(wait), .. } => pause.max(*wait),
            _ => pause,
        }
    }

    /// Reads from one source until the blob is complete or the source fails; what arrived stays.
    async fn attempt(&self, source: &Source, partial: &mut Option<Partial>) -> Result<(), ImageError> {
        let (digest, size) = (self.order.layer.digest, self.order.layer.size);
        let from = length(partial);
        let opened = self.registry.open_blob(source, self.order.credentials, &digest, from).await;
        let mut opened = match opened {
            // 416: what we have is not a part of what is there.
            Err(ImageError::Status { status: 416, host, .. }) if from > 0 => {
                with(partial, Partial::restart).await?;
                return Err(ImageError::Broken {
                    host,
                    why: "a part that it does not have was requested".into(),
                });
            }
            opened => opened?,
        };
        if opened.starts_at != from {
            with(partial, Partial::restart).await?;
        }
        let wrong = |length: u64| {
            let why = format!("has {length} bytes or more at `{}`, but the image says {size}", source.host);
            ImageError::invalid(format!("the layer {digest}"), why)
        };
        if let Some(length) = opened.length.and_then(|length| opened.starts_at.checked_add(length))
            && length != size
        {
            return Err(wrong(length));
        }
        let mut piece = BytesMut::with_capacity(PIECE);
        loop {
            let next = opened.body.next(STALLED).await;
            let is_last = !matches!(next, Ok(Some(_)));
            if let Ok(Some(bytes)) = &next {
                piece.extend_from_slice(bytes);
                let length = length(partial) + piece.len() as u64;
                if length > size {
                    return Err(wrong(length));
                }
            }
            if piece.len() >= PIECE || (is_last && !piece.is_empty()) {
                let bytes = piece.split().freeze();
                with(partial, move |file| file.append(&bytes)).await?;
                (self.report)(length(partial));
            }
            match next {
                Ok(Some(_)) => {}
                Ok(None) if length(partial) == size => return Ok(()),
                Ok(None) => {
                    return Err(ImageError::Broken {
                        host: opened.host,
                        why: "the layer ended too early".into(),
                    });
                }
                Err(failure) => return Err(ImageError::from_failure(&opened.host, failure, 0)),
            }
        }
    }
}

fn length(partial: &Option<Partial>) -> u64 {
    partial.as_ref().map_or(0, Partial::length)
}
