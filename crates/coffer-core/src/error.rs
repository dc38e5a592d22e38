//! Formats errors as one line of text.

use std::error::Error;

const LONGEST: usize = 1000;

/// An error with its causes, as a log line shows it. A cause that its error already ends with is not repeated.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text.chars().take(LONGEST).collect()
}
