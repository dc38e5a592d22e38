//! As much of DNS messages as is needed (RFC 1035, RFC 6891): one question, and addresses as answers.
//!
//! Both ends are distrusted: the sandbox that asks and the network that answers. Names are bounded,
//! pointers only lead backwards, and records are counted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use coffer_core::network::HostName;

const HEADER: usize = 12;
const LONGEST_NAME: usize = 255;
const MOST_RECORDS: usize = 256;
/// The name of the question, which always stands right after the header.
const POINTER_TO_QUESTION: [u8; 2] = [0xc0, 12];
const CLASS_IN: u16 = 1;
const CNAME: u16 = 5;
const OPT: u16 = 41;
const FLAG_RESPONSE: u16 = 0x8000;
const FLAG_TRUNCATED: u16 = 0x0200;
const FLAG_RECURSION_DESIRED: u16 = 0x0100;
const FLAG_RECURSION_AVAILABLE: u16 = 0x0080;
const OPCODE: u16 = 0x7800;

/// The largest answer by UDP, small enough not to be cut into fragments anywhere.
pub(super) const LARGEST_UDP: usize = 1232;
const SMALLEST_UDP: usize = 512;

/// Which kind of address is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) const fn record(self) -> u16 {
        match self {
            Self::V4 => 1,
            Self::V6 => 28,
        }
    }

    pub(super) fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// What a question is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Addresses(Family),
    /// Anything else; it has an answer without records.
    Other,
}

/// How an answer went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    Fine = 0,
    Malformed = 1,
    Failed = 2,
    NoSuchName = 3,
    NotImplemented = 4,
    Refused = 5,
}

/// A question that somebody asks us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Query {
    id: u16,
    recursion_desired: bool,
    /// As it came, letter case included: some askers check that it comes back so.
    question: Vec<u8>,
    /// The name, if it is one that a host can have.
    pub(super) name: Option<HostName>,
    pub(super) asked: Asked,
    /// How large an answer by UDP may be, where the asker said so.
    udp: Option<u16>,
}

/// Why a message is no question to be answered in earnest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoQuery {
    /// Not even an id, or an answer and not a question: silence.
    Ignore,
    /// A short error for the asker.
    Answer(Vec<u8>),
}

impl Query {
    pub(super) fn read(message: &[u8]) -> Result<Self, NoQuery> {
        let mut reader = Reader { message, at: 0 };
        let header = (|| Some((reader.number16()?, reader.number16()?, reader.counts()?)))();
        let Some((id, flags, counts)) = header else { return Err(NoQuery::Ignore) };
        if flags & FLAG_RESPONSE != 0 {
            return Err(NoQuery::Ignore);
        }
        let error = |code: Code| NoQuery::Answer(header_only(id, flags, code));
        if flags & OPCODE != 0 {
            return Err(error(Code::NotImplemented));
        }
        let [1, answers, authorities, additional] = counts else { return Err(error(Code::Malformed)) };
        let read = (|| {
            let name = reader.name(Pointers::Refuse)?;
            let (kind, class) = (reader.number16()?, reader.number16()?);
            let question = message[HEADER..reader.at].to_vec();
            let mut udp = None;
            for _ in 0..reader.records(answers, authorities, additional)? {
                let record = reader.record()?;
                if record.kind == OPT {
                    udp = Some(record.class);
                }
            }
            Some((name, kind, class, question, udp))
        })();
        let Some((name, kind, class, question, udp)) = read else { return Err(error(Code::Malformed)) };
        let asked = match (class, kind) {
            (CLASS_IN, 1) => Asked::Addresses(Family::V4),
            (CLASS_IN, 28) => Asked::Addresses(Family::V6),
            _ => Asked::Other,
        };
        let recursion_desired = flags & FLAG_RECURSION_DESIRED != 0;
        Ok(Self { id, recursion_desired, question, name: name.host(), asked, udp })
    }

    /// The largest answer that the asker takes by UDP.
    pub(super) fn udp_size(&self) -> usize {
        self.udp.map_or(SMALLEST_UDP, |size| usize::from(size).clamp(SMALLEST_UDP, LARGEST_UDP))
    }

    /// An answer without addresses.
    pub(super) fn empty_answer(&self, code: Code) -> Vec<u8> {
        self.answer(code, &[], 0, usize::MAX)
    }

    /// An answer of addresses; those that do not fit into `size` are left out, and the answer says so.
    pub(super) fn answer(&self, code: Code, addresses: &[IpAddr], ttl_s: u32, size: usize) -> Vec<u8> {
        let extra = if self.udp.is_some() { 11 } else { 0 };
        let fixed = HEADER + self.question.len() + extra;
        let each = |address: &IpAddr| 12 + if address.is_ipv4() { 4 } else { 16 };
        let mut used = fixed;
        let fitting: Vec<&IpAddr> = addresses
            .iter()
            .take_while(|address| {
                used = used.saturating_add(each(address));
                used <= size
            })
            .collect();
        let mut flags = FLAG_RESPONSE | FLAG_RECURSION_AVAILABLE | code as u16;
        if self.recursion_desired {
            flags |= FLAG_RECURSION_DESIRED;
        }
        if fitting.len() < addresses.len() {
            flags |= FLAG_TRUNCATED;
        }
        let count = u16::try_from(fitting.len()).expect("answers are bounded well below 65,536");
        let mut out = Vec::with_capacity(used.min(size));
        for number in [self.id, flags, 1, count, 0, u16::from(self.udp.is_some())] {
            out.extend(number.to_be_bytes());
        }
        out.extend(&self.question);
        for address in fitting {
            out.extend(POINTER_TO_QUESTION);
            out.extend(Family::of(*address).record().to_be_bytes());
            out.extend(CLASS_IN.to_be_bytes());
            out.extend(ttl_s.to_be_bytes());
            match address {
                IpAddr::V4(v4) => out.extend([&[0, 4][..], &v4.octets()].concat()),
                IpAddr::V6(v6) => out.extend([&[0, 16][..], &v6.octets()].concat()),
            }
        }
        if self.udp.is_some() {
            out.push(0);
            out.extend(OPT.to_be_bytes());
            out.extend(u16::try_from(LARGEST_UDP).expect("a small constant").to_be_bytes());
            out.extend([0; 6]);
        }
        out
    }
}

fn header_only(id: u16, flags: u16, code: Code) -> Vec<u8> {
    let flags = FLAG_RESPONSE | flags & (OPCODE | FLAG_RECURSION_DESIRED) | code as u16;
    [id, flags, 0, 0, 0, 0].iter().flat_map(|number| number.to_be_bytes()).collect()
}

/// Writes a question of our own.
pub(super) fn ask(id: u16, name: &HostName, family: Family) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER + name.as_str().len() + 6 + 11);
    for number in [id, FLAG_RECURSION_DESIRED, 1, 0, 0, 1] {
        out.extend(number.to_be_bytes());
    }
    for label in name.as_str().split('.') {
        out.push(u8::try_from(label.len()).expect("labels of a host name have at most 63 bytes"));
        out.extend(label.as_bytes());
    }
    out.push(0);
    out.extend(family.record().to_be_bytes());
    out.extend(CLASS_IN.to_be_bytes());
    out.push(0);
    out.extend(OPT.to_be_bytes());
    out.extend(u16::try_from(LARGEST_UDP).expect("a small constant").to_be_bytes());
    out.extend([0; 6]);
    out
}

/// What a resolver said to a question of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    Addresses {
        addresses: Vec<IpAddr>,
        ttl_s: u32,
    },
    NoSuchName,
    /// Too long for UDP.
    Truncated,
    /// The resolver could or would not answer.
    Failed,
}

/// Reads a reply; `None` if it is not one to this very question, so that a forger must guess the id too.
pub(super) fn read_reply(message: &[u8], id: u16, name: &HostName, family: Family) -> Option<Reply> {
    let mut reader = Reader { message, at: 0 };
    let (got_id, flags) = (reader.number16()?, reader.number16()?);
    let [1, answers, _, _] = reader.counts()? else { return None };
    let asked = reader.name(Pointers::Refuse)?;
    let (kind, class) = (reader.number16()?, reader.number16()?);
    let ours = got_id == id
        && flags & FLAG_RESPONSE != 0
        && flags & OPCODE == 0
        && kind == family.record()
        && class == CLASS_IN
        && asked.host().as_ref() == Some(name);
    if !ours {
        return None;
    }
    if flags & FLAG_TRUNCATED != 0 {
        return Some(Reply::Truncated);
    }
    match flags & 0x000f {
        0 => {}
        3 => return Some(Reply::NoSuchName),
        _ => return Some(Reply::Failed),
    }
    // From here on it is the answer, and one that cannot be read is a failed one.
    Some(read_addresses(&mut reader, answers, asked, family).unwrap_or(Reply::Failed))
}

/// Follows aliases in the order given, as resolvers send them, and takes the addresses at their end.
fn read_addresses(
    reader: &mut Reader<'_>,
    answers: u16,
    mut owner: WireName,
    family: Family,
) -> Option<Reply> {
    let mut addresses = Vec::new();
    let mut ttl_s = u32::MAX;
    for _ in 0..reader.records(answers, 0, 0)? {
        let record = reader.record()?;
        if record.class != CLASS_IN || record.owner != owner {
            continue;
        }
        let data = &reader.message[record.data.clone()];
        if record.kind == CNAME && addresses.is_empty() {
            let mut inside = Reader { message: &reader.message[..record.data.end], at: record.data.start };
            owner = inside.name(Pointers::Follow)?;
        } else if record.kind == family.record() {
            addresses.push(match family {
                Family::V4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?)),
                Family::V6 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?)),
            });
        } else {
            continue;
        }
        ttl_s = ttl_s.min(record.ttl_s);
    }
    Some(Reply::Addresses { addresses, ttl_s })
}

/// A name as labels, lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WireName(Vec<Vec<u8>>);

impl WireName {
    fn host(&self) -> Option<HostName> {
        // A dot inside a label would look like two labels.
        if self.0.iter().any(|label| label.contains(&b'.')) {
            return None;
        }
        HostName::parse(std::str::from_utf8(&self.0.join(&b'.')).ok()?).ok()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pointers {
    Follow,
    Refuse,
}

struct Record {
    owner: WireName,
    kind: u16,
    class: u16,
    ttl_s: u32,
    data: std::ops::Range<usize>,
}

/// A cursor that never reads past the end of its message.
struct Reader<'a> {
    message: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = *self.message.get(self.at..)?.first_chunk::<N>()?;
        self.at += N;
        Some(bytes)
    }

    fn number16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn counts(&mut self) -> Option<[u16; 4]> {
        Some([self.number16()?, self.number16()?, self.number16()?, self.number16()?])
    }

    /// How many records there are, if that is a number worth reading.
    fn records(&self, answers: u16, authorities: u16, additional: u16) -> Option<usize> {
        let all = usize::from(answers) + usize::from(authorities) + usize::from(additional);
        (all <= MOST_RECORDS).then_some(all)
    }

    fn name(&mut self, pointers: Pointers) -> Option<WireName> {
        let mut labels = Vec::new();
        let mut length = 0;
        let mut at = self.at;
        // A pointer must lead before where the name, or the last jump, began: no loops.
        let mut earliest = self.at;
        let mut end = None;
        loop {
            let first = *self.message.get(at)?;
            match first {
                0 => {
                    self.at = end.unwrap_or(at + 1);
                    return Some(WireName(labels));
                }
                1..=63 => {
                    let label = self.message.get(at + 1..at + 1 + usize::from(first))?;
                    length += 1 + label.len();
                    if length >= LONGEST_NAME {
                        return None;
                    }
                    labels.push(label.to_ascii_lowercase());
                    at += 1 + label.len();
                }
                0xc0.. if pointers == Pointers::Follow => {
                    let target = usize::from(first & 0x3f) << 8 | usize::from(*self.message.get(at + 1)?);
                    if target >= earliest {
                        return None;
                    }
                    end = end.or(Some(at + 2));
                    earliest = target;
                    at = target;
                }
                _ => return None,
            }
        }
    }

    fn record(&mut self) -> Option<Record> {
        let owner = self.name(Pointers::Follow)?;
        let (kind, class) = (self.number16()?, self.number16()?);
        let ttl_s = u32::from_be_bytes(self.take()?);
        let length = usize::from(self.number16()?);
        let data = self.at..self.at.checked_add(length)?;
        self.message.get(data.clone())?;
        self.at = data.end;
        // A negative lifetime means none (RFC 2181 section 8).
        let ttl_s = if ttl_s > i32::MAX as u32 { 0 } else { ttl_s };
        Some(Record { owner, kind, class, ttl_s, data })
    }
}

/// A question of a sandbox's, and an answer of the network's to a question of ours.
#[cfg(any(test, fuzzing))]
pub fn fuzz_dns(data: &[u8]) {
    let addresses: Vec<IpAddr> = (0..200).map(|last| IpAddr::V4(Ipv4Addr::new(192, 0, 2, last))).collect();
    match Query::read(data) {
        Ok(query) => {
            assert!((SMALLEST_UDP..=LARGEST_UDP).contains(&query.udp_size()));
            for (code, addresses) in [(Code::Fine, &addresses[..]), (Code::Refused, &[])] {
                let answer = query.answer(code, addresses, 60, query.udp_size());
                assert!(answer.len() <= query.udp_size(), "an answer of {} bytes", answer.len());
                assert_eq!(answer[..2], data[..2], "under the asker's id");
                if let (Some(name), Asked::Addresses(Family::V4)) = (&query.name, query.asked) {
                    let read = read_reply(&answer, query.id, name, Family::V4);
                    assert!(read.is_some(), "our own answer is one to that question");
                }
            }
        }
        Err(NoQuery::Answer(answer)) => assert_eq!((answer.len(), &answer[..2]), (HEADER, &data[..2])),
        Err(NoQuery::Ignore) => {}
    }
    let name: HostName = "example.com".parse().expect("a name");
    for family in [Family::V4, Family::V6] {
        let Some(&[high, low]) = data.first_chunk() else { return };
        let id = u16::from_be_bytes([high, low]);
        if let Some(Reply::Addresses { addresses, ttl_s }) = read_reply(data, id, &name, family) {
            assert!(
                addresses.len() <= MOST_RECORDS && addresses.iter().all(|found| Family::of(*found) == family)
            );
            assert!(addresses.is_empty() || ttl_s <= i32::MAX as u32);
        }
        assert_eq!(read_reply(data, id.wrapping_add(1), &name, family), None, "an answer under another id");
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
