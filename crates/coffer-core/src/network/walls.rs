//! Addresses that no policy opens.

use std::collections::HashSet;
use std::net::IpAddr;

use super::{Class, Mirror, Mirrors, classify, normalise, pass_on_site};

/// Addresses that no policy opens: all that are not public, and this machine's own. The only way through are
/// the operator's mirrors, by their stand-ins.
#[derive(Debug, Clone, Default)]
pub struct Walls {
    own: HashSet<IpAddr>,
    mirrors: Mirrors,
}

impl Walls {
    /// Creates the walls of a machine with the addresses `own`.
    pub fn new(own: impl IntoIterator<Item = IpAddr>) -> Self {
        Self { own: own.into_iter().map(normalise).collect(), mirrors: Mirrors::default() }
    }

    /// The same, with the operator's mirrors.
    #[must_use]
    pub fn with_mirrors(mut self, mirrors: Mirrors) -> Self {
        self.mirrors = mirrors;
        self
    }

    pub fn mirrors(&self) -> &Mirrors {
        &self.mirrors
    }

    /// Returns an address that egress found for `mirror` in the form to dial, or the class that forbids it.
    ///
    /// A mirror that is known by its name may be private, but is never this machine: a resolver could otherwise
    /// lead sandboxes to the services of this host. A mirror may be this machine only if the operator wrote the
    /// address itself. Addresses of cloud credentials, and those that are not hosts, never pass.
    pub fn pass_mirror(&self, mirror: &Mirror, address: IpAddr) -> Result<IpAddr, Class> {
        let address = pass_as_mirror(address)?;
        match mirror.address {
            Some(_) => Ok(address),
            None if self.own.contains(&address) => Err(Class::Host),
            None if classify(address) == Class::Loopback => Err(Class::Loopback),
            None => Ok(address),
        }
    }

    /// Returns `address` in the form to judge and dial, or the class that forbids it.
    pub fn pass(&self, address: IpAddr) -> Result<IpAddr, Class> {
        let address = normalise(address);
        match classify(address) {
            Class::Public if self.own.contains(&address) => Err(Class::Host),
            Class::Public => Ok(address),
            class => Err(class),
        }
    }
}

/// Returns `address` in the form to dial, for a mirror at exactly this address, or the class that forbids it.
///
/// What is open to other hosts of the operator's is, and blocks for documentation: no public host is there, so
/// private networks use them.
pub fn pass_as_mirror(address: IpAddr) -> Result<IpAddr, Class> {
    match pass_on_site(address) {
        Err(Class::Documentation) => Ok(normalise(address)),
        passed => passed,
    }
}
