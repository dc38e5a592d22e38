//! Breaks the deadlock of a sandbox whose first process is killed while CRIU traces it.
//!
//! A first process ends only when its children are reaped. Children that CRIU traces can be reaped only by
//! CRIU, and CRIU waits for the first process before it looks at any other. So both hang until the node kills
//! CRIU. That loses nothing: with its first process the whole sandbox is ending already.

use std::convert::Infallible;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::process::Watched;

const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A process that is still exiting after this many checks in a row is deadlocked.
const LOOKS: u32 = 5;

/// Waits until that process has been exiting for too long.
pub(crate) async fn deadlocked(first: i32) {
    let mut looks = 0;
    while looks < LOOKS {
        tokio::time::sleep(LOOK_EVERY).await;
        looks = if is_ending(first) { looks + 1 } else { 0 };
    }
}

/// Ends the process of `criu` whenever it and the sandbox's first process wait for each other, and notes that.
pub(super) async fn resolve(first: i32, criu: impl AsFd, resolved: &AtomicBool) -> Infallible {
    loop {
        deadlocked(first).await;
        resolved.store(true, Ordering::Relaxed);
        tracing::warn!("killing CRIU: it waits for process {first}, which was killed");
        // An error means that it has ended.
        let _ = rustix::process::pidfd_send_signal(&criu, Signal::KILL);
    }
}

/// Watches each CRIU that an earlier node started to save memory below `images`, until it ends or `stop`.
pub(crate) async fn watch_leftovers(images: &Path, tasks: &TaskTracker, stop: &CancellationToken) {
    let below = images.to_path_buf();
    let found = tokio::task::spawn_blocking(move || leftovers(&below)).await;
    for (criu, first) in found.expect("looking at processes does not panic") {
        let stop = stop.clone();
        tasks.spawn(async move {
            let Ok(held) = criu.try_clone() else { return };
            let Ok(criu) = Watched::new(criu, None) else { return };
            let resolved = AtomicBool::new(false);
            tokio::select! {
                () = stop.cancelled() => {}
                () = criu.ended() => {}
                never = resolve(first, held, &resolved) => match never {},
            }
        });
    }
}

fn leftovers(images: &Path) -> Vec<(OwnedFd, i32)> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|process| process.file_name().to_str()?.parse::<i32>().ok());
    let held = numbers.filter_map(|number| {
        // Open the descriptor first: what is read afterwards is then about the same process.
        let pidfd = rustix::process::pidfd_open(Pid::from_raw(number)?, PidfdFlags::empty()).ok()?;
        let line = fs::read(format!("/proc/{number}/cmdline")).ok()?;
        Some((pidfd, saves(&line, images)?))
    });
    held.collect()
}

/// The first process of the tree that a CRIU saves, if it writes below `images`.
fn saves(command_line: &[u8], images: &Path) -> Option<i32> {
    let words: Vec<_> =
        command_line.split(|&byte| byte == 0).filter_map(|w| str::from_utf8(w).ok()).collect();
    let after = |name: &str| words.iter().skip_while(|&&word| word != name).nth(1);
    let is_dump = words.contains(&"dump") && Path::new(after("--images-dir")?).starts_with(images);
    is_dump.then(|| after("--tree")?.parse().ok())?
}

/// Whether the process is exiting but has not exited yet.
fn is_ending(process: i32) -> bool {
    const PF_EXITING: u32 = 4;
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name is in parentheses and may hold anything; the flags are 7 fields after it.
    let flags = stat.rsplit_once(") ").and_then(|(_, after)| after.split(' ').nth(6)?.parse::<u32>().ok());
    flags.is_some_and(|flags| flags & PF_EXITING != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zombie_is_ending_and_a_live_process_is_not() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id().cast_signed();
        assert!(!is_ending(pid));
        child.kill().unwrap();
        while !is_ending(pid) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!is_ending(pid));
    }

    #[test]
    fn only_dumps_of_ours_are_known_again() {
        let line = |text: &str| text.replace(' ', "\0").into_bytes();
        let ours = line("ld.so criu dump --tree 17 --log-file x --images-dir /pool/m/one");
        assert_eq!(saves(&ours, Path::new("/pool/m")), Some(17));
        assert_eq!(saves(&ours, Path::new("/another/m")), None);
        for other in [
            "criu restore --images-dir /pool/m/one --tree 17",
            "criu dump --tree 17 --images-dir",
            "criu dump --images-dir /pool/m/one --tree x",
            "",
        ] {
            assert_eq!(saves(&line(other), Path::new("/pool/m")), None, "{other}");
        }
    }
}
