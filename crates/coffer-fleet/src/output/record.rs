//! A record of the output log, and its encoding in a file.
//!
//! ```text
//! length u32 ─ checksum u32 ─ kind u8 ─ stream u8 ─ execution 16 bytes ─ offset u64 ─ time i64 ─ data
//! ```
//!
//! Numbers are little-endian. The length and the checksum cover everything after the checksum.

use bytes::Bytes;
use coffer_core::{ExecutionId, Millis};
use coffer_wire::agentd::OutputStream;

const HEAD: usize = 8;
const BODY: usize = 34;

/// Most data in a record; longer output becomes several records.
pub(super) const MOST_DATA: usize = 64 << 10;

/// The kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An execution began; the data is its command, and the offset is its pid.
    Started,
    Output(OutputStream),
    /// An execution ended; the data is JSON with `pid`, `exit_code` and `status`.
    Ended,
    /// Lost output; the data is the number of bytes, as 8 bytes.
    Gap(OutputStream),
    /// Further output of the execution is counted, but not stored.
    Truncated,
    /// The code of an execution, or a part of it that begins at the offset.
    Code,
    /// A result or an error of code, as JSON, or a part of it that begins at the offset.
    Shown,
}

/// A record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// Its position in the sandbox's log, and that of the next record.
    pub position: i64,
    pub next: i64,
    pub kind: Kind,
    pub execution: ExecutionId,
    /// Stored bytes of the stream before these.
    pub offset: i64,
    pub time_ms: Millis,
    pub data: Bytes,
}

/// The bytes are not a complete record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the output log is damaged")]
pub(super) struct Damaged;

impl Kind {
    const fn codes(self) -> (u8, u8) {
        match self {
            Self::Started => (1, 0),
            Self::Output(stream) => (2, code(stream)),
            Self::Ended => (3, 0),
            Self::Gap(stream) => (4, code(stream)),
            Self::Truncated => (5, 0),
            Self::Code => (6, 0),
            Self::Shown => (7, 0),
        }
    }

    fn of(kind: u8, stream: u8) -> Result<Self, Damaged> {
        let stream = match stream {
            0 => None,
            1 => Some(OutputStream::Stdout),
            2 => Some(OutputStream::Stderr),
            3 => Some(OutputStream::Pty),
            _ => return Err(Damaged),
        };
        match (kind, stream) {
            (1, None) => Ok(Self::Started),
            (2, Some(stream)) => Ok(Self::Output(stream)),
            (3, None) => Ok(Self::Ended),
            (4, Some(stream)) => Ok(Self::Gap(stream)),
            (5, None) => Ok(Self::Truncated),
            (6, None) => Ok(Self::Code),
            (7, None) => Ok(Self::Shown),
            _ => Err(Damaged),
        }
    }
}

const fn code(stream: OutputStream) -> u8 {
    match stream {
        OutputStream::Stdout => 1,
        OutputStream::Stderr => 2,
        OutputStream::Pty => 3,
    }
}

impl LogRecord {
    /// The position of the `index`th byte of its data in the sandbox's log.
    pub fn position_of(&self, index: usize) -> i64 {
        if index >= self.data.len() {
            return self.next;
        }
        self.position + i64::try_from(HEAD + BODY + index).unwrap_or(0)
    }

    /// The number of bytes in a gap.
    pub fn missed_bytes(&self) -> i64 {
        self.data.first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes))
    }

    /// The encoded size of a record with this much data.
    pub const fn size(data: usize) -> usize {
        HEAD + BODY + data
    }

    pub fn write(&self, into: &mut Vec<u8>) {
        let start = into.len();
        let length = u32::try_from(BODY + self.data.len()).expect("a record is short");
        into.extend_from_slice(&length.to_le_bytes());
        into.extend_from_slice(&[0; 4]);
        let (kind, stream) = self.kind.codes();
        into.extend_from_slice(&[kind, stream]);
        into.extend_from_slice(&self.execution.to_bytes());
        into.extend_from_slice(&self.offset.to_le_bytes());
        into.extend_from_slice(&self.time_ms.to_le_bytes());
        into.extend_from_slice(&self.data);
        let checksum = crc32fast::hash(&into[start + HEAD..]);
        into[start + 4..start + HEAD].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// The records of a file that begins at `first_position`, from the first that ends after `from`.
pub(super) struct Records<'a> {
    file: &'a Bytes,
    at: usize,
    first_position: i64,
    from: i64,
}

impl<'a> Records<'a> {
    pub(super) const fn new(file: &'a Bytes, first_position: i64, from: i64) -> Self {
        Self { file, at: 0, first_position, from }
    }

    fn read(&mut self) -> Result<Option<LogRecord>, Damaged> {
        loop {
            let rest = &self.file[self.at..];
            if rest.is_empty() {
                return Ok(None);
            }
            let (head, rest) = rest.split_at_checked(HEAD).ok_or(Damaged)?;
            let length = u32_at(head, 0) as usize;
            if !(BODY..=BODY + MOST_DATA).contains(&length) || rest.len() < length {
                return Err(Damaged);
            }
            let place = |at: usize| i64::try_from(at).map(|at| self.first_position + at).map_err(|_| Damaged);
            let (position, next) = (place(self.at)?, place(self.at + HEAD + length)?);
            let body = &rest[..length];
            let data = self.file.slice(self.at + HEAD + BODY..self.at + HEAD + length);
            self.at += HEAD + length;
            if next <= self.from {
                continue;
            }
            if crc32fast::hash(body) != u32_at(head, 4) {
                return Err(Damaged);
            }
            let eight = |at: usize| body[at..at + 8].try_into().expect("eight bytes");
            return Ok(Some(LogRecord {
                position,
                next,
                kind: Kind::of(body[0], body[1])?,
                execution: ExecutionId::from_bytes(body[2..18].try_into().expect("sixteen bytes")),
                offset: i64::from_le_bytes(eight(18)),
                time_ms: i64::from_le_bytes(eight(26)),
                data,
            }));
        }
    }
}

impl Iterator for Records<'_> {
    type Item = Result<LogRecord, Damaged>;

    fn next(&mut self) -> Option<Self::Item> {
        let read = self.read().transpose();
        if let Some(Err(_)) = &read {
            self.at = self.file.len();
        }
        read
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(position: i64, text: &'static str) -> LogRecord {
        LogRecord {
            position,
            next: position + i64::try_from(LogRecord::size(text.len())).unwrap(),
            kind: Kind::Output(OutputStream::Stderr),
            execution: ExecutionId::generate(),
            offset: 7,
            time_ms: -3,
            data: Bytes::from_static(text.as_bytes()),
        }
    }

    #[test]
    fn records_come_back_from_any_place_and_damage_is_seen() {
        let first = record(100, "one");
        let second = LogRecord { kind: Kind::Ended, ..record(first.next, "{}") };
        let mut file = Vec::new();
        first.write(&mut file);
        second.write(&mut file);
        let whole = Bytes::from(file.clone());
        let all: Result<Vec<_>, _> = Records::new(&whole, 100, 0).collect();
        assert_eq!(all, Ok(vec![first.clone(), second.clone()]));
        for from in first.next..second.next {
            assert_eq!(Records::new(&whole, 100, from).collect::<Vec<_>>(), [Ok(second.clone())]);
        }
        // A position inside a record selects that record.
        assert_eq!(Records::new(&whole, 100, 101).count(), 2);
        for cut in 1..file.len() {
            let torn = whole.slice(..cut);
            let records: Vec<_> = Records::new(&torn, 100, 0).collect();
            assert!(cut == LogRecord::size(3) || records.last() == Some(&Err(Damaged)), "{cut}");
        }
        for at in 0..file.len() {
            let mut bad = file.clone();
            bad[at] ^= 1;
            assert!(Records::new(&bad.into(), 100, 0).any(|record| record.is_err()), "{at}");
        }
    }
}
