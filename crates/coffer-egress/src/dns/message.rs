//! The part of DNS messages that is needed here: one question, and addresses as answers.
//!
//! hickory-proto reads and writes names, questions and the header. Records are parsed here: only three of the
//! many kinds that hickory-proto knows are needed, the others need not be well formed, and their parsers are
//! a third of that crate's code. Both ends are distrusted, the sandbox that asks and the network that
//! answers, so counts are bounded before anything is read.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use coffer_core::network::HostName;
use hickory_proto::ProtoError;
use hickory_proto::op::{
    Header, HeaderCounts, MessageType, Metadata, OpCode, Query as Question, ResponseCode,
};
use hickory_proto::rr::{DNSClass, Name, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder, BinEncodable, BinEncoder};

const HEADER: usize = 12;
const OPT_RECORD: usize = 11;
/// An answer's record without its address: a pointer to the question's name, type, class, lifetime and length.
const ADDRESS_RECORD: usize = 12;
const MOST_RECORDS: usize = 256;

/// The largest answer by UDP, small enough not to be cut into fragments anywhere.
pub(super) const LARGEST_UDP: u16 = 1232;
const SMALLEST_UDP: u16 = 512;

/// The requested kind of address.
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

    pub(crate) fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// The type of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Addresses(Family),
    /// Any other type; its answer has no records.
    Other,
}

/// A question of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Query {
    id: u16,
    recursion_desired: bool,
    /// In its original letter case: some clients check that the answer repeats it.
    question: Question,
    /// The name, if it is a valid host name.
    pub(super) name: Option<HostName>,
    pub(super) asked: Asked,
    /// The largest answer by UDP, if the client states one.
    udp: Option<u16>,
}

/// Why a message is not a question that can be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoQuery {
    /// It has no header, or is not a question: send no answer.
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
            let mut metadata = Metadata::new(header.id, MessageType::Response, header.op_code);
            metadata.recursion_desired = header.recursion_desired;
            metadata.response_code = code;
            NoQuery::Answer(
                Message { metadata, question: None, addresses: &[], ttl_s: 0, edns: false }.encode(),
            )
        };
        if header.op_code != OpCode::Query {
            return Err(error(ResponseCode::NotImp));
        }
        let read = (|| {
            let question = read_question(&mut decoder, message, &header)?;
            let counts = [header.counts.answers, header.counts.authorities, header.counts.additionals];
            let mut udp = None;
            for record in records(&mut decoder, counts.map(usize::from).iter().sum())? {
                let record = record?;
                if record.kind == RecordType::OPT {
                    udp = Some(record.class.into());
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

    /// The largest answer that the client accepts by UDP.
    pub(super) fn udp_size(&self) -> usize {
        self.udp.unwrap_or(SMALLEST_UDP).clamp(SMALLEST_UDP, LARGEST_UDP).into()
    }

    /// An answer without addresses.
    pub(super) fn empty_answer(&self, code: ResponseCode) -> Vec<u8> {
        self.answer(code, &[], 0, usize::MAX)
    }

    /// An answer of addresses; those that do not fit into `size` are left out, and the answer is marked as
    /// truncated.
    pub(super) fn answer(
        &self,
        code: ResponseCode,
        addresses: &[IpAddr],
        ttl_s: u32,
        size: usize,
    ) -> Vec<u8> {
        // The name with the zero that ends it, type and class. The OPT record comes before the addresses.
        let fixed = HEADER + self.question.name().len() + 1 + 4;
        let mut used = fixed + if self.udp.is_some() { OPT_RECORD } else { 0 };
        let fitting = addresses.iter().take_while(|address| {
            used += ADDRESS_RECORD + if address.is_ipv4() { 4 } else { 16 };
            used <= size
        });
        let fitting = &addresses[..fitting.count()];
        let mut metadata = Metadata::new(self.id, MessageType::Response, OpCode::Query);
        metadata.recursion_desired = self.recursion_desired;
        metadata.recursion_available = true;
        metadata.response_code = code;
        metadata.truncation = fitting.len() < addresses.len();
        let (question, edns) = (Some(&self.question), self.udp.is_some());
        Message { metadata, question, addresses: fitting, ttl_s, edns }.encode()
    }
}

/// A message that we send.
struct Message<'a> {
    metadata: Metadata,
    question: Option<&'a Question>,
    addresses: &'a [IpAddr],
    ttl_s: u32,
    /// Whether to state the largest answer by UDP.
    edns: bool,
}

impl Message<'_> {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SMALLEST_UDP.into());
        self.emit(&mut BinEncoder::new(&mut bytes)).expect("a bounded message fits into what DNS can carry");
        bytes
    }

    fn emit(&self, to: &mut BinEncoder<'_>) -> Result<(), ProtoError> {
        let counts = HeaderCounts {
            queries: self.question.is_some().into(),
            answers: u16::try_from(self.addresses.len()).unwrap_or(u16::MAX),
            authorities: 0,
            additionals: self.edns.into(),
        };
        Header { metadata: self.metadata, counts }.emit(to)?;
        if let Some(question) = self.question {
            question.emit(to)?;
            for address in self.addresses {
                // Encoded as a pointer to the question's name.
                question.name().emit(to)?;
                Family::of(*address).record().emit(to)?;
                DNSClass::IN.emit(to)?;
                to.emit_u32(self.ttl_s)?;
                match address {
                    IpAddr::V4(address) => {
                        to.emit_u16(4)?;
                        to.emit_vec(&address.octets())?;
                    }
                    IpAddr::V6(address) => {
                        to.emit_u16(16)?;
                        to.emit_vec(&address.octets())?;
                    }
                }
            }
        }
        if self.edns {
            Name::root().emit(to)?;
            RecordType::OPT.emit(to)?;
            to.emit_u16(LARGEST_UDP)?;
            // No extended code, version 0, no flags, no options.
            to.emit_u32(0)?;
            to.emit_u16(0)?;
        }
        Ok(())
    }
}

/// Writes a question of our own.
pub(super) fn ask(id: u16, name: &HostName, family: Family) -> Vec<u8> {
    // As bytes: labels of text would go through the rules for international names, which refuse `_`.
    let labels = name.as_str().split('.').map(str::as_bytes);
    let name = Name::from_labels(labels).expect("a host name is shorter than DNS allows");
    let mut metadata = Metadata::new(id, MessageType::Query, OpCode::Query);
    metadata.recursion_desired = true;
    let question = Question::query(name, family.record());
    Message { metadata, question: Some(&question), addresses: &[], ttl_s: 0, edns: true }.encode()
}

/// A resolver's reply to our question.
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

/// Parses a reply; `None` if it does not answer this question, so that a forger must guess the id too.
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
    // From here on it is the answer; if it cannot be parsed, the lookup has failed.
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
    let mut addresses = Vec::new();
    let mut lifetime = u32::MAX;
    for record in records(decoder, answers)? {
        let record = record?;
        // `Name` compares without letter case.
        if record.class != DNSClass::IN || record.owner != owner {
            continue;
        }
        if record.kind == RecordType::CNAME && addresses.is_empty() {
            owner = record.name()?;
        } else if record.kind == family.record() {
            let data = record.data();
            addresses.push(match family {
                Family::V4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?)),
                Family::V6 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?)),
            });
        } else {
            continue;
        }
        // A negative lifetime means none (RFC 2181 section 8).
        lifetime = lifetime.min(if record.ttl_s > i32::MAX as u32 { 0 } else { record.ttl_s });
    }
    Some(Reply::Addresses { addresses, ttl_s: lifetime })
}

/// The one question of a message. A question that we would encode differently, for example one with a
/// pointer, is refused.
fn read_question(decoder: &mut BinDecoder<'_>, message: &[u8], header: &Header) -> Option<Question> {
    let question = (header.counts.queries == 1).then(|| Question::read(decoder).ok()).flatten()?;
    let same = question.to_bytes().is_ok_and(|written| written == message[HEADER..decoder.index()]);
    same.then_some(question)
}

/// A record whose data is not read yet.
struct Record<'m> {
    owner: Name,
    kind: RecordType,
    class: DNSClass,
    ttl_s: u32,
    /// Where the data begins in the message, and the message up to its end.
    start: u16,
    message: &'m [u8],
}

impl<'m> Record<'m> {
    fn read(decoder: &mut BinDecoder<'m>) -> Option<Self> {
        let owner = Name::read(decoder).ok()?;
        let (kind, class) = (RecordType::read(decoder).ok()?, DNSClass::read(decoder).ok()?);
        let ttl_s = decoder.read_u32().ok()?.unverified();
        let length = decoder.read_u16().ok()?.unverified();
        let start = u16::try_from(decoder.index()).ok()?;
        decoder.read_slice(length.into()).ok()?;
        let message = decoder.slice_from(0).ok()?;
        Some(Self { owner, kind, class, ttl_s, start, message })
    }

    fn data(&self) -> &'m [u8] {
        &self.message[usize::from(self.start)..]
    }

    /// The data as a name, which may contain pointers to earlier parts of the message.
    fn name(&self) -> Option<Name> {
        Name::read(&mut BinDecoder::new(self.message).clone(self.start)).ok()
    }
}

/// The next `count` records, if the count is within bounds.
fn records<'m>(
    decoder: &mut BinDecoder<'m>,
    count: usize,
) -> Option<impl Iterator<Item = Option<Record<'m>>>> {
    (count <= MOST_RECORDS).then(|| (0..count).map(|_| Record::read(decoder)))
}

fn host_name(name: &Name) -> Option<HostName> {
    let labels: Vec<&[u8]> = name.iter().collect();
    // A dot inside a label would look like two labels.
    if labels.iter().any(|label| label.contains(&b'.')) {
        return None;
    }
    HostName::parse(std::str::from_utf8(&labels.join(&b'.')).ok()?).ok()
}

/// Fuzzing: a question from a sandbox, and an answer from the network.
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
