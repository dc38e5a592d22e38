//! Writes the transcript of a turn while its program runs.
//!
//! Entries wait here until the next write, so an entry that changes often is written once. What is waiting is lost
//! with a server and read again from the log by the next one: the same output gives the same entries.

use std::collections::BTreeMap;

use coffer_core::agent::Said;
use coffer_core::agent::transcript::{Change, EntryBody, Room, Text};
use coffer_core::clock::now_ms;
use coffer_core::{ExecutionId, Millis};
use coffer_flow::StepError;
use coffer_store::{NewTranscriptEntry, TurnPlace};

use super::{Station, Workbench};

/// Waiting entries that are written at once, whenever the last write was.
const MANY: usize = 100;
const LONGEST_MESSAGE: usize = 16 * 1024;

/// The entries of one source that are not written yet.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) place: TurnPlace,
    source: String,
    /// What an earlier server wrote: everything up to this version.
    known: u64,
    waiting: BTreeMap<u64, NewTranscriptEntry>,
    /// Entries of our own among them, and the source of those: each reader of the output has one of its own.
    own: Vec<NewTranscriptEntry>,
    own_source: String,
    own_number: u64,
}

impl Script {
    pub(super) fn add(&mut self, change: Change, at_ms: Millis) {
        let Change { number, version, subagent, body } = change;
        if version <= self.known {
            return;
        }
        let source = self.source.clone();
        // A new entry has the time of its first change.
        let at_ms = self.waiting.get(&number).map_or(at_ms, |earlier| earlier.at_ms);
        self.waiting.insert(number, NewTranscriptEntry { source, number, version, subagent, at_ms, body });
    }

    /// Adds an entry that is not in the agent's output.
    pub(super) fn add_own(&mut self, body: EntryBody, at_ms: Millis) {
        self.own_number += 1;
        let (source, number) = (self.own_source.clone(), self.own_number);
        self.own.push(NewTranscriptEntry { source, number, version: 1, subagent: false, at_ms, body });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.own.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() + self.own.len() >= MANY
    }
}

impl Workbench {
    /// The transcript of an execution, and how much it may still write.
    pub(super) async fn open_script(
        &self,
        at: &Station,
        place: TurnPlace,
        execution: ExecutionId,
    ) -> Result<(Script, Room), StepError> {
        let source = execution.to_string();
        let (entries, bytes) = self.store.transcript_size(&at.scope, place.of, place.run, &source).await?;
        let known = self.store.transcript_version(&at.scope, place.of, &source).await?;
        let room = Room::WHOLE.without(entries, usize::try_from(bytes).unwrap_or(usize::MAX));
        let own_source = format!("{source}/model-{}", now_ms());
        let (waiting, own) = Default::default();
        Ok((Script { place, source, known, waiting, own, own_source, own_number: 0 }, room))
    }

    /// Writes what is waiting, redacted. It keeps waiting if that fails.
    pub(super) async fn write_script(
        &self,
        at: &Station,
        script: &mut Script,
        show: &(dyn Fn(&str) -> String + Sync),
    ) -> Result<(), StepError> {
        if script.is_empty() {
            return Ok(());
        }
        let shown = |entry: &NewTranscriptEntry| NewTranscriptEntry {
            body: entry.body.clone().map(&|text| show(text)),
            ..entry.clone()
        };
        // In the order in which they came, so that sequences follow the output.
        let mut entries: Vec<NewTranscriptEntry> =
            script.waiting.values().chain(&script.own).map(shown).collect();
        if !script.own.is_empty() {
            entries.sort_by_key(|entry| entry.at_ms);
        }
        self.store.write_transcript(&at.scope, script.place, entries).await?;
        script.waiting.clear();
        script.own.clear();
        Ok(())
    }

    /// Writes an entry of our own: what was said, a prompt, a check.
    pub(super) async fn tell_script(
        &self,
        at: &Station,
        place: TurnPlace,
        source: &str,
        entries: Vec<(u64, Millis, EntryBody)>,
        show: &(dyn Fn(&str) -> String + Sync),
    ) -> Result<(), StepError> {
        let entry = |(number, at_ms, body): (u64, Millis, EntryBody)| NewTranscriptEntry {
            source: source.to_string(),
            number,
            version: 1,
            subagent: false,
            at_ms,
            body: body.map(&|text| show(text)),
        };
        let entries: Vec<NewTranscriptEntry> = entries.into_iter().map(entry).collect();
        Ok(self.store.write_transcript(&at.scope, place, entries).await?)
    }

    /// Writes what people said to the agent with this turn.
    pub(super) async fn tell_said(
        &self,
        at: &Station,
        place: TurnPlace,
        said: &[Said],
    ) -> Result<(), StepError> {
        if said.is_empty() {
            return Ok(());
        }
        let patterns = self.exec.output.patterns(at.scope.project());
        let entry = |said: &Said| {
            let body = EntryBody::Person {
                author: said.author.clone(),
                text: Text::head(&said.body, LONGEST_MESSAGE),
                file: said.file.clone(),
                line: said.line,
            };
            (u64::try_from(said.number).unwrap_or(0), said.at_ms, body)
        };
        // A message that an attempt hears again is another entry.
        let source = format!("{}/said", place.run);
        let entries = said.iter().map(entry).collect();
        self.tell_script(at, place, &source, entries, &|text| patterns.redact(text)).await
    }
}
