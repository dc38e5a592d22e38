//! Ends a command with everything it started.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal};

/// Sweeps until nothing is found; the pid limit stops a fork bomb that outruns them.
const SWEEPS: u32 = 50;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    parent: u32,
    session: u32,
}

/// Kills everything in the session of `leader` and all descendants of its members.
///
/// A process that left the session is still found through its parents; one that also lost its parents is a
/// daemon and keeps running, as after a logout.
pub(super) async fn kill_all(leader: u32) {
    let mut condemned = HashSet::from([leader]);
    for _ in 0..SWEEPS {
        let living = members(leader, &mut condemned);
        if living.is_empty() {
            return;
        }
        for pid in living {
            signal(pid, Signal::KILL);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The running members; `condemned` remembers parents whose children may still appear.
fn members(leader: u32, condemned: &mut HashSet<u32>) -> Vec<u32> {
    let places = places();
    let own = std::process::id();
    loop {
        let before = condemned.len();
        for (pid, place) in &places {
            if *pid != own && (place.session == leader || condemned.contains(&place.parent)) {
                condemned.insert(*pid);
            }
        }
        if condemned.len() == before {
            break;
        }
    }
    let living: Vec<u32> = places.keys().filter(|pid| condemned.contains(*pid)).copied().collect();
    // The pid of an ended process may belong to another now.
    condemned.retain(|pid| places.contains_key(pid));
    living
}

/// The parent, group and session of each process, without zombies.
fn places() -> HashMap<u32, Place> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return HashMap::new();
    };
    entries
        .filter_map(|entry| {
            let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            Some((pid, place(&stat)?))
        })
        .collect()
}

/// Parses `pid (name) state ppid pgrp session …`; the name may contain anything, also parentheses.
fn place(stat: &str) -> Option<Place> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    Some(Place { parent, session })
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = as_pid(pid) {
        // It may have ended by itself meanwhile.
        let _gone = rustix::process::kill_process(pid, signal);
    }
}

/// Zero and one have another meaning for `kill`.
pub(super) fn as_pid(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().filter(|pid| *pid > 1).and_then(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_past_any_name() {
        assert_eq!(place("12 (a) b) R 1) S 3 4 5 0 -1"), Some(Place { parent: 3, session: 5 }));
        assert_eq!(place("12 (dead) Z 3 4 5 0"), None);
        assert_eq!(place("nonsense"), None);
    }

    #[test]
    fn one_is_never_signalled() {
        assert_eq!(as_pid(0), None);
        assert_eq!(as_pid(1), None);
        assert_eq!(as_pid(u32::MAX), None);
        assert!(as_pid(2).is_some());
    }
}
