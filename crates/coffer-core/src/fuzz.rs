//! Fuzz targets: parsers of hostile bytes, with the properties of their results.

use crate::agent::transcript::{EntryBody, Room};
use crate::agent::{AgentReader, OutputFormat};
use crate::pkt_line::{self, Packet};

/// Parses agent output: the first byte selects the format, and how it is split.
pub fn agent_output(data: &[u8]) {
    let Some((&first, bytes)) = data.split_first() else { return };
    let format = OutputFormat::ALL[usize::from(first) % OutputFormat::ALL.len()];
    let mut whole = AgentReader::new(format);
    let mut told = Vec::new();
    whole.push(bytes, &mut |change| told.push(change));
    let whole = whole.finish(&mut |change| told.push(change));
    let mut pieces = AgentReader::new(format);
    let mut told_in_pieces = Vec::new();
    for piece in bytes.chunks(1 + usize::from(first / 8)) {
        pieces.push(piece, &mut |change| told_in_pieces.push(change));
    }
    let pieces = pieces.finish(&mut |change| told_in_pieces.push(change));
    assert_eq!((&whole, &told), (&pieces, &told_in_pieces), "the borders of pieces must not matter");
    for (at, change) in told.iter().enumerate() {
        assert_eq!(change.version, at as u64 + 1, "no change is lost");
        assert!(change.body.size() <= 64 * 1024, "an entry is bounded: {}", change.body.kind());
        let written = serde_json::to_string(&change.body).expect("plain data");
        let read: EntryBody = serde_json::from_str(&written).expect("what was written reads back");
        assert_eq!(read.kind(), change.body.kind());
    }
    assert!(told.iter().map(|change| change.number).max() <= Some(Room::WHOLE.entries + 40));
    assert!(whole.cost_nanos.is_none_or(|nanos| nanos >= 0), "a cost is never negative");
    assert!(whole.summary.is_none_or(|text| text.len() <= 16 * 1024));
}

/// Reads pkt-lines and a side band: nothing is lost or invented, and written packets parse again.
pub fn pkt_line(data: &[u8]) {
    let (mut rest, mut all) = (data, Vec::new());
    while let Ok(Some((packet, more))) = pkt_line::split(rest) {
        let head = &rest[..pkt_line::HEAD];
        let length = usize::from_str_radix(std::str::from_utf8(head).expect("digits"), 16).expect("digits");
        let taken = rest.len() - more.len();
        match packet {
            Packet::Flush => assert_eq!((head, taken), (pkt_line::FLUSH, pkt_line::HEAD)),
            Packet::Data(data) => assert_eq!((length, data.len() + pkt_line::HEAD), (taken, taken)),
        }
        // The parser waits for every missing byte, and later bytes do not change the packet.
        assert_eq!(pkt_line::split(&rest[..taken - 1]), Ok(None));
        assert_eq!(pkt_line::split(&rest[..taken]), Ok(Some((packet, &[][..]))));
        if let Packet::Data(data) = packet {
            all.push(data);
        }
        rest = more;
    }
    let mut written = Vec::new();
    all.iter().for_each(|data| pkt_line::write(&mut written, data));
    assert_eq!(pkt_line::lines(&written).collect::<Vec<_>>(), all);
    assert!(pkt_line::lines(data).eq(all.iter().copied().take(pkt_line::lines(data).count())));
    let band = pkt_line::write_band(1, data);
    assert_eq!(pkt_line::read_band(1, &band), data);
    assert!(pkt_line::read_band(2, &band).is_empty());
    assert!(pkt_line::read_band(1, data).len() <= data.len());
}

#[cfg(test)]
#[path = "../../../fuzz/seeded.rs"]
mod seeded;

#[cfg(test)]
mod tests {
    use super::seeded;

    #[test]
    fn outputs_of_agents() {
        seeded::run("agent_output", super::agent_output);
    }

    #[test]
    fn packets_of_git() {
        seeded::run("pkt_line", super::pkt_line);
    }
}
