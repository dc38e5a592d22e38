//! Bounds that several tools have.

/// How many bytes of a text a result has, unless the caller asks for another number.
pub(super) const USUAL_BYTES: usize = 16 << 10;
pub(super) const MOST_BYTES: usize = 64 << 10;

/// The number that a caller asks for, within bounds.
pub(super) fn bounded(asked: Option<u32>, usual: usize, most: usize) -> usize {
    asked.map_or(usual, |asked| (asked as usize).clamp(1, most))
}

/// A name that cannot look like two lines.
pub(super) fn one_line(name: &str) -> String {
    name.replace(['\n', '\r'], "␤")
}
