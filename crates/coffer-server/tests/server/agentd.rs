//! The agentd in the sandboxes of these tests.

pub(crate) use coffer_testkit::agentd::{FakeAgentd, Manners};
