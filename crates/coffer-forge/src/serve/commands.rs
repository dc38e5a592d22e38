//! The commands of a push: which refs change to what.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use coffer_core::forge::{BranchName, CommitId, ProtectionRules};
use coffer_core::pkt_line::{self, Packet};
use futures_util::StreamExt;

use crate::ForgeError;
use crate::forge::GitAccess;

use super::inflate::Inflate;

const MOST_COMMANDS: usize = 1000;
const LONGEST: usize = 512 * 1024;

/// A ref to change, create or delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) old: CommitId,
    pub(crate) new: CommitId,
    pub(crate) name: String,
}

impl Command {
    pub(crate) fn branch(&self) -> Option<BranchName> {
        self.name.strip_prefix("refs/heads/").and_then(|name| name.parse().ok())
    }

    pub(crate) fn is_branch(&self, branch: &BranchName) -> bool {
        self.name.strip_prefix("refs/heads/") == Some(branch.as_str())
    }

    /// Why it is refused without further checks.
    fn flaw(&self) -> Option<&'static str> {
        let kinds = ["refs/heads/", "refs/tags/", "refs/notes/"];
        let rest = kinds.iter().find_map(|kind| self.name.strip_prefix(kind));
        match rest.map(str::parse::<BranchName>) {
            None => Some("only branches, tags and notes can be pushed"),
            Some(Err(_)) => Some("the name is not allowed"),
            Some(Ok(_)) if self.old.is_zero() && self.new.is_zero() => {
                Some("both its old and its new commit are zero")
            }
            Some(Ok(_)) => None,
        }
    }
}

/// All commands of a push, and the format of the report.
#[derive(Debug)]
pub(crate) struct Commands {
    pub(crate) all: Vec<Command>,
    pub(crate) reports: bool,
    side_band: bool,
}

impl Commands {
    /// Parses the commands; returns the bytes read, to pass on. `None` if there is no command.
    pub(crate) async fn read(
        body: &mut Inflate,
        silence: Duration,
    ) -> Result<(Option<Self>, Bytes), ForgeError> {
        let mut taken = BytesMut::new();
        let mut at = 0;
        let mut lines = Vec::new();
        loop {
            while let Some((packet, rest)) = pkt_line::split(&taken[at..])
                .map_err(|_| ForgeError::invalid("the push", "is not in git's protocol"))?
            {
                at = taken.len() - rest.len();
                match packet {
                    Packet::Data(line) => lines.push(line.to_vec()),
                    Packet::Flush => {
                        body.unread(taken.split_off(at).freeze());
                        return Ok((Self::parse(&lines)?, taken.freeze()));
                    }
                }
                if lines.len() > MOST_COMMANDS {
                    let why = format!("changes more than {MOST_COMMANDS} refs at once");
                    return Err(ForgeError::invalid("the push", why));
                }
            }
            if taken.len() > LONGEST {
                return Err(ForgeError::invalid("the push", "has too long a list of refs"));
            }
            let piece = tokio::time::timeout(silence, body.next()).await;
            let piece = piece.map_err(|_| ForgeError::invalid("the push", "did not arrive in time"))?;
            match piece {
                Some(Ok(piece)) => taken.extend_from_slice(&piece),
                Some(Err(why)) => {
                    return Err(ForgeError::invalid("the push", format!("cannot be read: {why}")));
                }
                None if taken.is_empty() => return Ok((None, Bytes::new())),
                None => return Err(ForgeError::invalid("the push", "ended too early")),
            }
        }
    }

    fn parse(lines: &[Vec<u8>]) -> Result<Option<Self>, ForgeError> {
        let bad = || ForgeError::invalid("the push", "has an unknown command");
        let (mut all, mut capabilities) = (Vec::new(), String::new());
        for line in lines {
            let (line, more) = match line.iter().position(|&byte| byte == 0) {
                Some(end) => (&line[..end], String::from_utf8_lossy(&line[end + 1..]).into_owned()),
                None => (&line[..], String::new()),
            };
            // As git does: capabilities of any line count for all.
            capabilities = [&capabilities, " ", &more].concat();
            let text = std::str::from_utf8(line).map_err(|_| bad())?;
            let text = text.strip_suffix('\n').unwrap_or(text);
            if text.starts_with("shallow ") {
                continue;
            }
            let mut parts = text.splitn(3, ' ');
            let (Some(old), Some(new), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
                return Err(bad());
            };
            let (old, new) = (old.parse().map_err(|_| bad())?, new.parse().map_err(|_| bad())?);
            all.push(Command { old, new, name: name.to_string() });
        }
        let able = |wanted: &str| capabilities.split_whitespace().any(|known| known == wanted);
        let reports = able("report-status") || able("report-status-v2");
        Ok((!all.is_empty()).then(|| Self { all, reports, side_band: able("side-band-64k") }))
    }

    /// Whether a pack follows.
    pub(crate) fn brings_objects(&self) -> bool {
        self.all.iter().any(|command| !command.new.is_zero())
    }

    /// Which refs may not be changed, and why.
    pub(crate) fn refusals(
        &self,
        protections: &[(BranchName, ProtectionRules)],
        access: Option<&GitAccess>,
    ) -> BTreeMap<String, String> {
        let mut refusals = BTreeMap::new();
        for command in &self.all {
            let guard = protections.iter().find(|(branch, _)| command.is_branch(branch));
            let why = match (command.flaw(), access, guard) {
                (Some(flaw), _, _) => flaw.to_string(),
                (_, Some(GitAccess::Fetch), _) => "this password is only for fetching".to_string(),
                (_, Some(GitAccess::Push(branch)), _) if !command.is_branch(branch) => {
                    format!("this password is only for branch {branch}")
                }
                (_, Some(GitAccess::PushAny(all)), _)
                    if !all.iter().any(|branch| command.is_branch(branch)) =>
                {
                    "an agent's key can push only to the branches of its own tasks".to_string()
                }
                (_, Some(GitAccess::Push(_) | GitAccess::PushAny(_)), _) if command.new.is_zero() => {
                    "this credential cannot delete branches".to_string()
                }
                (_, _, Some((_, rules))) if rules.require_pull && !command.old.is_zero() => {
                    "protected branch: open a pull request".to_string()
                }
                (_, _, Some(_)) if command.new.is_zero() => {
                    "protected branch: it cannot be deleted".to_string()
                }
                _ => continue,
            };
            refusals.insert(command.name.clone(), why);
        }
        refusals
    }

    /// Git's report that nothing was done, and why.
    pub(crate) fn refused(&self, why: impl Fn(&str) -> String) -> Bytes {
        let all = self.all.iter().map(|command| (command.name.as_str(), why(&command.name)));
        let report = pkt_line::write_refusals(all);
        if self.side_band { pkt_line::write_band(1, &report).into() } else { report.into() }
    }

    /// Git's messages for people in its report.
    pub(crate) fn said(&self, report: &[u8]) -> String {
        let said = if self.side_band { pkt_line::read_band(2, report) } else { report.to_vec() };
        String::from_utf8_lossy(&said).into_owned()
    }

    /// Which refs changed, by git's report.
    pub(crate) fn moved(&self, report: &[u8]) -> Vec<&Command> {
        let inner = if self.side_band { pkt_line::read_band(1, report) } else { report.to_vec() };
        let good: Vec<String> = pkt_line::lines(&inner)
            .filter_map(|line| {
                let line = String::from_utf8_lossy(line).into_owned();
                line.strip_prefix("ok ").map(|name| name.trim_end_matches('\n').to_string())
            })
            .collect();
        self.all.iter().filter(|command| good.contains(&command.name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "1111111111111111111111111111111111111111";
    const B: &str = "2222222222222222222222222222222222222222";
    const ZERO: &str = "0000000000000000000000000000000000000000";

    async fn read(bytes: &[u8], piece: usize) -> Result<(Option<Commands>, Bytes, Vec<u8>), ForgeError> {
        let pieces: Vec<_> = bytes.chunks(piece).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        let mut body = Inflate::new(futures_util::stream::iter(pieces).boxed(), false, 1 << 20);
        let (commands, first) = Commands::read(&mut body, Duration::from_secs(5)).await?;
        let mut rest = Vec::new();
        while let Some(Ok(piece)) = body.next().await {
            rest.extend_from_slice(&piece);
        }
        Ok((commands, first, rest))
    }

    fn request(lines: &[String]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for line in lines {
            pkt_line::write(&mut bytes, line.as_bytes());
        }
        bytes.extend_from_slice(pkt_line::FLUSH);
        bytes
    }

    #[tokio::test]
    async fn commands_are_read_whatever_the_pieces_and_the_rest_is_left() {
        let lines = [
            format!("{A} {B} refs/heads/main\0 report-status side-band-64k agent=git/2"),
            format!("{ZERO} {B} refs/tags/v1"),
        ];
        let mut bytes = request(&lines);
        let head = bytes.len();
        bytes.extend_from_slice(b"PACK and so on");
        for piece in [1, 3, 50, 4096] {
            let (commands, first, rest) = read(&bytes, piece).await.unwrap();
            let commands = commands.unwrap();
            assert_eq!((first.len(), &rest[..]), (head, &b"PACK and so on"[..]));
            let names: Vec<_> = commands.all.iter().map(|command| &*command.name).collect();
            assert_eq!(names, ["refs/heads/main", "refs/tags/v1"]);
            assert!(commands.reports && commands.side_band);
        }
        assert!(read(b"0000", 4).await.unwrap().0.is_none());
        for bad in [&b"zzzz"[..], b"0003", b"+008abcd0000", b"0008abcd0000", b"00", b"0010no commands.0000"] {
            assert!(read(bad, 2).await.is_err(), "{bad:?}");
        }
    }

    #[tokio::test]
    async fn capabilities_count_wherever_git_reads_them() {
        let line = |name: &str, more: &str| {
            let line = format!("{ZERO} {A} refs/heads/{name}\0{more}");
            format!("{:04x}{line}", line.len() + 4)
        };
        let push = [line("a", "report-status"), line("b", "side-band-64k"), "0000".into()].concat();
        let (commands, ..) = read(push.as_bytes(), 64).await.unwrap();
        let commands = commands.unwrap();
        assert!(commands.reports && commands.side_band, "git would answer on a side band");
    }

    fn commands(lines: &[(&str, &str, &str)]) -> Commands {
        let command = |(old, new, name): &(&str, &str, &str)| Command {
            old: old.parse().unwrap(),
            new: new.parse().unwrap(),
            name: name.to_string(),
        };
        Commands { all: lines.iter().map(command).collect(), reports: true, side_band: true }
    }

    #[test]
    fn bad_refs_and_protected_branches_are_refused() {
        let main: BranchName = "main".parse().unwrap();
        let strict = [(main.clone(), ProtectionRules::default())];
        for bad in [
            "HEAD",
            "refs/pull/1/head",
            "refs/heads/",
            "refs/heads/../x",
            "refs/heads/-x",
            "refs/heads/a b",
            "main",
            "refs/heads/a\u{7}",
            "refs/x/y",
            "refs/heads/a.lock",
        ] {
            let refused = commands(&[(ZERO, A, bad)]).refusals(&[], None);
            assert!(refused.contains_key(bad), "{bad}");
        }
        assert!(
            commands(&[(ZERO, A, "refs/heads/main")]).refusals(&strict, None).is_empty(),
            "the first push"
        );
        assert_eq!(commands(&[(A, B, "refs/heads/main")]).refusals(&strict, None).len(), 1);
        assert_eq!(commands(&[(A, ZERO, "refs/heads/main")]).refusals(&strict, None).len(), 1);
        assert!(commands(&[(A, B, "refs/heads/mainly")]).refusals(&strict, None).is_empty());
        let open = [(main, ProtectionRules { require_pull: false, ..ProtectionRules::default() })];
        assert!(commands(&[(A, B, "refs/heads/main")]).refusals(&open, None).is_empty());
        assert_eq!(commands(&[(A, ZERO, "refs/heads/main")]).refusals(&open, None).len(), 1);
        let pass = GitAccess::Push("task-1".parse().unwrap());
        assert!(commands(&[(A, B, "refs/heads/task-1")]).refusals(&[], Some(&pass)).is_empty());
        for (new, name) in [(B, "refs/heads/task-12"), (B, "refs/tags/task-1"), (ZERO, "refs/heads/task-1")] {
            assert_eq!(commands(&[(A, new, name)]).refusals(&[], Some(&pass)).len(), 1, "{name}");
        }
        assert_eq!(commands(&[(A, B, "refs/heads/x")]).refusals(&[], Some(&GitAccess::Fetch)).len(), 1);
    }

    #[test]
    fn a_report_reads_back() {
        let push = commands(&[(A, B, "refs/heads/a"), (A, B, "refs/heads/b")]);
        let refused = push.refused(|name| format!("no {name}"));
        assert!(push.moved(&refused).is_empty());
        assert!(String::from_utf8_lossy(&refused).contains("ng refs/heads/b no refs/heads/b\n"));
        let (mut report, mut banded) = (Vec::new(), Vec::new());
        for line in ["unpack ok\n", "ok refs/heads/b\n", "ng refs/heads/a fetch first\n"] {
            pkt_line::write(&mut report, line.as_bytes());
        }
        report.extend_from_slice(pkt_line::FLUSH);
        pkt_line::write(&mut banded, b"\x02progress");
        pkt_line::write(&mut banded, &[&[1][..], &report].concat());
        let moved = push.moved(&banded);
        assert_eq!(moved.iter().map(|command| &*command.name).collect::<Vec<_>>(), ["refs/heads/b"]);
    }
}
