//! What a key may do.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The rights of a key, each with all those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Sees the project.
    Read,
    /// Makes, uses and ends sandboxes.
    Write,
    /// Changes the project: keys, agents, secrets, quotas, policies.
    Admin,
}

/// The text names no role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a role is `read`, `write` or `admin`")]
pub struct BadRole;

impl Role {
    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Role {
    type Err = BadRole;

    fn from_str(text: &str) -> Result<Self, BadRole> {
        [Self::Read, Self::Write, Self::Admin].into_iter().find(|role| role.as_str() == text).ok_or(BadRole)
    }
}

/// What holds a key. It decides which routes the key may call at all; the [`Role`] decides the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyKind {
    /// Of the installation: sees every project.
    Operator,
    /// A member of the project; the only kind whose approvals count.
    Person,
    /// A program of the project's, such as CI.
    Service,
    /// A coding agent: its own sandboxes and tasks.
    Agent,
}

/// The text names no kind of key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a kind of key is `operator`, `person`, `service` or `agent`")]
pub struct BadKeyKind;

impl KeyKind {
    pub const ALL: [Self; 4] = [Self::Operator, Self::Person, Self::Service, Self::Agent];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Person => "person",
            Self::Service => "service",
            Self::Agent => "agent",
        }
    }
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for KeyKind {
    type Err = BadKeyKind;

    fn from_str(text: &str) -> Result<Self, BadKeyKind> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or(BadKeyKind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_read_back() {
        for kind in KeyKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
        assert_eq!("bot".parse::<KeyKind>(), Err(BadKeyKind));
    }

    #[test]
    fn roles_include_those_before_them_and_read_back() {
        assert!(Role::Read < Role::Write && Role::Write < Role::Admin);
        for role in [Role::Read, Role::Write, Role::Admin] {
            assert_eq!(role.to_string().parse(), Ok(role));
            assert_eq!(serde_json::to_value(role).unwrap(), role.as_str());
        }
        assert_eq!("Admin".parse::<Role>(), Err(BadRole));
    }
}
