//! Records refusals: what, when, and by which rule.

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;

use coffer_core::Millis;
use coffer_core::network::{HostName, Refusal, Refusals, RefusedKind, Rule};

use crate::gate::GitRule;

/// A refusal before it has a number and a time.
#[derive(Debug, Clone)]
pub(crate) struct Refused {
    pub(crate) kind: RefusedKind,
    pub(crate) name: Option<HostName>,
    pub(crate) address: Option<IpAddr>,
    pub(crate) port: Option<u16>,
}

impl Refused {
    pub(crate) fn question(name: Option<HostName>) -> Self {
        Self { kind: RefusedKind::Question, name, address: None, port: None }
    }
}

/// Why something was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cause {
    Rule(Rule),
    /// The sandbox has reached its limit of connections.
    ConnectionLimit,
    /// The project has used up its share of the machine's connections.
    ProjectConnectionLimit,
    /// The machine has reached its limit of connections.
    TotalConnectionLimit,
    QuestionLimit,
    /// The destination of the connection is unknown.
    NoDestination,
    NotAHostName,
    /// The name that allowed the connection has no allowed address now.
    NameWithoutAddress,
    /// The connection needs a secret, for headers or a proxy's password, that is not known yet.
    SecretsUnknown,
    /// It used another proxy than allowed connections use now.
    ProxyChanged,
    /// A connection to a package mirror did not say the mirror's name.
    NotTheMirror,
    /// By the git gate.
    Git(GitRule),
    /// The sandbox has no way to the model gateway, or no longer.
    NoModels,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => write!(f, "{rule}"),
            Self::ConnectionLimit => f.write_str("limit:connections"),
            Self::ProjectConnectionLimit => f.write_str("limit:connections-of-project"),
            Self::TotalConnectionLimit => f.write_str("limit:connections-of-host"),
            Self::QuestionLimit => f.write_str("limit:questions"),
            Self::NoDestination => f.write_str("no-destination"),
            Self::NotAHostName => f.write_str("not-a-host-name"),
            Self::NameWithoutAddress => f.write_str("name-without-address"),
            Self::SecretsUnknown => f.write_str("secrets-unknown"),
            Self::ProxyChanged => f.write_str("proxy-changed"),
            Self::NotTheMirror => f.write_str("mirror:other-name"),
            Self::Git(rule) => write!(f, "{rule}"),
            Self::NoModels => f.write_str("models:closed"),
        }
    }
}

/// Keeps the latest refusals; a flood drops the oldest.
#[derive(Debug)]
pub(crate) struct Ring {
    kept: VecDeque<Refusal>,
    most: usize,
    total: u64,
}

impl Ring {
    pub(crate) fn new(most: usize) -> Self {
        Self { kept: VecDeque::new(), most, total: 0 }
    }

    pub(crate) fn push(&mut self, refused: Refused, cause: &Cause, at_ms: Millis) {
        self.total += 1;
        if self.kept.len() >= self.most {
            self.kept.pop_front();
        }
        let Refused { kind, name, address, port } = refused;
        let rule = cause.to_string();
        self.kept.push_back(Refusal { sequence: self.total, at_ms, kind, name, address, port, rule });
    }

    /// Those with a sequence above `after`.
    pub(crate) fn after(&self, after: u64) -> Refusals {
        let refusals: Vec<Refusal> = self.kept.iter().filter(|kept| kept.sequence > after).cloned().collect();
        let asked = self.total.saturating_sub(after);
        Refusals { forgotten: asked - refusals.len() as u64, refusals, total: self.total }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_keeps_the_latest_and_says_what_it_forgot() {
        let mut ring = Ring::new(3);
        for at_ms in 1..=5 {
            ring.push(Refused::question(None), &Cause::QuestionLimit, at_ms);
        }
        let all = ring.after(0);
        assert_eq!(all.refusals.iter().map(|r| r.sequence).collect::<Vec<_>>(), [3, 4, 5]);
        assert_eq!((all.total, all.forgotten), (5, 2));
        let new = ring.after(4);
        assert_eq!((new.refusals.len(), new.forgotten), (1, 0));
        assert_eq!(ring.after(9), Refusals { refusals: vec![], total: 5, forgotten: 0 });
        let written = serde_json::to_value(&new.refusals[0]).unwrap();
        assert_eq!(
            written,
            serde_json::json!({"sequence": 5, "at_ms": 5, "kind": "question", "rule": "limit:questions"})
        );
        assert_eq!(serde_json::from_value::<Refusal>(written).unwrap(), new.refusals[0]);
    }
}
