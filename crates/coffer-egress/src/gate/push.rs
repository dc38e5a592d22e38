//! Parses the commands of a push: read before the gate dials, judged by the push window, refused in git's own
//! format.
//!
//! A push begins with pkt-lines: `shallow <id>` lines, then `<old> <new> <ref>` lines, of which the first also
//! has the capabilities after a NUL, then a flush. A pack follows, which is passed on unread.

use coffer_core::network::{GitObject, PushWindow};
use coffer_core::pkt_line;

use super::rule::GitRule;

/// Most bytes of all lines before the pack.
const MOST_BYTES: usize = 64 * 1024;
const MOST_SHALLOW: usize = 512;

/// One line of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) old: GitObject,
    pub(crate) new: GitObject,
    pub(crate) reference: String,
}

/// The commands of a push, before its pack.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Wanted {
    pub(crate) commands: Vec<Command>,
    capabilities: Vec<String>,
}

/// Parses the lines of a push as they arrive.
#[derive(Debug, Default)]
pub(crate) struct CommandReader {
    bytes: Vec<u8>,
    read: usize,
    shallow: usize,
    wanted: Wanted,
    ended: bool,
}

impl CommandReader {
    /// Takes the next bytes; returns the commands once the last line has arrived.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Option<&Wanted>, GitRule> {
        self.bytes.extend_from_slice(bytes);
        while !self.ended {
            if self.read > MOST_BYTES {
                return Err(GitRule::Protocol);
            }
            let rest = &self.bytes[self.read..];
            let Some(length) = pkt_line::length(rest).map_err(|_| GitRule::Protocol)? else { break };
            if length == 0 {
                self.read += pkt_line::HEAD;
                self.ended = true;
                break;
            }
            // Refused before its bytes are waited for. No line of a push is empty.
            if length == pkt_line::HEAD || self.read + length > MOST_BYTES {
                return Err(GitRule::Protocol);
            }
            let Some(line) = rest.get(pkt_line::HEAD..length) else { break };
            let line = line.to_vec();
            self.read += length;
            self.line(&line)?;
        }
        Ok(self.ended.then_some(&self.wanted))
    }

    fn line(&mut self, line: &[u8]) -> Result<(), GitRule> {
        let text = std::str::from_utf8(line).map_err(|_| GitRule::Protocol)?;
        if text.starts_with("push-cert") {
            return Err(GitRule::PushCertificate);
        }
        let (text, capabilities) = match text.split_once('\0') {
            Some((text, capabilities)) => (text, Some(capabilities)),
            None => (text, None),
        };
        let text = text.strip_suffix('\n').unwrap_or(text);
        if let Some(id) = text.strip_prefix("shallow ") {
            self.shallow += 1;
            let good =
                capabilities.is_none() && self.wanted.commands.is_empty() && self.shallow <= MOST_SHALLOW;
            return if good && id.parse::<GitObject>().is_ok() { Ok(()) } else { Err(GitRule::Protocol) };
        }
        // Only the first command has capabilities.
        if capabilities.is_some() != self.wanted.commands.is_empty() {
            return Err(GitRule::Protocol);
        }
        let (old, rest) = text.split_once(' ').ok_or(GitRule::Protocol)?;
        let (new, reference) = rest.split_once(' ').ok_or(GitRule::Protocol)?;
        if reference.is_empty() || reference.contains(char::is_control) || old.len() != new.len() {
            return Err(GitRule::Protocol);
        }
        let id = |text: &str| text.parse::<GitObject>().map_err(|_| GitRule::Protocol);
        let command = Command { old: id(old)?, new: id(new)?, reference: reference.to_string() };
        self.wanted.commands.push(command);
        if let Some(capabilities) = capabilities {
            let words = capabilities.split_ascii_whitespace();
            self.wanted.capabilities = words.map(str::to_string).collect();
        }
        Ok(())
    }

    /// All received bytes, to pass on, and whether there were any after the lines.
    pub(crate) fn into_bytes(self) -> (Vec<u8>, bool) {
        let more = self.bytes.len() > self.read;
        (self.bytes, more)
    }
}

impl Wanted {
    /// Whether a window allows it.
    pub(crate) fn judge(&self, window: &PushWindow) -> Result<(), GitRule> {
        if self.has("push-options") {
            return Err(GitRule::PushOptions);
        }
        // A push without commands is git's question whether it may push at all.
        let Some(command) = self.commands.first() else { return Ok(()) };
        if self.commands.len() > 1 || command.reference != window.reference.as_str() {
            return Err(GitRule::Reference);
        }
        if command.new.is_none() {
            return Err(GitRule::Deletion);
        }
        match &window.expects {
            Some(expected) if !command.old.means(expected) => Err(GitRule::Stale),
            _ => Ok(()),
        }
    }

    fn has(&self, capability: &str) -> bool {
        self.capabilities.iter().any(|has| has == capability)
    }

    /// The report by which git shows the reason, if it asked for one.
    pub(crate) fn report(&self, why: &str) -> Option<Vec<u8>> {
        if !(self.has("report-status") || self.has("report-status-v2")) {
            return None;
        }
        let all = self.commands.iter().map(|command| (command.reference.as_str(), why.to_string()));
        let report = pkt_line::write_refusals(all);
        let banded = self.has("side-band-64k") || self.has("side-band");
        Some(if banded { pkt_line::write_band(1, &report) } else { report })
    }
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz {
    use super::*;

    /// Parses a push whole and in pieces: both give the same, and only what the window allows passes.
    pub(crate) fn commands(data: &[u8]) {
        let Some((piece, bytes)) = data.split_first() else { return };
        let window = PushWindow {
            reference: "refs/heads/task-1".parse().expect("a ref"),
            expects: Some("0".repeat(40).parse().expect("an id")),
            until_ms: 0,
        };
        let mut whole = CommandReader::default();
        let at_once = whole.push(bytes).map(|wanted| wanted.cloned());
        let mut reader = CommandReader::default();
        let mut in_pieces = Ok(None);
        for part in bytes.chunks(usize::from(*piece).max(1)) {
            in_pieces = reader.push(part).map(|wanted| wanted.cloned());
            if in_pieces != Ok(None) {
                break;
            }
        }
        assert_eq!(at_once, in_pieces, "pieces of {piece} read otherwise");
        if let Ok(Some(wanted)) = &at_once
            && wanted.judge(&window).is_ok()
        {
            assert!(wanted.commands.len() <= 1);
            for command in &wanted.commands {
                assert_eq!(command.reference, "refs/heads/task-1");
                assert!(command.old.is_none() && !command.new.is_none());
                let line = format!("{} {} refs/heads/task-1", command.old, command.new);
                let there = bytes.windows(line.len()).any(|window| window == line.as_bytes());
                assert!(there, "a command was made up");
            }
            let (sent, _) = whole.into_bytes();
            assert_eq!(sent, bytes, "what is sent on is what came");
        }
        if let Ok(Some(wanted)) = &at_once {
            let _ = wanted.report("why");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "1111111111111111111111111111111111111111";
    const NEW: &str = "2222222222222222222222222222222222222222";
    const NONE: &str = "0000000000000000000000000000000000000000";

    fn push(lines: &[String]) -> Vec<u8> {
        let mut bytes = Vec::new();
        lines.iter().for_each(|line| pkt_line::write(&mut bytes, line.as_bytes()));
        bytes.extend(b"0000PACK");
        bytes
    }

    fn command(old: &str, new: &str, reference: &str, capabilities: &str) -> String {
        format!("{old} {new} {reference}\0 {capabilities}")
    }

    fn window(expects: Option<&str>) -> PushWindow {
        PushWindow {
            reference: "refs/heads/task-1".parse().unwrap(),
            expects: expects.map(|id| id.parse().unwrap()),
            until_ms: 0,
        }
    }

    fn judged(lines: &[String], expects: Option<&str>) -> Result<(), GitRule> {
        let mut reader = CommandReader::default();
        let wanted = reader.push(&push(lines))?.expect("all of it is there");
        wanted.judge(&window(expects))
    }

    #[test]
    fn one_command_for_the_windows_ref_passes() {
        let caps = "report-status-v2 side-band-64k object-format=sha1 agent=git/2.47";
        let good = [command(OLD, NEW, "refs/heads/task-1", caps)];
        assert_eq!(judged(&good, Some(OLD)), Ok(()));
        assert_eq!(judged(&good, None), Ok(()), "force was allowed");
        assert_eq!(judged(&good, Some(NONE)), Err(GitRule::Stale));
        let new = [command(NONE, NEW, "refs/heads/task-1", caps)];
        assert_eq!(judged(&new, Some(&"0".repeat(64))), Ok(()));
        let shallow = [format!("shallow {OLD}\n"), good[0].clone()];
        assert_eq!(judged(&shallow, Some(OLD)), Ok(()));
        assert_eq!(judged(&[], Some(OLD)), Ok(()), "git asks first whether it may");
    }

    #[test]
    fn all_else_is_refused_by_its_rule() {
        let line = |old, new, reference| command(old, new, reference, "report-status");
        let second = |reference: &str| format!("{OLD} {NEW} {reference}");
        let ours = "refs/heads/task-1";
        for (lines, rule) in [
            (vec![line(OLD, NEW, "refs/heads/main")], GitRule::Reference),
            (vec![line(OLD, NEW, "refs/heads/task-1/")], GitRule::Reference),
            (vec![line(OLD, NEW, "refs/heads/task-1 ")], GitRule::Reference),
            (vec![line(OLD, NEW, ours), second("refs/heads/main")], GitRule::Reference),
            (vec![line(OLD, NEW, ours), second(ours)], GitRule::Reference),
            (vec![line(OLD, NONE, ours)], GitRule::Deletion),
            (vec![command(OLD, NEW, ours, "push-options")], GitRule::PushOptions),
            (vec!["push-cert\0report-status\n".to_string()], GitRule::PushCertificate),
            (vec![second(ours)], GitRule::Protocol),
            (vec![line(OLD, NEW, ours), line(OLD, NEW, ours)], GitRule::Protocol),
            (vec![line(OLD, &NEW.to_uppercase().replace('2', "A"), ours)], GitRule::Protocol),
            (vec![format!("{OLD} {NEW}\0")], GitRule::Protocol),
            (vec![format!("shallow {OLD}\0 push-options")], GitRule::Protocol),
            (vec![line(OLD, NEW, ours), format!("shallow {OLD}")], GitRule::Protocol),
        ] {
            assert_eq!(judged(&lines, Some(OLD)), Err(rule), "{lines:?}");
        }
    }

    #[test]
    fn lengths_that_lie_and_floods_are_refused() {
        for bad in [&b"0001"[..], b"0002", b"0003", b"0004", b"fffg", b"-001", b"ffff", b" 00a"] {
            let bytes = [bad, &[b'x'; 70_000]].concat();
            assert_eq!(CommandReader::default().push(&bytes), Err(GitRule::Protocol), "{bad:?}");
        }
        let many: Vec<String> = (0..2000).map(|at| format!("shallow {at:040x}")).collect();
        assert_eq!(CommandReader::default().push(&push(&many)), Err(GitRule::Protocol));
        let mut slow = CommandReader::default();
        let (whole, last) = (push(&[command(OLD, NEW, "refs/heads/task-1", "")]), b"PACK".len() + 1);
        for byte in &whole[..whole.len() - last] {
            assert_eq!(slow.push(&[*byte]), Ok(None));
        }
        assert_eq!(slow.push(b"0").map(|wanted| wanted.is_some()), Ok(true));
    }

    #[test]
    fn a_refusal_is_a_report_of_gits_own() {
        let mut reader = CommandReader::default();
        let bytes = push(&[command(OLD, NEW, "refs/heads/x", "report-status side-band-64k")]);
        let wanted = reader.push(&bytes).unwrap().unwrap().clone();
        let report = String::from_utf8(wanted.report("no").unwrap()).unwrap();
        assert!(
            report.contains("\u{1}000eunpack ok\n") && report.contains("ng refs/heads/x no\n"),
            "{report:?}"
        );
        let (sent, more) = reader.into_bytes();
        assert!(sent == bytes && more);
        assert_eq!(Wanted::default().report("no"), None);
    }
}
