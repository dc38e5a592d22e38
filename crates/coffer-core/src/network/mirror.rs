//! Hosts of package mirrors, which sandboxes may reach at private addresses because the operator names them.
//!
//! A sandbox never learns where a mirror is. Its DNS answer for a mirror is a *stand-in*: an address that no
//! host has, one for each mirror. Egress dials a connection to a stand-in by the mirror's name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

use super::{HostName, normalise};

/// The first two bytes of every stand-in: the second half of the block for benchmarks, which nobody routes.
const BLOCK: [u8; 2] = [198, 19];

/// One host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mirror {
    /// The name by which sandboxes know it.
    pub name: HostName,
    /// Its ports; all others stay closed.
    pub ports: BTreeSet<u16>,
    /// Its address, if the operator named one. Otherwise egress looks up its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
}

/// The mirrors of an installation, each with its stand-in.
///
/// A stand-in follows from the name, so a changed list seldom moves the others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Mirror>", into = "Vec<Mirror>")]
pub struct Mirrors(BTreeMap<Ipv4Addr, Mirror>);

/// More mirrors than any installation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("at most {} hosts can be mirrors", Mirrors::MOST)]
pub struct TooManyMirrors;

impl Mirrors {
    /// The most hosts.
    pub const MOST: usize = 64;

    /// Gives each host its stand-in. A host that is named twice has the ports of both.
    pub fn new(hosts: impl IntoIterator<Item = Mirror>) -> Result<Self, TooManyMirrors> {
        let mut named: BTreeMap<HostName, Mirror> = BTreeMap::new();
        for Mirror { name, ports, address } in hosts {
            let known = named.entry(name.clone()).or_insert(Mirror { name, ports: BTreeSet::new(), address });
            known.ports.extend(ports);
            known.address = known.address.or(address);
        }
        if named.len() > Self::MOST {
            return Err(TooManyMirrors);
        }
        let mut stand_ins = BTreeMap::new();
        for mirror in named.into_values() {
            let mut number = hash(mirror.name.as_str());
            while stand_ins.contains_key(&stand_in(number)) {
                number = number.wrapping_add(1);
            }
            stand_ins.insert(stand_in(number), mirror);
        }
        Ok(Self(stand_ins))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The mirrors, in no order that matters.
    pub fn iter(&self) -> impl Iterator<Item = &Mirror> {
        self.0.values()
    }

    /// The mirror of this name, and its stand-in.
    pub fn named(&self, name: &HostName) -> Option<(Ipv4Addr, &Mirror)> {
        self.0.iter().find(|(_, mirror)| mirror.name == *name).map(|(stand_in, mirror)| (*stand_in, mirror))
    }

    /// The mirror that `address` stands in for, if `port` is one of its ports.
    pub fn at(&self, address: IpAddr, port: u16) -> Option<&Mirror> {
        let IpAddr::V4(stand_in) = normalise(address) else { return None };
        self.0.get(&stand_in).filter(|mirror| mirror.ports.contains(&port))
    }
}

impl TryFrom<Vec<Mirror>> for Mirrors {
    type Error = TooManyMirrors;

    fn try_from(hosts: Vec<Mirror>) -> Result<Self, TooManyMirrors> {
        Self::new(hosts)
    }
}

impl From<Mirrors> for Vec<Mirror> {
    fn from(mirrors: Mirrors) -> Self {
        mirrors.0.into_values().collect()
    }
}

fn stand_in(number: u16) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(BLOCK[0], BLOCK[1], high, low)
}

/// FNV-1a, folded: it only has to spread names.
fn hash(text: &str) -> u16 {
    let hash =
        text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let [a, b, c, d] = hash.to_be_bytes();
    u16::from_be_bytes([a ^ c, b ^ d])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{Class, classify};

    fn mirror(name: &str, ports: &[u16]) -> Mirror {
        Mirror { name: name.parse().unwrap(), ports: ports.iter().copied().collect(), address: None }
    }

    #[test]
    fn each_host_has_one_stand_in_that_depends_on_its_name() {
        let all: Vec<Mirror> = (0..Mirrors::MOST).map(|n| mirror(&format!("m{n}.test"), &[443])).collect();
        let mirrors = Mirrors::new(all.clone()).unwrap();
        assert_eq!(mirrors.iter().count(), Mirrors::MOST, "no two share one");
        let mut moved = 0;
        for one in &all {
            let (stand_in, found) = mirrors.named(&one.name).unwrap();
            assert_eq!((found, classify(stand_in.into())), (one, Class::Benchmarking));
            assert_eq!(mirrors.at(stand_in.into(), 443), Some(one));
            assert_eq!(mirrors.at(stand_in.to_ipv6_mapped().into(), 443), Some(one));
            assert_eq!(mirrors.at(stand_in.into(), 80), None, "ports are exact");
            let alone = Mirrors::new([one.clone()]).unwrap();
            moved += usize::from(alone.named(&one.name).unwrap().0 != stand_in);
        }
        assert!(moved <= 2, "{moved}");
        assert_eq!(mirrors.at("10.0.0.1".parse().unwrap(), 443), None);
        let one_more = all.into_iter().chain([mirror("more.test", &[1])]);
        assert_eq!(Mirrors::new(one_more), Err(TooManyMirrors));
    }

    #[test]
    fn a_host_that_is_named_twice_has_the_ports_of_both() {
        let mirrors = Mirrors::new([mirror("a.test", &[80]), mirror("A.test.", &[443])]).unwrap();
        assert_eq!(mirrors.named(&"a.test".parse().unwrap()).unwrap().1, &mirror("a.test", &[80, 443]));
        assert!(mirrors.named(&"b.a.test".parse().unwrap()).is_none());
    }

    #[test]
    fn mirrors_survive_json() {
        let at = Mirror { address: "10.0.0.1".parse().ok(), ..mirror("b.test", &[8080]) };
        let mirrors = Mirrors::new([mirror("a.test", &[80]), at]).unwrap();
        let text = serde_json::to_string(&mirrors).unwrap();
        assert_eq!(serde_json::from_str::<Mirrors>(&text).unwrap(), mirrors);
    }
}
