//! The part of DNS messages that is needed here: one question, and addresses as answers.
//!
//! hickory-proto reads and writes names, records and the header. This module bounds what is read, because both ends
//! are distrusted: the sandbox that asks and the network that answers. It reads a message piece by piece, so that
//! counts are checked before records are read, and so that sections that nobody uses cannot spoil an answer.

use std::net::IpAddr;

use coffer_core::network::HostName;
use hickory_proto::op::{Edns, Header, Message, MessageType, OpCode, Query as Question, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder, BinEncodable};

const HEADER: usize = 12;
const OPT_RECORD: usize = 11;
/// An answer's record without its address: a pointer to the question's name, type, class, lifetime and length.
const ADDRESS_RECORD: usize = 12;
const MOST_RECORDS: usize = 256;

/// The largest answer by UDP, small enough not to be cut into fragments anywhere.
pub(super) const LARGEST_UDP: u16 = 1232;
const SMALLEST_UDP: u16 = 512;

/// The kind of address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    const fn record(self) -> RecordType {
        match self {
            Self::V4 => RecordType::A,
            Self::V6 => RecordType::AAAA,
        }
    }

    pub(super) fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// The type of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Addresses(Family),
    /// Any other type; it gets an answer without records.
    Other,
}

/// A question that a sandbox asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Query {
    id: u16,
    recursion_desired: bool,
    /// With the letter case it came in: some clients check that it comes back so.
    question: Question,
    /// The name, if it is a valid host name.
    pub(super) name: Option<HostName>,
    pub(super) asked: Asked,
    /// How large an answer by UDP may be, where the client said so.
    udp: Option<u16>,
}

/// Why a message is not a question that can be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoQuery {
    /// Not even a header, or an answer and not a question: silence.
    Ignore,
    /// A short error for the client.
    Answer(Vec<u8>),
}

impl Query {
    pub(super) fn read(message: &[u8]) -> Result<Self, NoQuery> {
        let mut decoder = BinDecoder::new(message);
        let header = Header::read(&mut decoder).map_err(|_| NoQuery::Ignore)?;
        if header.message_type != MessageType::Query {
            return Err(NoQuery::Ignore);
        }
        let error = |code| {
            let mut answer = Message::error_msg(header.id, header.op_code, code);
            answer.metadata.recursion_desired = header.recursion_desired;
            NoQuery::Answer(encode(&answer))
        };
        if header.op_code != OpCode::Query {
            return Err(error(ResponseCode::NotImp));
        }
        let read = (|| {
            let question = read_question(&mut decoder, message, &header)?;
            let counts = [header.counts.answers, header.counts.authorities, header.counts.additionals];
            let mut udp = None;
            for record in records(&mut decoder, counts.map(usize::from).iter().sum())? {
                if let DNSClass::OPT(size) = record?.dns_class {
                    udp = Some(size);
                }
            }
            Some((question, udp))
        })();
        let Some((question, udp)) = read else { return Err(error(ResponseCode::FormErr)) };
        let asked = match (question.query_class(), question.query_type()) {
            (DNSClass::IN, RecordType::A) => Asked::Addresses(Family::V4),
            (DNSClass::IN, RecordType::AAAA) => Asked::Addresses(Family::V6),
            _ => Asked::Other,
        };
        let (id, recursion_desired) = (header.id, header.recursion_desired);
        Ok(Self { id, recursion_desired, name: host_name(question.name()), question, asked, udp })
    }

    /// The largest answer that the client takes by UDP.
    pub(super) fn udp_size(&self) -> usize {
        self.udp.unwrap_or(SMALLEST_UDP).clamp(SMALLEST_UDP, LARGEST_UDP).into()
    }

    /// An answer without addresses.
    pub(super) fn empty_answer(&self, code: ResponseCode) -> Vec<u8> {
        self.answer(code, &[], 0, usize::MAX)
    }

    /// An answer with addresses; those that do not fit into `size` are left out, and the answer is marked as
    /// truncated.
    pub(super) fn answer(
        &self,
        code: ResponseCode,
        addresses: &[IpAddr],
        ttl_s: u32,
        size: usize,
    ) -> Vec<u8> {
        let name = self.question.name();
        // The name with the zero that ends it, type and class. The OPT record has its place before any address.
        let mut used = HEADER + name.len() + 1 + 4 + if self.udp.is_some() { OPT_RECORD } else { 0 };
        let fitting = addresses.iter().take_while(|address| {
            used += ADDRESS_RECORD + if address.is_ipv4() { 4 } else { 16 };
            used <= size
        });
        let mut answer = Message::response(self.id, OpCode::Query);
        answer.add_answers(fitting.map(|address| {
            let data = match *address {
                IpAddr::V4(v4) => RData::A(v4.into()),
                IpAddr::V6(v6) => RData::AAAA(v6.into()),
            };
            Record::from_rdata(name.clone(), ttl_s, data)
        }));
        answer.metadata.recursion_desired = self.recursion_desired;
        answer.metadata.recursion_available = true;
        answer.metadata.response_code = code;
        answer.metadata.truncation = answer.answers.len() < addresses.len();
        answer.add_query(self.question.clone());
        answer.edns = self.udp.map(|_| edns());
        encode(&answer)
    }
}

/// Encodes our own question.
pub(super) fn ask(id: u16, name: &HostName, family: Family) -> Vec<u8> {
    // As bytes: labels of text would go through the rules for international names, which refuse `_`.
    let labels = name.as_str().split('.').map(str::as_bytes);
    let name = Name::from_labels(labels).expect("a host name is shorter than DNS allows");
    let mut message = Message::new(id, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Question::query(name, family.record()));
    message.edns = Some(edns());
    encode(&message)
}

/// A resolver's answer to our question.
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

/// Parses a reply; `None` if it does not match this question, so that a forger must guess the id too.
pub(super) fn read_reply(message: &[u8], id: u16, name: &HostName, family: Family) -> Option<Reply> {
    let mut decoder = BinDecoder::new(message);
    let header = Header::read(&mut decoder).ok()?;
    let question = read_question(&mut decoder, message, &header)?;
    let ours = header.id == id
        && header.message_type == MessageType::Response
        && header.op_code == OpCode::Query
        && question.query_type() == family.record()
        && question.query_class() == DNSClass::IN
        && host_name(question.name()).as_ref() == Some(name);
    if !ours {
        return None;
    }
    if header.truncation {
        return Some(Reply::Truncated);
    }
    match header.response_code {
        ResponseCode::NoError => {}
        ResponseCode::NXDomain => return Some(Reply::NoSuchName),
        _ => return Some(Reply::Failed),
    }
    // From here on it is the answer; if it cannot be parsed, the lookup failed.
    let answers = header.counts.answers.into();
    Some(read_addresses(&mut decoder, answers, question.name(), family).unwrap_or(Reply::Failed))
}

/// Follows aliases in the order given, as resolvers send them, and takes the addresses at their end.
fn read_addresses(
    decoder: &mut BinDecoder<'_>,
    answers: usize,
    asked: &Name,
    family: Family,
) -> Option<Reply> {
    let mut owner = asked.clone();
    let mut addresses: Vec<IpAddr> = Vec::new();
    let mut lifetime = u32::MAX;
    for record in records(decoder, answers)? {
        let record = record?;
        // `Name` compares without letter case.
        if record.dns_class != DNSClass::IN || record.name != owner {
            continue;
        }
        let kind = record.record_type();
        match record.data {
            RData::CNAME(alias) if addresses.is_empty() => owner = alias.0,
            RData::A(address) if family == Family::V4 => addresses.push(address.0.into()),
            RData::AAAA(address) if family == Family::V6 => addresses.push(address.0.into()),
            // An alias or an address without data.
            _ if kind == family.record() || kind == RecordType::CNAME && addresses.is_empty() => return None,
            _ => continue,
        }
        // A negative lifetime means none (RFC 2181 section 8).
        lifetime = lifetime.min(if record.ttl > i32::MAX as u32 { 0 } else { record.ttl });
    }
    Some(Reply::Addresses { addresses, ttl_s: lifetime })
}

/// The one question of a message. One that would be written otherwise than it came, such as with a pointer, is none.
fn read_question(decoder: &mut BinDecoder<'_>, message: &[u8], header: &Header) -> Option<Question> {
    let question = (header.counts.queries == 1).then(|| Question::read(decoder).ok()).flatten()?;
    let same = question.to_bytes().is_ok_and(|written| written == message[HEADER..decoder.index()]);
    same.then_some(question)
}

/// The next `count` records, if that is a number worth reading.
fn records(decoder: &mut BinDecoder<'_>, count: usize) -> Option<impl Iterator<Item = Option<Record>>> {
    (count <= MOST_RECORDS).then(|| (0..count).map(|_| Record::read(decoder).ok()))
}

fn host_name(name: &Name) -> Option<HostName> {
    let labels: Vec<&[u8]> = name.iter().collect();
    // A dot inside a label would look like two labels.
    if labels.iter().any(|label| label.contains(&b'.')) {
        return None;
    }
    HostName::parse(std::str::from_utf8(&labels.join(&b'.')).ok()?).ok()
}

fn edns() -> Edns {
    let mut edns = Edns::new();
    edns.set_max_payload(LARGEST_UDP);
    edns
}

fn encode(message: &Message) -> Vec<u8> {
    message.to_vec().expect("a bounded message fits into what DNS can carry")
}

/// Fuzzing: a sandbox's question, and a network's answer to our question.
#[cfg(any(test, fuzzing))]
pub fn fuzz_dns(data: &[u8]) {
    let addresses: Vec<IpAddr> = (0..200).map(|last| IpAddr::from([192, 0, 2, last])).collect();
    match Query::read(data) {
        Ok(query) => {
            assert!((512..=1232).contains(&query.udp_size()));
            for (code, addresses) in [(ResponseCode::NoError, &addresses[..]), (ResponseCode::Refused, &[])] {
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
