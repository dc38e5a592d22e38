//! Roles and kinds of keys.

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr, VariantArray};

/// The role of a key; each includes the ones before.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    Display,
    EnumString,
    IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str, parse_err_ty = BadRole, parse_err_fn = bad_role)]
pub enum Role {
    /// May see the project.
    Read,
    /// May create, use and destroy sandboxes.
    Write,
    /// May change the project: keys, agents, secrets, quotas, policies.
    Admin,
}

/// The text is not a role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a role is `read`, `write` or `admin`")]
pub struct BadRole;

const fn bad_role(_: &str) -> BadRole {
    BadRole
}

/// The holder of a key. It decides which routes the key may call at all; the [`Role`] decides the rest.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    Display,
    EnumString,
    IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str, parse_err_ty = BadKeyKind, parse_err_fn = bad_key_kind)]
pub enum KeyKind {
    /// The installation's operator: sees every project.
    Operator,
    /// A member of the project; the only kind whose approvals count.
    Person,
    /// A program of the project, such as CI.
    Service,
    /// A coding agent: its own sandboxes and tasks.
    Agent,
}

/// The text is not a kind of key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a kind of key is `operator`, `person`, `service` or `agent`")]
pub struct BadKeyKind;

const fn bad_key_kind(_: &str) -> BadKeyKind {
    BadKeyKind
}

names!(Role, KeyKind);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_read_back() {
        for &kind in KeyKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
        assert_eq!("bot".parse::<KeyKind>(), Err(BadKeyKind));
    }

    #[test]
    fn roles_include_those_before_them_and_read_back() {
        assert!(Role::Read < Role::Write && Role::Write < Role::Admin);
        for &role in Role::ALL {
            assert_eq!(role.to_string().parse(), Ok(role));
            assert_eq!(serde_json::to_value(role).unwrap(), role.as_str());
        }
        assert_eq!("Admin".parse::<Role>(), Err(BadRole));
    }
}
