//! People of a project, and the names of actors.

use coffer_core::Role;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A person to add.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPerson {
    /// Unique in the project, whatever the case of its letters.
    pub name: String,
    /// The role of the person's sessions; `write` by default.
    #[schema(value_type = Option<String>, example = "write")]
    pub role: Option<Role>,
}

/// A person of the project.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Person {
    pub id: String,
    pub name: String,
    /// The role that sign-in links of this person give.
    #[schema(value_type = String, example = "write")]
    pub role: Role,
    pub created_at: String,
}

/// A change of a person.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PersonPatch {
    pub name: String,
}

/// How long a sign-in link is valid.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewInvite {
    /// In seconds; a day by default, seven days at most.
    #[schema(minimum = 60, maximum = 604_800)]
    pub expires_in_s: Option<i64>,
}

/// The name of an actor that events, comments and the audit log mention.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActorName {
    /// As records have it: `person:<id>` or `key:<id>`.
    pub actor: String,
    pub name: String,
}
