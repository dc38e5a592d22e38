//! Git's pkt-line framing: four hexadecimal digits that count themselves and the data after them, or `0000`, a flush.
//!
//! Only the framing: callers read bytes, bound them and decide what a line means. The forge and the git gate read the
//! same pushes and accept different ones on purpose.

/// Ends a list of packets.
pub const FLUSH: &[u8] = b"0000";

/// The digits in front of a packet.
pub const HEAD: usize = 4;

/// Data in the largest packet that git takes.
const MOST_DATA: usize = 65_516;

/// Data in one packet of a side band that we write. Any client takes this much.
const BAND_DATA: usize = 900;

/// Four bytes that git does not write in front of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a packet does not begin with its length")]
pub struct BadLength;

/// One packet, without its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packet<'a> {
    Flush,
    Data(&'a [u8]),
}

/// The length of the first packet, its head included; 0 for a flush, `None` until the head has arrived.
///
/// Refuses 1 to 3, which are delimiters of protocol version 2: no push has them.
pub fn length(bytes: &[u8]) -> Result<Option<usize>, BadLength> {
    let Some(head) = bytes.first_chunk::<HEAD>() else { return Ok(None) };
    // `from_str_radix` alone would accept a sign.
    let digits = std::str::from_utf8(head).ok().filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()));
    match digits.and_then(|digits| usize::from_str_radix(digits, 16).ok()) {
        Some(length) if length == 0 || length >= HEAD => Ok(Some(length)),
        _ => Err(BadLength),
    }
}

/// The first packet and what follows it, `None` until the whole packet has arrived.
pub fn split(bytes: &[u8]) -> Result<Option<(Packet<'_>, &[u8])>, BadLength> {
    Ok(match length(bytes)? {
        Some(0) => Some((Packet::Flush, &bytes[HEAD..])),
        Some(length) => {
            bytes.split_at_checked(length).map(|(packet, rest)| (Packet::Data(&packet[HEAD..]), rest))
        }
        None => None,
    })
}

/// The data of each packet up to the first flush, or up to where the bytes are not pkt-lines.
pub fn lines(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || match split(bytes) {
        Ok(Some((Packet::Data(data), rest))) => {
            bytes = rest;
            Some(data)
        }
        _ => None,
    })
}

/// Appends a packet, with as much of the data as git takes in one.
pub fn write(to: &mut Vec<u8>, data: &[u8]) {
    let data = &data[..data.len().min(MOST_DATA)];
    to.extend_from_slice(format!("{:04x}", data.len() + HEAD).as_bytes());
    to.extend_from_slice(data);
}

/// Everything that was sent on one side band.
pub fn read_band(band: u8, bytes: &[u8]) -> Vec<u8> {
    let sent = lines(bytes).filter_map(<[u8]>::split_first).filter(|(number, _)| **number == band);
    sent.flat_map(|(_, data)| data).copied().collect()
}

/// Sends `data` on one side band, with a flush at the end.
pub fn write_band(band: u8, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len() + data.len() / 64 + 2 * HEAD);
    for piece in data.chunks(BAND_DATA) {
        write(&mut out, &[&[band], piece].concat());
    }
    out.extend_from_slice(FLUSH);
    out
}

/// The report of a refused push, with the reason for each ref.
pub fn write_refusals<'a>(refs: impl Iterator<Item = (&'a str, String)>) -> Vec<u8> {
    let mut report = Vec::new();
    write(&mut report, b"unpack ok\n");
    for (name, why) in refs {
        write(&mut report, format!("ng {name} {why}\n").as_bytes());
    }
    report.extend_from_slice(FLUSH);
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_four_digits_and_count_themselves() {
        assert_eq!(length(b"000"), Ok(None));
        assert_eq!(length(b"0000"), Ok(Some(0)));
        assert_eq!(length(b"0004"), Ok(Some(4)));
        assert_eq!(length(b"00aBx"), Ok(Some(171)));
        assert_eq!(length(b"ffff"), Ok(Some(65535)));
        for bad in
            [b"0001", b"0002", b"0003", b"+00a", b"-001", b" 00a", b"00a ", b"0x0a", b"zzzz", &[0xff; 4]]
        {
            assert_eq!(length(bad), Err(BadLength), "{bad:?}");
        }
    }

    #[test]
    fn packets_come_when_they_are_whole() {
        assert_eq!(split(b"0006a"), Ok(None));
        assert_eq!(split(b"0006ab0000"), Ok(Some((Packet::Data(b"ab"), &b"0000"[..]))));
        assert_eq!(split(b"0004x"), Ok(Some((Packet::Data(b""), &b"x"[..]))));
        assert_eq!(split(b"0000PACK"), Ok(Some((Packet::Flush, &b"PACK"[..]))));
        assert_eq!(lines(b"0005a0004000500000005b").collect::<Vec<_>>(), [&b"a"[..], b"", b"0"]);
    }

    #[test]
    fn a_packet_is_never_longer_than_its_digits_can_say() {
        let mut out = Vec::new();
        write(&mut out, &vec![b'x'; 70_000]);
        write(&mut out, b"next");
        assert_eq!(lines(&out).map(<[u8]>::len).collect::<Vec<_>>(), [MOST_DATA, 4]);
    }

    #[test]
    fn a_side_band_reads_back() {
        let long = vec![b'x'; 2 * BAND_DATA + 1];
        let mut sent = Vec::new();
        write(&mut sent, b"\x02progress");
        sent.extend(write_band(1, &long));
        assert_eq!(read_band(1, &sent), long);
        assert_eq!(read_band(2, &sent), b"progress");
        assert_eq!(lines(&sent).count(), 4, "no packet is longer than clients take");
        assert_eq!(write_band(1, b""), FLUSH);
    }

    #[test]
    fn refusals_are_a_report_of_gits_own() {
        let refs = ["refs/heads/a", "refs/heads/b"];
        let report = write_refusals(refs.iter().map(|name| (*name, format!("not {name}"))));
        let lines: Vec<_> = lines(&report).map(String::from_utf8_lossy).collect();
        assert_eq!(
            lines,
            ["unpack ok\n", "ng refs/heads/a not refs/heads/a\n", "ng refs/heads/b not refs/heads/b\n"]
        );
        assert!(report.ends_with(FLUSH));
    }
}
