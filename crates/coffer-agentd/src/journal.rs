//! What processes did, kept with offsets until the server says that it has it.
//!
//! The journal outlives a server that dies or is replaced; it is bounded, so an absent server costs
//! the oldest records and their number is told. Output and the facts around it are bounded apart: a
//! flood of output never displaces the exit of a process.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use coffer_wire::agentd::{JournalPage, JournalRecord, OutputStream, ProcessFact};

/// Unacknowledged output that is kept, with what it costs to keep it.
const OUTPUT_LIMIT: usize = 4 << 20;

/// Unacknowledged starts and exits that are kept.
const FACTS_LIMIT: usize = 8192;

/// Output in one page; the page is a third larger as base64.
const PAGE_OUTPUT: usize = 512 << 10;

/// Records in one page.
const PAGE_RECORDS: usize = 1024;

/// The start of a command line that is kept.
const COMMAND_LIMIT: usize = 4096;

/// What a record costs beside its bytes.
const RECORD_COST: usize = 96;

#[derive(Debug)]
struct Kept<T> {
    offset: u64,
    time_ms: i64,
    pid: u32,
    what: T,
}

#[derive(Debug)]
struct Output {
    stream: OutputStream,
    position: u64,
    data: Bytes,
}

#[derive(Debug, Default)]
struct Records {
    next: u64,
    facts: VecDeque<Kept<ProcessFact>>,
    output: VecDeque<Kept<Output>>,
    output_cost: usize,
    dropped: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Journal {
    records: Mutex<Records>,
}

impl Journal {
    pub(crate) fn started(&self, pid: u32, command: &str) {
        let mut end = command.len().min(COMMAND_LIMIT);
        while !command.is_char_boundary(end) {
            end -= 1;
        }
        self.fact(pid, ProcessFact::Started { command: command[..end].to_owned() });
    }

    pub(crate) fn ended(&self, pid: u32, exit_code: i32, status: &str) {
        self.fact(pid, ProcessFact::Ended { exit_code, status: status.to_owned() });
    }

    /// `position` is how many bytes the stream had produced before `data`.
    pub(crate) fn output(&self, pid: u32, stream: OutputStream, position: u64, data: Bytes) {
        let mut records = self.lock();
        records.output_cost += cost(&data);
        let what = Output { stream, position, data };
        let kept = records.keep(pid, what);
        records.output.push_back(kept);
        while records.output_cost > OUTPUT_LIMIT {
            let Some(oldest) = records.output.pop_front() else {
                break;
            };
            records.output_cost -= cost(&oldest.what.data);
            records.dropped += 1;
        }
    }

    fn fact(&self, pid: u32, what: ProcessFact) {
        let mut records = self.lock();
        let kept = records.keep(pid, what);
        records.facts.push_back(kept);
        if records.facts.len() > FACTS_LIMIT {
            records.facts.pop_front();
            records.dropped += 1;
        }
    }

    /// The oldest records at or after `from`, in order.
    pub(crate) fn page(&self, from: u64) -> JournalPage {
        let records = self.lock();
        let mut facts = skip_to(&records.facts, from);
        let mut output = skip_to(&records.output, from);
        let mut page = JournalPage { records: Vec::new(), next: from, dropped: records.dropped };
        let mut size = 0;
        while page.records.len() < PAGE_RECORDS && size < PAGE_OUTPUT {
            let fact_first = match (facts.peek(), output.peek()) {
                (Some(fact), Some(out)) => fact.offset < out.offset,
                (fact, _) => fact.is_some(),
            };
            let record = if fact_first {
                facts.next().map(|kept| (kept.offset, kept.time_ms, kept.pid, kept.what.clone()))
            } else {
                output.next().map(|kept| {
                    size += kept.what.data.len();
                    (kept.offset, kept.time_ms, kept.pid, kept.what.fact())
                })
            };
            let Some((offset, time_ms, pid, what)) = record else {
                break;
            };
            page.next = offset + 1;
            page.records.push(JournalRecord { offset, time_ms, pid, what });
        }
        page
    }

    /// Forgets every record before `upto`.
    pub(crate) fn acknowledge(&self, upto: u64) {
        let mut records = self.lock();
        while records.facts.front().is_some_and(|kept| kept.offset < upto) {
            records.facts.pop_front();
        }
        while records.output.front().is_some_and(|kept| kept.offset < upto) {
            if let Some(gone) = records.output.pop_front() {
                records.output_cost -= cost(&gone.what.data);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Records {
    fn keep<T>(&mut self, pid: u32, what: T) -> Kept<T> {
        let offset = self.next;
        self.next += 1;
        Kept { offset, time_ms: now_ms(), pid, what }
    }
}

impl Output {
    fn fact(&self) -> ProcessFact {
        ProcessFact::Output {
            stream: self.stream,
            position: self.position,
            data: STANDARD.encode(&self.data),
        }
    }
}

fn cost(data: &Bytes) -> usize {
    data.len() + RECORD_COST
}

fn skip_to<T>(records: &VecDeque<Kept<T>>, from: u64) -> std::iter::Peekable<impl Iterator<Item = &Kept<T>>> {
    let start = records.partition_point(|kept| kept.offset < from);
    records.range(start..).peekable()
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(page: &JournalPage) -> Vec<u64> {
        page.records.iter().map(|record| record.offset).collect()
    }

    #[test]
    fn records_stay_until_they_are_acknowledged() {
        let journal = Journal::default();
        journal.started(7, "echo");
        journal.output(7, OutputStream::Stdout, 0, Bytes::from_static(b"hi"));
        journal.output(7, OutputStream::Stderr, 0, Bytes::from_static(b"!"));
        journal.ended(7, 0, "exit status 0");

        let page = journal.page(0);
        assert_eq!((offsets(&page), page.next), (vec![0, 1, 2, 3], 4));
        assert_eq!(
            page.records[1].what,
            ProcessFact::Output { stream: OutputStream::Stdout, position: 0, data: "aGk=".into() }
        );
        assert_eq!(offsets(&journal.page(2)), [2, 3]);

        journal.acknowledge(2);
        let page = journal.page(0);
        assert_eq!((offsets(&page), page.next, page.dropped), (vec![2, 3], 4, 0));
        journal.acknowledge(page.next);
        assert_eq!(offsets(&journal.page(0)), [] as [u64; 0]);
        journal.started(8, "true");
        assert_eq!(offsets(&journal.page(0)), [4], "offsets never restart");
    }

    #[test]
    fn a_flood_of_output_drops_output_and_no_exit() {
        let journal = Journal::default();
        journal.started(1, "yes");
        journal.ended(1, 0, "exit status 0");
        let chunk = Bytes::from(vec![b'y'; 32 << 10]);
        for index in 0..500u64 {
            journal.output(2, OutputStream::Stdout, index << 15, chunk.clone());
        }
        let page = journal.page(0);
        assert!(page.dropped > 300, "{}", page.dropped);
        assert_eq!(&offsets(&page)[..2], [0, 1]);
        assert!(page.records.len() < 20, "one page is bounded");

        let mut from = 0;
        let mut seen = 0;
        loop {
            let page = journal.page(from);
            if page.records.is_empty() {
                break;
            }
            seen += page.records.len() as u64;
            from = page.next;
        }
        assert_eq!(seen + page.dropped, 502);
    }
}
