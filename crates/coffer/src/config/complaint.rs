//! Wrong settings.

/// What is wrong with a setting, before the source of its value is known.
#[derive(Debug)]
pub(crate) struct Complaint {
    pub(super) path: String,
    pub(super) allowed: String,
}

impl Complaint {
    pub(super) fn of(path: &str, allowed: &str) -> Self {
        Self { path: path.into(), allowed: allowed.into() }
    }
}
