//! Placeholder module docs; see docs/design/0001-foundation.md.
