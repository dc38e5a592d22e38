//! What an operator says of forges.

use coffer_forge::PrivateHosts;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[forge]`: forges that projects connect to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ForgeSettings {
    /// Hosts of forges that may be at private addresses or on this machine (`ghe.example.com`, or with a port that is meant
    /// alone, `ghe.example.com:8443`), such as GitHub Enterprise in a company's network. Others must have public ones.
    pub private_hosts: Vec<String>,
}

impl ForgeSettings {
    /// Fails with what is allowed.
    pub fn check(&self) -> Result<(), String> {
        self.hosts().map(drop).map_err(|text| {
            format!("must be names such as `ghe.example.com` or `ghe.example.com:8443`; `{text}` is none")
        })
    }

    pub(crate) fn hosts(&self) -> Result<PrivateHosts, String> {
        PrivateHosts::parse(self.private_hosts.iter().map(String::as_str))
    }
}
