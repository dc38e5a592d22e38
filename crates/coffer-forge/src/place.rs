//! Where forges may be: on the internet, unless the operator vouches for them.

use std::net::IpAddr;

use coffer_core::ProjectId;
use coffer_core::network::{Class, HostName};
use coffer_http::{NotAllowed, is_own, may_dial};
use coffer_store::{Secret, Store};

use crate::ForgeError;

/// A forge that an operator does not vouch for is not on the internet.
#[derive(Debug, thiserror::Error)]
#[error("`{host}` has a {class} address; an operator can allow that by `forge.private_hosts`")]
struct NotPublic {
    host: String,
    class: Class,
}

/// Checks whether the forge `host` may be at this address.
pub(crate) fn may_be_at(host: &str, on_site: bool, ip: IpAddr) -> Result<IpAddr, NotAllowed> {
    Ok(may_dial(on_site, ip, is_own).map_err(|class| NotPublic { host: host.to_string(), class })?)
}

/// The value of a secret, if it may be sent to `host`.
pub(crate) async fn secret_for(
    store: &Store,
    project: ProjectId,
    name: &str,
    host: &str,
) -> Result<Secret, ForgeError> {
    let refused = |why| ForgeError::Credential { name: name.to_string(), why };
    let values = store.secret_values(project).await?;
    let secret = values.get(name).ok_or_else(|| refused("does not exist"))?;
    if let Some(hosts) = &secret.hosts {
        let host = HostName::parse(host).ok();
        if !host.is_some_and(|host| hosts.iter().any(|pattern| pattern.matches(&host))) {
            return Err(refused("is limited to other hosts than this forge's"));
        }
    }
    secret.value.clone().ok_or_else(|| refused("is sealed under a missing master key"))
}
