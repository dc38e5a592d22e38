//! Verbs.
