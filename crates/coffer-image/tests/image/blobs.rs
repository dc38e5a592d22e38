//! Downloads: once, to the end, and checked.

use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use coffer_image::{Blobs, Fetch, Image, ImageError, Registry};

use crate::fake::{Fake, Reply, Seen, image};
use crate::fixture::{Made, Most, allow, digest, fetch, resolve, store};

const MIB: usize = 1 << 20;

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from(at.wrapping_mul(2_654_435_761) >> 7 & 0xff).unwrap()).collect()
}

/// A registry whose layer is served by `answer`, which is told how often it was asked before.
async fn serve(
    made: &Made,
    answer: impl Fn(&Seen, u64, &[u8]) -> Reply + Send + Sync + 'static,
) -> (Fake, Registry, Image) {
    let (copy, asked) = (made.clone(), AtomicU64::new(0));
    let (layer, content) = made.layer().clone();
    let fake = Fake::start(move |seen| match seen.path.ends_with(&layer.to_string()) {
        true => answer(seen, asked.fetch_add(1, Ordering::SeqCst), &content),
        false => image(&copy, seen),
    })
    .await;
    let registry = Registry::new(allow(&[&fake.host()])).unwrap();
    let image = resolve(&registry, &format!("{}/a/b", fake.host()), None).await.unwrap();
    (fake, registry, image)
}

fn ranges(fake: &Fake, made: &Made) -> Vec<String> {
    let asked = fake.requests(&made.layer().0.to_string());
    asked.iter().map(|seen| seen.header("range").unwrap_or("all").to_string()).collect()
}

fn partial(dir: &tempfile::TempDir, made: &Made) -> std::path::PathBuf {
    dir.path().join("p1/partial").join(made.layer().0.hex())
}

#[tokio::test]
async fn a_download_that_breaks_off_is_continued() {
    let made = Made::with_layer(&bytes(3 * MIB));
    let (fake, registry, image) = serve(&made, |seen, asked, content| match asked {
        0 => Reply::part(seen, content).cut(MIB),
        1 => Reply::new(500, ""),
        2 => Reply::part(seen, content).cut(MIB + 5),
        _ => Reply::part(seen, content),
    })
    .await;
    let (dir, blobs) = store();
    let (quota, told) = (Most::new(u64::MAX), Mutex::new(Vec::new()));
    let order = Fetch {
        project: "p1",
        image: &image,
        layer: &image.layers[0],
        credentials: None,
        quota: &quota,
        progress: &|done, total| told.lock().unwrap().push((done, total)),
    };
    let path = blobs.fetch(&registry, &order).await.unwrap();
    assert_eq!(path, dir.path().join("p1/sha256").join(made.layer().0.hex()));
    assert!(fs::read(path).unwrap() == made.layer().1);
    assert_eq!(ranges(&fake, &made), ["all", "bytes=1048576-", "bytes=1048576-", "bytes=2097157-"]);
    let told = told.lock().unwrap().clone();
    assert!(told.is_sorted() && told.last() == Some(&(3 << 20, 3 << 20)), "{told:?}");
    assert_eq!(*quota.1.lock().unwrap(), [3 << 20], "reserved once");
    assert!(!partial(&dir, &made).exists());
    // What is there is not fetched again, and costs nothing.
    blobs.fetch(&registry, &order).await.unwrap();
    assert_eq!((ranges(&fake, &made).len(), quota.1.lock().unwrap().len()), (4, 1));
    // Another project downloads it again.
    blobs.fetch(&registry, &Fetch { project: "p2", ..order }).await.unwrap();
    assert_eq!(ranges(&fake, &made).len(), 5);
}

#[tokio::test]
async fn what_a_crash_left_is_continued_or_replaced() {
    let made = Made::with_layer(&bytes(2 * MIB));
    let content = made.layer().1.clone();
    let mut torn = content[..MIB].to_vec();
    torn[MIB - 4096..].fill(0);
    let longer = [content.clone(), vec![0]].concat();
    for (left, expected) in [
        (&content[..MIB], vec!["bytes=1048576-"]),
        (&content[..], vec![]),
        (&torn[..], vec!["bytes=1048576-", "all"]),
        (&longer[..], vec!["all"]),
    ] {
        let (fake, registry, image) = serve(&made, |seen, _, content| Reply::part(seen, content)).await;
        let (dir, blobs) = store();
        fs::create_dir_all(dir.path().join("p1/partial")).unwrap();
        fs::write(partial(&dir, &made), left).unwrap();
        let got = fetch(&blobs, &registry, &image, &image.layers[0], None).await.unwrap();
        assert!(got == content && !partial(&dir, &made).exists());
        assert_eq!(ranges(&fake, &made), expected);
    }
}

#[tokio::test]
async fn hosts_that_do_not_send_parts_start_over() {
    let made = Made::with_layer(&bytes(2 * MIB));
    for refusal in [200, 416, 206] {
        let (fake, registry, image) = serve(&made, move |seen, asked, content| match (asked, refusal) {
            (0, _) => Reply::new(200, content).cut(MIB),
            (1, 416) => Reply::new(416, ""),
            // Another part than was asked for.
            (1, 206) => Reply::new(206, &content[5..]).header("content-range", "bytes 5-2097151/2097152"),
            (1, _) => Reply::new(200, content),
            _ => Reply::part(seen, content),
        })
        .await;
        let (_dir, blobs) = store();
        let got = fetch(&blobs, &registry, &image, &image.layers[0], None).await.unwrap();
        assert!(got == made.layer().1, "{refusal}: {:?}", ranges(&fake, &made));
    }
}

#[tokio::test]
async fn wrong_bytes_are_deleted() {
    let made = Made::with_layer(&bytes(MIB));
    let good = made.layer().1.clone();
    let mut changed = good.clone();
    changed[7] ^= 1;
    let longer = [good.clone(), vec![0]].concat();
    let endless =
        Reply::new(200, [b"200000\r\n".to_vec(), vec![0; 2 * MIB], b"\r\n0\r\n\r\n".to_vec()].concat())
            .header("transfer-encoding", "chunked");
    for (reply, expected) in [
        (Reply::new(200, changed), "has the digest"),
        (Reply::new(200, longer), "bytes or more"),
        (Reply::new(200, &good[..MIB - 1]), "bytes or more"),
        (endless, "bytes or more"),
    ] {
        let (fake, registry, image) = serve(&made, move |_, _, _| reply.clone()).await;
        let (dir, blobs) = store();
        let error = fetch(&blobs, &registry, &image, &image.layers[0], None).await.unwrap_err();
        assert!(error.to_string().contains(expected) && !error.is_transient(), "{error}");
        assert!(blobs.path("p1", &made.layer().0).is_none());
        let left = fs::metadata(partial(&dir, &made)).map_or(0, |left| left.len());
        assert!(left < MIB as u64, "{error}");
        assert_eq!(ranges(&fake, &made).len(), 1, "no retry: {error}");
    }
}

#[tokio::test]
async fn failures_are_retried_a_few_times_and_a_long_wait_is_the_callers() {
    let made = Made::with_layer(b"layer");
    let (fake, registry, image) = serve(&made, |_, _, _| Reply::new(503, "")).await;
    let (_dir, blobs) = store();
    let error = fetch(&blobs, &registry, &image, &image.layers[0], None).await.unwrap_err();
    assert!(matches!(error, ImageError::Status { status: 503, .. }) && error.is_transient(), "{error}");
    assert_eq!(ranges(&fake, &made).len(), 5);
    for (wait, tries) in [(0, 2), (3600, 1)] {
        let (fake, registry, image) = serve(&made, move |seen, asked, content| match asked {
            0 => Reply::new(429, "").header("retry-after", wait),
            _ => Reply::part(seen, content),
        })
        .await;
        let (_dir, blobs) = store();
        let got = fetch(&blobs, &registry, &image, &image.layers[0], None).await;
        assert_eq!(ranges(&fake, &made).len(), tries);
        match got {
            Ok(got) => assert_eq!((wait, got), (0, b"layer".to_vec())),
            Err(error) => {
                let hour = Some(Duration::from_secs(3600));
                assert!(
                    matches!(error, ImageError::RateLimited { retry_after, .. } if retry_after == hour),
                    "{error}"
                );
            }
        }
    }
    let (fake, registry, image) = serve(&made, |_, _, _| Reply::new(404, "")).await;
    let error = fetch(&blobs, &registry, &image, &image.layers[0], None).await.unwrap_err();
    assert!(matches!(error, ImageError::UnknownBlob { .. }), "{error}");
    assert_eq!(ranges(&fake, &made).len(), 1);
}

#[tokio::test]
async fn many_callers_share_one_download() {
    let made = Made::with_layer(&bytes(4 * MIB));
    let (fake, registry, image) = serve(&made, |seen, _, content| Reply::part(seen, content)).await;
    let (_dir, blobs) = store();
    let quota = Most::new(u64::MAX);
    let done = AtomicU64::new(0);
    let progress = |now: u64, total: u64| {
        if now == total {
            done.fetch_add(1, Ordering::SeqCst);
        }
    };
    let order = Fetch {
        project: "p1",
        image: &image,
        layer: &image.layers[0],
        credentials: None,
        quota: &quota,
        progress: &progress,
    };
    let fetches = (0..8).map(|_| blobs.fetch(&registry, &order));
    let paths = futures(fetches.collect()).await;
    assert!(paths.iter().all(|path| fs::read(path.as_ref().unwrap()).unwrap() == made.layer().1));
    assert_eq!((ranges(&fake, &made).len(), quota.1.lock().unwrap().len()), (1, 1));
    assert!(done.load(Ordering::SeqCst) >= 8, "each was told");
}

/// Runs futures at the same time.
async fn futures<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, done) in futures.iter_mut().zip(&mut done) {
            if done.is_none()
                && let std::task::Poll::Ready(output) = future.as_mut().poll(context)
            {
                *done = Some(output);
            }
        }
        if done.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

#[tokio::test]
async fn waiting_callers_share_a_failure_and_take_over_from_one_that_left() {
    let made = Made::with_layer(&bytes(2 * MIB));
    let (fake, registry, image) = serve(&made, |_, _, _| Reply::new(503, "")).await;
    let (dir, blobs) = store();
    let fetches = (0..4).map(|_| fetch(&blobs, &registry, &image, &image.layers[0], None)).collect();
    assert!(futures(fetches).await.iter().all(Result::is_err));
    assert_eq!(ranges(&fake, &made).len(), 5, "the others did not try again");

    // The first caller pauses for an hour and leaves; the next one continues.
    let (fake, registry, image) = serve(&made, |seen, asked, content| match asked {
        0 => Reply::new(200, content).cut(MIB + 1),
        _ => Reply::part(seen, content),
    })
    .await;
    let blobs = Blobs::open(dir.path()).unwrap().with_first_pause(Duration::from_secs(3600));
    let partial = partial(&dir, &made);
    let leaving = async {
        let paused = async {
            while fs::metadata(&partial).map_or(0, |about| about.len()) <= MIB as u64 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            _ = fetch(&blobs, &registry, &image, &image.layers[0], None) => panic!("it waits for an hour"),
            () = paused => {}
        }
    };
    let staying = fetch(&blobs, &registry, &image, &image.layers[0], None);
    let both = async { tokio::join!(leaving, staying).1 };
    let stayed = tokio::time::timeout(Duration::from_secs(60), both).await.expect("the next one continues");
    assert!(stayed.unwrap() == made.layer().1);
    assert_eq!(ranges(&fake, &made), ["all", "bytes=1048577-"]);
}

#[tokio::test]
async fn the_quota_is_asked_before_anything_is_downloaded() {
    let made = Made::with_layer(b"layer");
    let (fake, registry, image) = serve(&made, |seen, _, content| Reply::part(seen, content)).await;
    let (dir, blobs) = store();
    let quota = Most::new(4);
    let order = Fetch {
        project: "p1",
        image: &image,
        layer: &image.layers[0],
        credentials: None,
        quota: &quota,
        progress: &|_, _| {},
    };
    let error = blobs.fetch(&registry, &order).await.unwrap_err();
    assert!(matches!(&error, ImageError::OverQuota(why) if why.contains("5 bytes")), "{error}");
    assert!(ranges(&fake, &made).is_empty() && !dir.path().join("p1/partial").exists());
    let error = blobs.fetch(&registry, &Fetch { project: "../p1", ..order }).await.unwrap_err();
    assert!(matches!(error, ImageError::Invalid { .. }), "{error}");
}

#[tokio::test]
async fn an_image_that_lies_about_a_size_does_not_get_the_file() {
    let made = Made::with_layer(b"layer");
    let (_fake, registry, mut image) = serve(&made, |seen, _, content| Reply::part(seen, content)).await;
    let (_dir, blobs) = store();
    fetch(&blobs, &registry, &image, &image.layers[0], None).await.unwrap();
    image.layers[0].size = 4;
    let error = fetch(&blobs, &registry, &image, &image.layers[0], None).await.unwrap_err();
    assert!(error.to_string().contains("has 5 bytes, but the image says 4"), "{error}");
    assert_eq!(image.layers[0].digest, digest(b"layer"));
}
