//! Names that people choose.

use super::error::ApiError;

const LONGEST: usize = 100;

/// A name is shown on one line: not empty, not long, and without control characters.
pub(super) fn check_name(name: &str) -> Result<(), ApiError> {
    let fits = (1..=LONGEST).contains(&name.chars().count()) && name.trim() == name;
    if fits && !name.chars().any(char::is_control) {
        return Ok(());
    }
    let wanted = format!("must have 1 to {LONGEST} characters, no control characters, no space around");
    Err(ApiError::invalid("name", wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_on_a_line() {
        for good in ["a", "Team Ä", &"x".repeat(100)] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", " a", "a\n", "\u{1b}[31m", "a\0", &"x".repeat(101)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }
}
