//! Scopes: what a caller can see.
//!
//! Every query takes a [`Scope`]. A [`ProjectScope`] comes only from
//! [`Store::authenticate`](crate::Store::authenticate), or from an operator that acts for a project
//! ([`Operator::acting_for`]), and sees one project, or what one agent of it owns. An [`Operator`] sees
//! everything: for the server's own work and for callers with an operator's key.

use std::fmt;

use coffer_core::{AgentId, KeyId, KeyKind, PersonId, ProjectId, Role};

/// Sees one project and nothing else; an agent's sees only the agent's own sandboxes there. Only
/// authentication and the server itself create one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProjectScope {
    project: ProjectId,
    agent: Option<AgentId>,
}

impl ProjectScope {
    pub(crate) const fn new(project: ProjectId, agent: Option<AgentId>) -> Self {
        Self { project, agent }
    }

    /// The project that it sees.
    pub const fn project(&self) -> ProjectId {
        self.project
    }

    /// The same project without the agent: for data that is read once for many callers and then filtered by
    /// scope.
    #[must_use]
    pub const fn without_agent(self) -> Self {
        Self { project: self.project, agent: None }
    }

    /// The agent whose sandboxes it is limited to.
    pub const fn agent(&self) -> Option<AgentId> {
        self.agent
    }
}

/// Sees every project: for the server's start, its sweeps and its proxy, and for operators.
#[derive(Debug, Clone, Copy)]
pub struct Operator(());

impl Operator {
    pub(crate) const fn new() -> Self {
        Self(())
    }

    /// The scope of a project, for the server's own work on its behalf, such as runs.
    pub const fn acting_for(&self, project: ProjectId, agent: Option<AgentId>) -> ProjectScope {
        ProjectScope::new(project, agent)
    }

    /// An operator's session in a project: a person with the role admin.
    pub const fn visiting(&self, project: ProjectId, session: KeyId) -> Principal {
        Principal {
            scope: ProjectScope::new(project, None),
            key: session,
            role: Role::Admin,
            kind: KeyKind::Person,
            actor: Actor::Operator(session),
        }
    }
}

/// A request with a valid key of a project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Principal {
    pub scope: ProjectScope,
    pub key: KeyId,
    pub role: Role,
    pub kind: KeyKind,
    /// As records of its actions name it.
    pub actor: Actor,
}

impl Principal {
    /// The person, if the key is held by one whose name is known.
    pub const fn person(&self) -> Option<PersonId> {
        match self.actor {
            Actor::Person(person) => Some(person),
            Actor::Agent(_) | Actor::Key(_) | Actor::Operator(_) => None,
        }
    }
}

/// Who acts, as records name it. A session's actions are those of its person, or else of the key that began it: records
/// outlive sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Actor {
    Agent(AgentId),
    Person(PersonId),
    Key(KeyId),
    /// An operator who looks into a project.
    Operator(KeyId),
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agent(agent) => write!(f, "agent:{agent}"),
            Self::Person(person) => write!(f, "person:{person}"),
            Self::Key(key) => write!(f, "key:{key}"),
            Self::Operator(key) => write!(f, "operator:{key}"),
        }
    }
}

/// The holder of a valid key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authenticated {
    Project(Principal),
    /// An operator's key, which belongs to no project.
    Operator {
        key: KeyId,
    },
}

impl Authenticated {
    /// The key of the request.
    pub const fn key(&self) -> KeyId {
        match self {
            Self::Project(principal) => principal.key,
            Self::Operator { key } => *key,
        }
    }

    /// The kind of the key.
    pub const fn kind(&self) -> KeyKind {
        match self {
            Self::Project(principal) => principal.kind,
            Self::Operator { .. } => KeyKind::Operator,
        }
    }
}

/// Either of [`ProjectScope`] and [`Operator`].
pub trait Scope: sealed::Sealed + Send + Sync {
    /// The only visible project, or `None` for all.
    #[doc(hidden)]
    fn only(&self) -> Option<ProjectId>;

    /// The only visible agent, or `None` for all.
    #[doc(hidden)]
    fn only_of(&self) -> Option<AgentId>;

    /// The project or agent that a row must have to be visible, or `None` for all rows. Ids are globally
    /// unique, so one value can match either.
    #[doc(hidden)]
    fn owner(&self) -> Option<String>;
}

impl Scope for ProjectScope {
    fn only(&self) -> Option<ProjectId> {
        Some(self.project)
    }

    fn only_of(&self) -> Option<AgentId> {
        self.agent
    }

    fn owner(&self) -> Option<String> {
        Some(self.agent.map_or_else(|| self.project.to_string(), |agent| agent.to_string()))
    }
}

impl Scope for Operator {
    fn only(&self) -> Option<ProjectId> {
        None
    }

    fn only_of(&self) -> Option<AgentId> {
        None
    }

    fn owner(&self) -> Option<String> {
        None
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::ProjectScope {}
    impl Sealed for super::Operator {}
}
