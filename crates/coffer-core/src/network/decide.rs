//! Decides connections, and names the rule.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

use super::{Base, Block, Class, Entry, HostName, Mirror, Policy, Ports, Target, Walls};

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
///
/// A connection to the stand-in of a mirror is judged by the mirror's name, as `decide_mirror` says.
pub fn decide(policy: &Policy, walls: &Walls, destination: &Destination) -> Decision {
    let Destination { name, address, port } = destination;
    if let Some(mirror) = walls.mirrors().at(*address, *port) {
        return decide_mirror(policy, mirror, *address, *port);
    }
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

/// Decides a connection to one of the operator's mirrors, at one of its ports.
///
/// An entry of the deny list that names the mirror wins, even over the allow list. Every base but `none` opens
/// a mirror at its own ports, whatever they are. Entries that are blocks of addresses see the stand-in: the
/// real address is unknown to whoever wrote them.
fn decide_mirror(policy: &Policy, mirror: &Mirror, stand_in: IpAddr, port: u16) -> Decision {
    let by_name = |entry: &&Entry| entry.matches_name(&mirror.name, port);
    let by_address = |entry: &&Entry| entry.matches_address(stand_in, port);
    if let Some(entry) = policy.deny().iter().find(by_name) {
        return Decision::Refuse { rule: Rule::Deny(entry.clone()) };
    }
    let allow = policy.allow();
    if let Some(entry) = allow.iter().find(by_name).or_else(|| allow.iter().find(by_address)) {
        return Decision::Allow { rule: Rule::Allow(entry.clone()) };
    }
    if let Some(entry) = policy.deny().iter().find(by_address) {
        return Decision::Refuse { rule: Rule::Deny(entry.clone()) };
    }
    let rule = Rule::Base(policy.base());
    if policy.base() == Base::None { Decision::Refuse { rule } } else { Decision::Allow { rule } }
}

/// Returns the stand-in of the mirror called `name`, and whether the sandbox may know it: it may, if it may
/// connect to any port of the mirror. `None` if no mirror has this name.
pub fn may_ask_mirror(policy: &Policy, walls: &Walls, name: &HostName) -> Option<(Ipv4Addr, Decision)> {
    let (stand_in, mirror) = walls.mirrors().named(name)?;
    let mut decisions = mirror.ports.iter().map(|port| decide_mirror(policy, mirror, stand_in.into(), *port));
    let first = decisions.next()?;
    let allowed = if first.is_allowed() { None } else { decisions.find(Decision::is_allowed) };
    Some((stand_in, allowed.unwrap_or(first)))
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
