//! The journal of processes, kept with offsets until the server acknowledges it.
//!
//! The journal survives a server that dies or is replaced. It is bounded, so without a server the oldest
//! records are dropped, and their number is reported. Output and starts and exits have separate bounds: a
//! flood of output never displaces the exit of a process. A process of which the server has enough output is
//! muted: further output is only counted.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use coffer_core::sync::Mutex;
use coffer_wire::agentd::{JournalAck, JournalPage, JournalRecord, OutputStream, ProcessFact};
use tokio::sync::watch;

use crate::clock::since_epoch;

/// Most bytes of unacknowledged output, with overhead.
const OUTPUT_LIMIT: usize = 4 << 20;

/// Most unacknowledged starts and exits.
const FACTS_LIMIT: usize = 8192;

/// Output in one page; the page is a third larger as base64.
const PAGE_OUTPUT: usize = 512 << 10;

/// Records in one page.
const PAGE_RECORDS: usize = 1024;

/// Longest stored command line, and other texts.
const COMMAND_LIMIT: usize = 4096;
const WORD_LIMIT: usize = 256;

/// How long a reader may wait for a record.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// The overhead of a record.
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
    /// Running processes whose output is only counted, with the count.
    muted: HashMap<u32, u64>,
}

#[derive(Debug)]
pub(crate) struct Journal {
    records: Mutex<Records>,
    /// The offset of the next record, for readers that wait.
    next: watch::Sender<u64>,
    boot: u64,
}

impl Default for Journal {
    fn default() -> Self {
        // Half of the range, so that it fits signed numbers.
        let boot = RandomState::new().build_hasher().finish() >> 1;
        Self { records: Mutex::default(), next: watch::Sender::default(), boot }
    }
}

impl Journal {
    pub(crate) fn started(&self, pid: u32, command: &str, tag: Option<&str>, cwd: &str, user: &str) {
        let word = |text: &str| Some(cut(text, WORD_LIMIT));
        let what = ProcessFact::Started {
            command: cut(command, COMMAND_LIMIT),
            tag: tag.and_then(word),
            cwd: word(cwd),
            user: word(user),
        };
        self.lock().muted.remove(&pid);
        self.fact(pid, what);
    }

    /// From now on its output is only counted.
    pub(crate) fn mute(&self, pid: u32) {
        self.lock().muted.entry(pid).or_default();
    }

    pub(crate) fn ended(&self, pid: u32, exit_code: i32, status: &str) {
        let untold = self.lock().muted.remove(&pid).unwrap_or(0);
        self.fact(pid, ProcessFact::Ended { exit_code, status: status.to_owned(), untold });
    }

    /// `position` is how many bytes the stream had produced before `data`.
    pub(crate) fn output(&self, pid: u32, stream: OutputStream, position: u64, data: Bytes) {
        let mut records = self.lock();
        if let Some(count) = records.muted.get_mut(&pid) {
            *count += data.len() as u64;
            return;
        }
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
        self.next.send_replace(records.next);
    }

    fn fact(&self, pid: u32, what: ProcessFact) {
        let mut records = self.lock();
        let kept = records.keep(pid, what);
        records.facts.push_back(kept);
        if records.facts.len() > FACTS_LIMIT {
            records.facts.pop_front();
            records.dropped += 1;
        }
        self.next.send_replace(records.next);
    }

    /// The same as [`page`](Self::page), once it has records or the time is over.
    pub(crate) async fn page_within(&self, from: u64, patience: Duration) -> JournalPage {
        let mut next = self.next.subscribe();
        let came = next.wait_for(|next| *next > from);
        let _in_time = tokio::time::timeout(patience.min(WAIT_LIMIT), came).await;
        self.page(from)
    }

    /// The oldest records at or after `from`, in order.
    pub(crate) fn page(&self, from: u64) -> JournalPage {
        let records = self.lock();
        let mut facts = skip_to(&records.facts, from);
        let mut output = skip_to(&records.output, from);
        let (dropped, boot) = (records.dropped, self.boot);
        let mut page = JournalPage { records: Vec::new(), next: from, dropped, boot };
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
                // A reader that continues waits for new records, not for acknowledged ones.
                page.next = records.next.max(from);
                break;
            };
            page.next = offset + 1;
            page.records.push(JournalRecord { offset, time_ms, pid, what });
        }
        page
    }

    /// Drops acknowledged records, and mutes running processes of which the server has enough.
    pub(crate) fn acknowledge(&self, ack: &JournalAck, lives: impl Fn(u32) -> bool) {
        let upto = ack.upto;
        let mut records = self.lock();
        for &pid in ack.mute.iter().filter(|&&pid| lives(pid)) {
            records.muted.entry(pid).or_default();
        }
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
        self.records.lock()
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

/// The start of a text, no longer than `limit` bytes.
fn cut(text: &str, limit: usize) -> String {
    text[..text.floor_char_boundary(limit)].to_owned()
}

fn cost(data: &Bytes) -> usize {
    data.len() + RECORD_COST
}

fn skip_to<T>(records: &VecDeque<Kept<T>>, from: u64) -> std::iter::Peekable<impl Iterator<Item = &Kept<T>>> {
    let start = records.partition_point(|kept| kept.offset < from);
    records.range(start..).peekable()
}

fn now_ms() -> i64 {
    let since = since_epoch();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(page: &JournalPage) -> Vec<u64> {
        page.records.iter().map(|record| record.offset).collect()
    }

    fn upto(upto: u64) -> JournalAck {
        JournalAck { upto, mute: Vec::new() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_waits_for_what_comes_and_not_for_ever() {
        let journal = Journal::default();
        assert_eq!(journal.page_within(0, Duration::from_secs(5)).await.records, []);
        let (page, ()) = tokio::join!(journal.page_within(0, Duration::from_secs(5)), async {
            journal.started(1, "true", Some("tag"), "/", "root");
        });
        assert_eq!((offsets(&page), page.boot), (vec![0], journal.boot));
    }

    #[test]
    fn the_output_of_the_muted_is_only_counted() {
        let journal = Journal::default();
        let write = |pid| journal.output(pid, OutputStream::Stdout, 0, Bytes::from_static(b"four"));
        journal.started(1, "yes", None, "/", "root");
        write(1);
        journal.acknowledge(&JournalAck { upto: 2, mute: vec![1, 2] }, |pid| pid == 1);
        write(1);
        write(2);
        journal.ended(1, 0, "exit status 0");
        let told: Vec<u32> = journal.page(0).records.iter().map(|record| record.pid).collect();
        assert_eq!(told, [2, 1], "one that does not live is not muted");
        let ended = ProcessFact::Ended { exit_code: 0, status: "exit status 0".into(), untold: 4 };
        assert_eq!(journal.page(0).records[1].what, ended);
    }

    #[test]
    fn records_stay_until_they_are_acknowledged() {
        let journal = Journal::default();
        journal.started(7, "echo", None, "/", "root");
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

        journal.acknowledge(&upto(2), |_| true);
        let page = journal.page(0);
        assert_eq!((offsets(&page), page.next, page.dropped), (vec![2, 3], 4, 0));
        journal.acknowledge(&upto(page.next), |_| true);
        assert_eq!(offsets(&journal.page(0)), [] as [u64; 0]);
        journal.started(8, "true", None, "/", "root");
        assert_eq!(offsets(&journal.page(0)), [4], "offsets never restart");
    }

    #[test]
    fn a_flood_of_output_drops_output_and_no_exit() {
        let journal = Journal::default();
        journal.started(1, "yes", None, "/", "root");
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
