//! Reaps child processes that no task waits for.
//!
//! A spawner that dies between creating a process and reporting it leaves a process that becomes the node's
//! child; a failing CRIU leaves its helpers. The node has to reap them when they end.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::time::Duration;

use rustix::process::{Pid, WaitOptions};
use tokio::signal::unix::{SignalKind, signal};

/// A task that waits for a child reaps it within this time.
const COLLECTED_WITHIN: Duration = Duration::from_secs(5);

/// Reaps ended children that no task collects, for as long as it runs.
pub(crate) async fn clear_away() -> io::Result<()> {
    let mut children = signal(SignalKind::child())?;
    loop {
        look(COLLECTED_WITHIN).await;
        if children.recv().await.is_none() {
            return Ok(());
        }
    }
}

/// Those that have ended now get this long to be collected.
async fn look(patience: Duration) {
    let before = ended();
    if before.is_empty() {
        return;
    }
    tokio::time::sleep(patience).await;
    for child in ended().intersection(&before) {
        tracing::warn!("reaping stray process {}", child.as_raw_nonzero());
        let _ = rustix::process::waitpid(Some(*child), WaitOptions::NOHANG);
    }
}

fn ended() -> HashSet<Pid> {
    children().into_iter().filter(|&child| has_ended(child)).collect()
}

fn children() -> Vec<Pid> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let listed = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    listed
        .flat_map(|text| text.split_whitespace().map(str::parse).collect::<Vec<_>>())
        .filter_map(|pid| Pid::from_raw(pid.ok()?))
        .collect()
}

fn has_ended(child: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.as_raw_nonzero()));
    stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    #[expect(clippy::zombie_processes, reason = "that is what is tested")]
    async fn only_what_nobody_collects_is_cleared_away() {
        let forgotten = std::process::Command::new("true").spawn().unwrap();
        let mut alive = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = |child: &std::process::Child| Pid::from_raw(child.id().cast_signed()).unwrap();
        while !has_ended(pid(&forgotten)) {
            std::thread::yield_now();
        }
        look(Duration::from_millis(50)).await;
        assert!(!children().contains(&pid(&forgotten)));
        assert!(children().contains(&pid(&alive)));
        alive.kill().unwrap();
        alive.wait().unwrap();
    }
}
