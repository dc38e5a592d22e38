//! What a git server says, read as hostile input: bounded, by our own grammar for names and hashes.

use std::collections::BTreeMap;

use bytes::{Buf, Bytes, BytesMut};
use coffer_core::forge::{BranchName, CommitId};
use coffer_core::pkt_line::{self, FLUSH, HEAD, Packet};

/// Most branches that are remembered of one server's list.
const MOST_BRANCHES: usize = 50_000;
const AGENT: &str = concat!("agent=coffer/", env!("CARGO_PKG_VERSION"));
/// The longest remark of a server in an error.
const LONGEST_REMARK: usize = 300;

/// The branches of a repository, and what its server can do.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Advertised {
    pub(crate) head: Option<BranchName>,
    pub(crate) branches: BTreeMap<BranchName, CommitId>,
    capabilities: Vec<String>,
}

impl Advertised {
    /// Reads the answer to `info/refs` in protocol version 0.
    pub(crate) fn parse(service: &str, mut bytes: &[u8]) -> Result<Self, &'static str> {
        const BROKEN: &str = "its list of branches is damaged";
        let mut told = Self::default();
        let (mut head_commit, mut announced, mut first) = (None, false, true);
        loop {
            let Some((packet, rest)) = pkt_line::split(bytes).map_err(|_| BROKEN)? else {
                return Err(BROKEN);
            };
            bytes = rest;
            let line = match packet {
                // The first one ends the announcement of the service, the second one the list.
                Packet::Flush if announced && first && !bytes.is_empty() => continue,
                Packet::Flush => break,
                Packet::Data(line) => line.strip_suffix(b"\n").unwrap_or(line),
            };
            if first && !announced {
                announced = line.strip_prefix(b"# service=").is_some_and(|told| told == service.as_bytes());
                if announced {
                    continue;
                }
            }
            if line.starts_with(b"ERR ") {
                return Err("it refused to list its branches");
            }
            let line = if first {
                first = false;
                let (line, able) = line
                    .iter()
                    .position(|b| *b == 0)
                    .map_or((line, &[][..]), |at| (&line[..at], &line[at + 1..]));
                told.capabilities = String::from_utf8_lossy(able).split(' ').map(str::to_string).collect();
                line
            } else {
                line
            };
            let Some((commit, name)) = std::str::from_utf8(line).ok().and_then(|line| line.split_once(' '))
            else {
                continue;
            };
            let commit: CommitId = commit.parse().map_err(|_| BROKEN)?;
            if name == "HEAD" {
                head_commit = Some(commit);
            } else if let Some(Ok(branch)) = name.strip_prefix("refs/heads/").map(str::parse) {
                if told.branches.len() >= MOST_BRANCHES {
                    return Err("it has too many branches");
                }
                told.branches.insert(branch, commit);
            }
        }
        told.head = told.head_of(head_commit.as_ref());
        Ok(told)
    }

    /// HEAD's branch: as the server says, or the usual one at its commit.
    fn head_of(&self, commit: Option<&CommitId>) -> Option<BranchName> {
        let said = self.value("symref").find_map(|told| told.strip_prefix("HEAD:refs/heads/")?.parse().ok());
        let usual = || {
            let mut at = self.branches.iter().filter(|(_, tip)| Some(*tip) == commit).map(|(name, _)| name);
            let usual = ["main", "master"].into_iter().filter_map(|name| name.parse::<BranchName>().ok());
            let mut usual =
                usual.filter(|name| self.branches.get(name).is_some_and(|tip| Some(tip) == commit));
            usual.next().or_else(|| at.next().cloned())
        };
        said.or_else(usual)
    }

    pub(crate) fn can(&self, capability: &str) -> bool {
        self.capabilities.iter().any(|one| one == capability)
    }

    /// The values of a capability such as `symref=…`.
    fn value<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.capabilities.iter().filter_map(move |one| one.strip_prefix(name)?.strip_prefix('='))
    }

    /// Whether its commits have hashes of SHA-1, as repositories here.
    pub(crate) fn is_sha1(&self) -> bool {
        self.value("object-format").next().is_none_or(|format| format == "sha1")
            && self.branches.values().all(|tip| tip.as_str().len() == 40)
    }
}

/// The request for a pack with these commits, for somebody who has those.
pub(crate) fn want(wants: &[CommitId], haves: &[CommitId], told: &Advertised) -> Vec<u8> {
    let able =
        ["side-band-64k", "ofs-delta", "thin-pack", "no-progress"].into_iter().filter(|one| told.can(one));
    let able: Vec<&str> = able.chain([AGENT]).collect();
    let mut body = Vec::new();
    for (at, commit) in wants.iter().enumerate() {
        let able = if at == 0 { format!(" {}", able.join(" ")) } else { String::new() };
        pkt_line::write(&mut body, format!("want {commit}{able}\n").as_bytes());
    }
    body.extend_from_slice(FLUSH);
    for commit in haves {
        pkt_line::write(&mut body, format!("have {commit}\n").as_bytes());
    }
    pkt_line::write(&mut body, b"done\n");
    body
}

/// Takes the pack out of the answer to [`want`], piece by piece.
#[derive(Debug, Default)]
pub(crate) struct PackReader {
    waiting: BytesMut,
    /// The pack has begun, without side bands.
    is_bare: bool,
    is_over: bool,
}

impl PackReader {
    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.waiting.extend_from_slice(piece);
    }

    /// Whether the server has said that this is all.
    pub(crate) const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether the answer may end here.
    pub(crate) fn may_end(&self) -> bool {
        self.is_over || (self.is_bare && self.waiting.is_empty())
    }

    /// The next piece of the pack; `None` until more has arrived.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, String> {
        loop {
            if self.is_bare {
                return Ok((!self.waiting.is_empty()).then(|| self.waiting.split().freeze()));
            }
            if self.waiting.starts_with(b"PACK") {
                self.is_bare = true;
                continue;
            }
            let Some(length) = pkt_line::length(&self.waiting).map_err(|_| "its pack is damaged")? else {
                return Ok(None);
            };
            if length == 0 {
                self.waiting.advance(HEAD);
                self.is_over = true;
                return Ok(None);
            }
            if self.waiting.len() < length {
                return Ok(None);
            }
            let mut packet = self.waiting.split_to(length).freeze();
            packet.advance(HEAD);
            match packet.first() {
                Some(1) => return Ok(Some(packet.slice(1..))),
                Some(2) => {}
                Some(3) => return Err(format!("it broke off: {}", remark(&packet[1..]))),
                _ if packet.starts_with(b"ERR ") => {
                    return Err(format!("it refused: {}", remark(&packet[4..])));
                }
                _ if packet.starts_with(b"NAK") || packet.starts_with(b"ACK ") => {}
                _ => return Err("its pack is damaged".into()),
            }
        }
    }
}

/// The request that moves one branch, without the pack that follows it.
pub(crate) fn command(branch: &BranchName, old: &CommitId, new: &CommitId, told: &Advertised) -> Vec<u8> {
    let able = ["report-status", "side-band-64k"].into_iter().filter(|one| told.can(one));
    let able: Vec<&str> = able.chain([AGENT]).collect();
    let mut body = Vec::new();
    let line = format!("{old} {new} {}\0 {}\n", branch.full(), able.join(" "));
    pkt_line::write(&mut body, line.as_bytes());
    body.extend_from_slice(FLUSH);
    body
}

/// Why the server did not move the branch; `None` if it says that it did.
pub(crate) fn refusal(answer: &[u8], branch: &BranchName) -> Option<String> {
    let banded = pkt_line::read_band(1, answer);
    let report = if banded.is_empty() { answer } else { &banded };
    let said = pkt_line::read_band(2, answer);
    let (mut is_moved, mut why) = (false, None);
    for line in pkt_line::lines(report) {
        let line = String::from_utf8_lossy(line);
        let line = line.trim_end();
        if line == format!("ok {}", branch.full()) {
            is_moved = true;
        } else if let Some(reason) = line.strip_prefix(&format!("ng {} ", branch.full())) {
            why = Some(remark(reason.as_bytes()));
        } else if let Some(reason) = line.strip_prefix("unpack ").filter(|told| *told != "ok") {
            why = why.or_else(|| Some(remark(reason.as_bytes())));
        }
    }
    if is_moved && why.is_none() {
        return None;
    }
    // A hook says more than git does.
    let hook = remark(&said);
    let why = why.unwrap_or_else(|| "it did not say whether it moved the branch".into());
    Some(if hook.is_empty() { why } else { format!("{why}: {hook}") })
}

/// What a server says, on one line.
pub(crate) fn remark(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.split(['\n', '\r']).map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ").chars().filter(|c| !c.is_control()).take(LONGEST_REMARK).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "30ac85f7734efef6cd1cb08d1c4c1ac3615bb592";
    const B: &str = "40ac85f7734efef6cd1cb08d1c4c1ac3615bb592";

    fn list(lines: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        pkt_line::write(&mut out, b"# service=git-upload-pack\n");
        out.extend_from_slice(FLUSH);
        for line in lines {
            pkt_line::write(&mut out, line.as_bytes());
        }
        out.extend_from_slice(FLUSH);
        out
    }

    fn read(bytes: &[u8]) -> Result<Advertised, &'static str> {
        Advertised::parse("git-upload-pack", bytes)
    }

    #[test]
    fn branches_and_the_default_one_are_read() {
        let told = read(&list(&[
            &format!("{A} HEAD\0side-band-64k symref=HEAD:refs/heads/trunk object-format=sha1\n"),
            &format!("{B} refs/heads/task/1\n"),
            &format!("{A} refs/heads/trunk\n"),
            &format!("{A} refs/heads/-bad\n"),
            &format!("{A} refs/tags/v1\n"),
        ]));
        let told = told.unwrap();
        assert_eq!(told.head.as_ref().map(BranchName::as_str), Some("trunk"));
        assert_eq!(told.branches.len(), 2);
        assert!(told.can("side-band-64k") && !told.can("thin-pack") && told.is_sha1());
        // A server that does not say: the usual name at HEAD's commit.
        let told = read(&list(&[
            &format!("{A} HEAD\0\n"),
            &format!("{A} refs/heads/alpha\n"),
            &format!("{A} refs/heads/master\n"),
        ]));
        assert_eq!(told.unwrap().head.unwrap().as_str(), "master");
    }

    #[test]
    fn an_empty_repository_has_no_branches() {
        let told = read(&list(&[&format!("{} capabilities^{{}}\0report-status\n", "0".repeat(40))])).unwrap();
        assert!(told.branches.is_empty() && told.head.is_none() && told.can("report-status"));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for bad in ["", "<html>", "0000", "001e# service=git-upload-pack\n", "0009short", "zzzz"] {
            let read = read(bad.as_bytes());
            assert!(read.is_err() || read.unwrap().branches.is_empty(), "{bad}");
        }
        let sha256 = "a".repeat(64);
        let told = read(&list(&[&format!("{sha256} refs/heads/main\0object-format=sha256\n")])).unwrap();
        assert!(!told.is_sha1());
    }

    fn unpacked(answer: &[u8], cut: usize) -> Result<(Vec<u8>, bool), String> {
        let (mut reader, mut pack) = (PackReader::default(), Vec::new());
        for piece in answer.chunks(cut) {
            reader.push(piece);
            while let Some(piece) = reader.next()? {
                pack.extend_from_slice(&piece);
            }
        }
        Ok((pack, reader.may_end()))
    }

    #[test]
    fn a_pack_is_whole_however_it_is_cut() {
        let mut banded = Vec::new();
        pkt_line::write(&mut banded, b"NAK\n");
        pkt_line::write(&mut banded, b"\x02counting\n");
        pkt_line::write(&mut banded, b"\x01PACKone");
        pkt_line::write(&mut banded, b"\x01two");
        let cut_off = banded.clone();
        banded.extend_from_slice(FLUSH);
        let mut bare = Vec::new();
        pkt_line::write(&mut bare, format!("ACK {A}\n").as_bytes());
        bare.extend_from_slice(b"PACKonetwo");
        for cut in 1..banded.len() {
            assert_eq!(unpacked(&banded, cut), Ok((b"PACKonetwo".to_vec(), true)), "cut by {cut}");
            assert_eq!(unpacked(&bare, cut), Ok((b"PACKonetwo".to_vec(), true)), "cut by {cut}");
        }
        assert!(!unpacked(&cut_off, 7).unwrap().1, "it has not ended");
    }

    #[test]
    fn a_server_that_breaks_off_is_quoted() {
        let mut answer = Vec::new();
        pkt_line::write(&mut answer, b"NAK\n");
        pkt_line::write(&mut answer, b"\x03no memory\x1b[31m\nleft");
        assert_eq!(unpacked(&answer, 1000), Err("it broke off: no memory[31m; left".into()));
        assert!(unpacked(b"<html>", 1000).is_err());
    }

    #[test]
    fn a_refused_push_says_why() {
        let main: BranchName = "main".parse().unwrap();
        let answer = |report: &[&str], said: &str| {
            let mut inner = Vec::new();
            for line in report {
                pkt_line::write(&mut inner, line.as_bytes());
            }
            inner.extend_from_slice(FLUSH);
            let mut out = Vec::new();
            if !said.is_empty() {
                pkt_line::write(&mut out, &[b"\x02", said.as_bytes()].concat());
            }
            pkt_line::write(&mut out, &[b"\x01", inner.as_slice()].concat());
            out.extend_from_slice(FLUSH);
            out
        };
        assert_eq!(refusal(&answer(&["unpack ok\n", "ok refs/heads/main\n"], ""), &main), None);
        let hook = answer(&["unpack ok\n", "ng refs/heads/main pre-receive hook declined\n"], "no Fridays\n");
        assert_eq!(refusal(&hook, &main), Some("pre-receive hook declined: no Fridays".into()));
        let other = answer(&["unpack ok\n", "ok refs/heads/other\n"], "");
        assert!(refusal(&other, &main).is_some() && refusal(b"", &main).is_some());
        let mut plain = Vec::new();
        pkt_line::write(&mut plain, b"unpack ok\n");
        pkt_line::write(&mut plain, b"ok refs/heads/main\n");
        plain.extend_from_slice(FLUSH);
        assert_eq!(refusal(&plain, &main), None, "without side bands");
    }
}
