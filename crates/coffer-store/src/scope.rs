//! Who asks, and so what can be seen.
//!
//! Every question to the store takes a [`Scope`]. A [`ProjectScope`] comes only from
//! [`Store::authenticate`](crate::Store::authenticate) and sees one project; an [`Operator`] sees all
//! and is for the server's own work.

use coffer_core::{KeyId, ProjectId};

/// Sees one project and nothing else. Only authentication makes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProjectScope {
    project: ProjectId,
}

impl ProjectScope {
    pub(crate) const fn new(project: ProjectId) -> Self {
        Self { project }
    }

    /// The project that it sees.
    pub const fn project(&self) -> ProjectId {
        self.project
    }
}

/// Sees every project: for the server's start, its sweeps and its proxy, never for a request's own words.
#[derive(Debug, Clone, Copy)]
pub struct Operator(());

impl Operator {
    pub(crate) const fn new() -> Self {
        Self(())
    }
}

/// A request that showed a valid key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Principal {
    pub scope: ProjectScope,
    pub key: KeyId,
}

/// Either of [`ProjectScope`] and [`Operator`].
pub trait Scope: sealed::Sealed + Send + Sync {
    /// The one project that may be seen, or none for all of them.
    #[doc(hidden)]
    fn only(&self) -> Option<ProjectId>;
}

impl Scope for ProjectScope {
    fn only(&self) -> Option<ProjectId> {
        Some(self.project)
    }
}

impl Scope for Operator {
    fn only(&self) -> Option<ProjectId> {
        None
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::ProjectScope {}
    impl Sealed for super::Operator {}
}
