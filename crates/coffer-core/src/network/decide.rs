//! Decides connections, and names the rule.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Base, Block, Class, Entry, HostName, Policy, Ports, Target, Walls};

/// The destination of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// The name in the connection (SNI, `Host`), if any.
    pub name: Option<HostName>,
    pub address: IpAddr,
    pub port: u16,
}

/// The rule that decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// No policy opens addresses of this class.
    Never(Class),
    /// An entry of the allow list.
    Allow(Entry),
    /// An entry of the deny list.
    Deny(Entry),
    /// The base: no list matched.
    Base(Base),
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never(class) => write!(f, "never:{class}"),
            Self::Allow(entry) => write!(f, "allow:{entry}"),
            Self::Deny(entry) => write!(f, "deny:{entry}"),
            Self::Base(base) => write!(f, "base:{base}"),
        }
    }
}

/// Allowed or denied, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Allow { rule: Rule },
    Refuse { rule: Rule },
}

impl Decision {
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow { .. })
    }

    /// Returns whether the name allowed it, so that we must look up the address and not use the sandbox's.
    pub fn is_allowed_by_name(&self) -> bool {
        matches!(self, Self::Allow { rule: Rule::Allow(entry) } if entry.is_name())
    }
}

/// Decides one connection. Walls come first, then the allow list, the deny list, and the base.
///
/// If address and name are both allowed, the rule for the address is returned: it needs no lookup.
pub fn decide(policy: &Policy, walls: &Walls, destination: &Destination) -> Decision {
    let Destination { name, address, port } = destination;
    let address = match walls.pass(*address) {
        Ok(address) => address,
        Err(class) => return Decision::Refuse { rule: Rule::Never(class) },
    };
    let by_address = |entry: &&Entry| entry.matches_address(address, *port);
    let by_name = |entry: &&Entry| name.as_ref().is_some_and(|name| entry.matches_name(name, *port));
    let find = |list: &[Entry]| list.iter().find(by_address).or_else(|| list.iter().find(by_name)).cloned();
    if let Some(entry) = find(policy.allow()) {
        return Decision::Allow { rule: Rule::Allow(entry) };
    }
    if let Some(entry) = find(policy.deny()) {
        return Decision::Refuse { rule: Rule::Deny(entry) };
    }
    let rule = Rule::Base(policy.base());
    if policy.base().opens(*port) { Decision::Allow { rule } } else { Decision::Refuse { rule } }
}

/// Returns whether a name could change the result of [`decide`] for an address and port, so that waiting for
/// it is worthwhile.
pub fn needs_name(policy: &Policy, walls: &Walls, address: IpAddr, port: u16) -> bool {
    let names = |list: &[Entry]| list.iter().any(|entry| entry.is_name() && entry.ports.contains(port));
    match decide(policy, walls, &Destination { name: None, address, port }) {
        Decision::Refuse { rule: Rule::Never(_) } => false,
        // Headers need a name.
        Decision::Allow { .. } if policy.has_headers_at(port) => true,
        Decision::Allow { rule: Rule::Base(_) } => names(policy.deny()),
        Decision::Allow { .. } => false,
        Decision::Refuse { .. } => names(policy.allow()),
    }
}

/// Decides whether the addresses of `name` may be looked up.
///
/// A DNS question leaves the machine and can carry a secret in its name, so a name that no connection could
/// use is not looked up: if everything is denied, only names of the allow list are.
pub fn may_ask(policy: &Policy, name: &HostName) -> Decision {
    let about = |entry: &&Entry| matches!(&entry.target, Target::Name(pattern) if pattern.matches(name));
    if let Some(entry) = policy.allow().iter().find(about) {
        return Decision::Allow { rule: Rule::Allow(entry.clone()) };
    }
    let mut for_all_ports = policy.deny().iter().filter(|entry| entry.ports == Ports::ALL);
    if let Some(entry) = for_all_ports.clone().find(about) {
        return Decision::Refuse { rule: Rule::Deny(entry.clone()) };
    }
    let rule = Rule::Base(policy.base());
    if policy.base() == Base::None {
        return Decision::Refuse { rule };
    }
    let denied = |block| for_all_ports.clone().find(|entry| entry.target == Target::Block(block));
    if let (Some(entry), Some(_)) = (denied(Block::ALL_V4), denied(Block::ALL_V6)) {
        return Decision::Refuse { rule: Rule::Deny(entry.clone()) };
    }
    if let Some(entry) = for_all_ports.find(|entry| entry.target == Target::Anything) {
        return Decision::Refuse { rule: Rule::Deny(entry.clone()) };
    }
    Decision::Allow { rule }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
