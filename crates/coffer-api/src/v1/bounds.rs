//! Checks that numbers in requests are within bounds.

use crate::error::ApiError;

/// Checks a number that a request may leave out.
pub(super) fn within(field: &str, value: Option<i64>, least: i64, most: i64) -> Result<(), ApiError> {
    match value {
        Some(value) if !(least..=most).contains(&value) => {
            Err(ApiError::invalid(field, format!("must be between {least} and {most}")))
        }
        _ => Ok(()),
    }
}
