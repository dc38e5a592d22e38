//! Who asks, and so what can be seen.
//!
//! Every question to the store takes a [`Scope`]. A [`ProjectScope`] comes only from
//! [`Store::authenticate`](crate::Store::authenticate), or from an operator who acts for a project
//! ([`Operator::acting_for`]), and sees one project, or what one agent of it owns; an [`Operator`] sees all
//! and is for the server's own work and for whoever shows an operator's key.

use coffer_core::{AgentId, KeyId, KeyKind, ProjectId, Role};

/// Sees one project and nothing else; an agent's sees only the agent's own sandboxes there. Only
/// authentication and the server itself make one.
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

    /// The same project, whoever asks: for what is read once for many and handed out by scope.
    #[must_use]
    pub const fn without_agent(self) -> Self {
        Self { project: self.project, agent: None }
    }

    /// The agent whose sandboxes alone it sees.
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

    /// The scope of a project, for the server's own work on its behalf: a run goes on when nobody asks.
    pub const fn acting_for(&self, project: ProjectId, agent: Option<AgentId>) -> ProjectScope {
        ProjectScope::new(project, agent)
    }
}

/// A request that showed a valid key of a project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Principal {
    pub scope: ProjectScope,
    pub key: KeyId,
    pub role: Role,
    pub kind: KeyKind,
}

/// Whom a valid key belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authenticated {
    Project(Principal),
    /// An operator's key, which is of no project.
    Operator {
        key: KeyId,
    },
}

impl Authenticated {
    /// The key that was shown.
    pub const fn key(&self) -> KeyId {
        match self {
            Self::Project(principal) => principal.key,
            Self::Operator { key } => *key,
        }
    }

    /// What holds the key.
    pub const fn kind(&self) -> KeyKind {
        match self {
            Self::Project(principal) => principal.kind,
            Self::Operator { .. } => KeyKind::Operator,
        }
    }
}

/// Either of [`ProjectScope`] and [`Operator`].
pub trait Scope: sealed::Sealed + Send + Sync {
    /// The one project that may be seen, or none for all of them.
    #[doc(hidden)]
    fn only(&self) -> Option<ProjectId>;

    /// The one agent whose things may be seen, or none for those of all.
    #[doc(hidden)]
    fn only_of(&self) -> Option<AgentId>;

    /// What a row must bear as its project or as its agent to be seen, or none for all rows. Ids are never
    /// those of two things, so one value asks for either.
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
