//! The log of a build: lines in the order in which they arise, written in groups.

use coffer_core::clock::now_ms;
use coffer_core::{BuildId, BuildLogLevel, chain};
use coffer_store::{BuildLogLine, Store};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

/// Lines that may wait to be written; the step that writes them waits for room.
const WAITING: usize = 1024;
/// Lines written at once.
const GROUP: usize = 256;
/// The longest line; the rest of it is cut.
const LONGEST_LINE: usize = 4096;

#[derive(Debug)]
pub(crate) struct BuildLog {
    lines: mpsc::Sender<BuildLogLine>,
    writer: JoinHandle<()>,
    step: Option<String>,
}

impl BuildLog {
    /// `news` changes with every group of lines.
    pub(crate) fn new(store: Store, build: BuildId, news: watch::Sender<()>, tasks: &TaskTracker) -> Self {
        let (lines, mut inbox) = mpsc::channel(WAITING);
        let writer = tasks.spawn(async move {
            let operator = store.operator();
            let mut group = Vec::new();
            while inbox.recv_many(&mut group, GROUP).await > 0 {
                let written = store.append_build_log(&operator, build, std::mem::take(&mut group)).await;
                if let Err(error) = written {
                    tracing::warn!("could not write the log of build {build}: {}", chain(&error));
                }
                news.send_replace(());
            }
        });
        Self { lines, writer, step: None }
    }

    /// Names the step that later lines belong to.
    pub(crate) fn set_step(&mut self, step: &str) {
        self.step = Some(step.to_string());
    }

    pub(crate) async fn add(&self, level: BuildLogLevel, message: impl Into<String>) {
        let mut message = message.into();
        if message.len() > LONGEST_LINE {
            let end = (0..=LONGEST_LINE).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
            message.truncate(end);
        }
        let line = BuildLogLine { at_ms: now_ms(), level, step: self.step.clone(), message };
        // The writer ends only after the last sender.
        let _ = self.lines.send(line).await;
    }

    pub(crate) async fn info(&self, message: impl Into<String>) {
        self.add(BuildLogLevel::Info, message).await;
    }

    /// Waits until every line is written.
    pub(crate) async fn finish(self) {
        drop(self.lines);
        let _ = self.writer.await;
    }
}

/// Splits output into lines, also those that arrive in pieces.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    pub(crate) fn add(&mut self, data: &[u8]) -> Vec<String> {
        let mut complete = Vec::new();
        for byte in data {
            if *byte == b'\n' || self.rest.len() >= LONGEST_LINE {
                complete.extend(self.take());
            }
            if *byte != b'\n' {
                self.rest.push(*byte);
            }
        }
        complete
    }

    /// What has no line end.
    pub(crate) fn take(&mut self) -> Option<String> {
        let line = std::mem::take(&mut self.rest);
        let line = String::from_utf8_lossy(&line).trim_end_matches('\r').to_string();
        (!line.is_empty()).then_some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_joined_from_pieces_and_cut_if_they_never_end() {
        let mut lines = Lines::default();
        assert_eq!(lines.add(b"one\r\ntw"), ["one"]);
        assert_eq!(lines.add(b"o\n\nthree"), ["two"]);
        assert_eq!(lines.take().as_deref(), Some("three"));
        assert_eq!(lines.take(), None);
        let endless = lines.add(&[b'x'; LONGEST_LINE * 3]);
        assert_eq!(endless.iter().map(String::len).max(), Some(LONGEST_LINE));
    }
}
