//! The engine under the server of these tests.

pub(crate) use coffer_testkit::engine::{FakeEngine, LACKS, Op};
