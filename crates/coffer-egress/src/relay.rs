//! Relays bytes both ways until both sides are done, or the connection is cut.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio_util::sync::CancellationToken;

use crate::sandbox::Sandbox;
use crate::settings::Settings;
use crate::socket;

const CHUNK: usize = 32 * 1024;

/// Relays bytes between a sandbox and the outside; `hello` is sent first.
pub(crate) async fn relay(
    sandbox: &Sandbox,
    cut: &CancellationToken,
    mut inside: TcpStream,
    mut outside: TcpStream,
    hello: &[u8],
) {
    outside.set_nodelay(true).ok();
    let activity = Activity::new();
    let ended_well = {
        let (from_inside, to_inside) = inside.split();
        let (from_outside, to_outside) = outside.split();
        let counters = &sandbox.counters;
        let out = async {
            let mut to_outside = to_outside;
            if to_outside.write_all(hello).await.is_err() {
                return Ok(activity.end_one(Ended::Badly));
            }
            counters.sent_bytes.fetch_add(hello.len() as u64, Ordering::Relaxed);
            pump(from_inside, to_outside, &counters.sent_bytes, &activity).await
        };
        let back = pump(from_outside, to_inside, &counters.received_bytes, &activity);
        tokio::select! {
            biased;
            () = cut.cancelled() => false,
            () = activity.ceased(&sandbox.settings) => false,
            both = async { tokio::try_join!(out, back) } => both == Ok((Ended::Well, Ended::Well)),
        }
    };
    if !ended_well {
        socket::abort(&inside);
        socket::abort(&outside);
    }
}

/// How one direction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Well,
    /// The receiver accepts no more; data that it has already sent may still arrive.
    Badly,
}

/// A side reset the connection, which ends both directions.
#[derive(Debug, PartialEq, Eq)]
struct BrokenOff;

/// Relays one direction until its end, and passes the end on.
///
/// If the far side accepts no more, the other direction continues: a server that refuses a long upload says
/// why and closes, and the sandbox must get that.
async fn pump(
    from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    counter: &AtomicU64,
    activity: &Activity,
) -> Result<Ended, BrokenOff> {
    loop {
        // A silent connection holds no buffer: a thousand sandboxes may have 256 each.
        from.readable().await.map_err(|_| BrokenOff)?;
        let mut chunk = vec![0; CHUNK];
        match from.try_read(&mut chunk) {
            Ok(0) => break,
            Ok(length) => {
                activity.touch();
                if to.write_all(&chunk[..length]).await.is_err() {
                    return Ok(activity.end_one(Ended::Badly));
                }
                counter.fetch_add(length as u64, Ordering::Relaxed);
                activity.touch();
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return Err(BrokenOff),
        }
    }
    let ended = if to.shutdown().await.is_ok() { Ended::Well } else { Ended::Badly };
    Ok(activity.end_one(ended))
}

/// When bytes were last relayed.
#[derive(Debug)]
pub(crate) struct Activity {
    start: Instant,
    last_ms: AtomicU64,
    half_closed: AtomicBool,
}

impl Activity {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), last_ms: AtomicU64::new(0), half_closed: AtomicBool::new(false) }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn touch(&self) {
        self.last_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    /// Notes that one direction has ended; the other has a shorter limit from now on.
    fn end_one(&self, ended: Ended) -> Ended {
        self.touch();
        self.half_closed.store(true, Ordering::Relaxed);
        ended
    }

    /// Waits until the connection has been silent for its limit.
    pub(crate) async fn ceased(&self, settings: &Settings) {
        loop {
            let limit =
                if self.half_closed.load(Ordering::Relaxed) { settings.half_closed } else { settings.idle };
            let silent = Duration::from_millis(
                self.now_ms() - self.last_ms.load(Ordering::Relaxed).min(self.now_ms()),
            );
            if silent >= limit {
                return;
            }
            // Half-closing shortens the limit; check again no later than that.
            tokio::time::sleep((limit - silent).min(settings.half_closed).max(Duration::from_millis(1)))
                .await;
        }
    }
}
