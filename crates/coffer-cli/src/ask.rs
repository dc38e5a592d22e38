//! Questions to the person at the terminal, on stderr.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use crate::escape;
use crate::failure::Failure;

/// Whether a person can answer questions.
pub(crate) fn at_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// A line of text. An empty answer is the default.
pub(crate) fn line(question: &str, default: &str) -> Result<String, Failure> {
    match default {
        "" => eprint!("{question}: "),
        default => eprint!("{question} [{default}]: "),
    }
    std::io::stderr().flush()?;
    let mut answer = String::new();
    if std::io::stdin().lock().read_line(&mut answer)? == 0 {
        return Err(Failure::usage("the question was not answered"));
    }
    let answer = answer.trim();
    Ok(if answer.is_empty() { default.to_string() } else { answer.to_string() })
}

/// Yes or no; yes by default.
pub(crate) fn yes(question: &str) -> Result<bool, Failure> {
    let answer = line(question, "Y/n")?;
    Ok(matches!(answer.to_ascii_lowercase().as_str(), "y/n" | "y" | "yes"))
}

/// One of several, by its number or its name; the first by default.
pub(crate) fn choose<'a, T>(
    question: &str,
    options: &'a [T],
    name: impl Fn(&T) -> String,
) -> Result<&'a T, Failure> {
    for (number, option) in options.iter().enumerate() {
        eprintln!("  {:>2}  {}", number + 1, escape::line(&name(option)));
    }
    loop {
        let answer = line(question, "1")?;
        let by_number = answer.parse::<usize>().ok().and_then(|number| options.get(number.checked_sub(1)?));
        let by_name =
            || options.iter().find(|option| name(option).split_whitespace().next() == Some(&answer));
        if let Some(chosen) = by_number.or_else(by_name) {
            return Ok(chosen);
        }
        eprintln!("That is none of them.");
    }
}
