//! `task transcript`: what agents did, for people at a terminal.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use coffer_api_types::tasks::Task;
use coffer_api_types::transcripts::{EntryBody, TranscriptEntry, TranscriptQuery};
use coffer_core::agent::transcript::{CallState, Heading, markdown};

use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::{escape, printer};

/// Lines of an entry that are printed; the rest is counted.
const MOST_LINES: usize = 12;
/// How long nothing may change before the last entry counts as complete.
const QUIET: Duration = Duration::from_secs(1);
/// How many quiet periods pass between two looks at the attempt.
const LOOK_EVERY: u32 = 2;

#[derive(Debug, Args)]
pub(crate) struct Transcript {
    pub(crate) task: String,
    /// Wait for more until the attempt ends
    #[arg(short, long, conflicts_with_all = ["format", "attempt"])]
    follow: bool,
    /// Only of this attempt
    #[arg(long, value_name = "NUMBER")]
    attempt: Option<i64>,
    /// Print Markdown (md)
    #[arg(long, value_name = "FORMAT", value_parser = ["md", "markdown"])]
    format: Option<String>,
}

impl Transcript {
    pub(crate) async fn run(self, context: &Context, task: &Task) -> Outcome {
        if self.follow {
            return follow(context, task).await;
        }
        let query = TranscriptQuery { attempt: self.attempt, ..TranscriptQuery::default() };
        let entries = context.client.transcript(&task.id, &query).all().await?;
        if self.format.is_some() {
            let heading = |entry: &TranscriptEntry| Heading {
                attempt: entry.attempt,
                turn: entry.turn,
                at: entry.at.clone(),
                subagent: entry.subagent,
            };
            let page = markdown(&task.title, entries.iter().map(|entry| (heading(entry), &entry.body)));
            printer::print(&escape::lines(&page));
        } else if context.printer.is_table() {
            let mut last = None;
            entries.iter().for_each(|entry| print(entry, &mut last));
        } else {
            context.printer.list(&entries, &["sequence", "attempt", "turn", "kind", "at"])?;
        }
        Ok(0)
    }
}

/// Prints the transcript of a task.
pub(crate) async fn print_all(context: &Context, task: &Task) -> Result<(), Failure> {
    let entries = context.client.transcript(&task.id, &TranscriptQuery::default()).all().await?;
    let mut last = None;
    entries.iter().for_each(|entry| print(entry, &mut last));
    Ok(())
}

fn print(entry: &TranscriptEntry, last: &mut Option<(i64, i64)>) {
    let place = (entry.attempt, entry.turn);
    if last.replace(place) != Some(place) {
        printer::print(&format!("\nAttempt {}, turn {} ({})\n", place.0, place.1, escape::line(&entry.at)));
    }
    printer::print(&rendered(entry));
}

fn rendered(entry: &TranscriptEntry) -> String {
    let indent = if entry.subagent { "  " } else { "" };
    let line = escape::line(&entry.body.line());
    let details = entry.body.details().map(|details| escape::lines(&details)).unwrap_or_default();
    // What the agent says stands for itself; of the rest the line says what it is.
    let is_speech = matches!(entry.body, EntryBody::Message { .. } | EntryBody::Output { .. });
    let mut text = if is_speech { String::new() } else { format!("{indent}{line}\n") };
    let below = if is_speech { "" } else { "    " };
    let lines: Vec<&str> = details.trim_end().lines().collect();
    if !is_speech && lines.len() <= 1 && line.ends_with(lines.first().copied().unwrap_or_default().trim()) {
        return text;
    }
    let most = if is_speech { usize::MAX } else { MOST_LINES };
    let skipped = lines.len().saturating_sub(most);
    if skipped > 0 {
        text.push_str(&format!("{indent}{below}… {skipped} lines more\n"));
    }
    for line in &lines[skipped..] {
        text.push_str(&format!("{indent}{below}{line}\n"));
    }
    text
}

fn is_running(body: &EntryBody) -> bool {
    matches!(
        body,
        EntryBody::Tool { state: CallState::Running, .. }
            | EntryBody::Command { state: CallState::Running, .. }
            | EntryBody::Edit { state: CallState::Running, .. }
    )
}

/// Prints entries in order, each when it is complete.
async fn follow(context: &Context, task: &Task) -> Outcome {
    let mut stream = context.client.follow_transcript(&task.id);
    stream.connect().await?;
    let mut waiting: BTreeMap<i64, TranscriptEntry> = BTreeMap::new();
    let (mut printed, mut last, mut quiet) = (0, None, 0u32);
    loop {
        match tokio::time::timeout(QUIET, stream.next()).await {
            Ok(message) => {
                quiet = 0;
                let entry: TranscriptEntry = serde_json::from_str(&message?.data).map_err(|error| {
                    Failure::new(format!("the server sent an entry that cannot be read: {error}"))
                })?;
                if entry.sequence > printed {
                    waiting.insert(entry.sequence, entry);
                }
            }
            Err(_) => quiet += 1,
        }
        let mut is_over = false;
        if quiet > 0 && quiet.is_multiple_of(LOOK_EVERY) {
            let attempts = context.client.attempts(&task.id).await?;
            is_over = attempts.last().is_none_or(|attempt| !matches!(&*attempt.state, "queued" | "running"));
        }
        // The last may still grow; one that runs is told when it ends.
        while let Some(first) = waiting.first_entry() {
            let is_last = waiting_is_last(&first, quiet);
            if !is_over && (is_running(&first.get().body) || is_last) {
                break;
            }
            let entry = first.remove();
            printed = entry.sequence;
            if context.printer.is_table() {
                print(&entry, &mut last);
            } else {
                let line = serde_json::to_string(&entry)
                    .map_err(|error| Failure::new(format!("could not write an entry: {error}")))?;
                printer::print(&format!("{line}\n"));
            }
        }
        if is_over {
            return Ok(0);
        }
    }
}

/// Whether an entry is the newest and may still grow.
fn waiting_is_last(
    entry: &std::collections::btree_map::OccupiedEntry<'_, i64, TranscriptEntry>,
    quiet: u32,
) -> bool {
    let grows = matches!(
        entry.get().body,
        EntryBody::Message { .. }
            | EntryBody::Thinking { .. }
            | EntryBody::Output { .. }
            | EntryBody::Omitted { .. }
    );
    grows && quiet == 0
}
