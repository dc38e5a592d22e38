//! A fresh database for each test.

pub(crate) use coffer_testkit::{TestDatabase, on_both};
