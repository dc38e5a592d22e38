//! Words of instructions: quotes, escapes and variables.

use std::collections::BTreeMap;

/// The longest word, after its variables are replaced.
const LONGEST_WORD: usize = 64 * 1024;
/// Defaults inside defaults.
const DEEPEST: usize = 8;

/// What is known of variables before the build. `None` is one that only the build knows.
pub(super) type Variables = BTreeMap<String, Option<String>>;

/// A word whose quotes are resolved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Word {
    pieces: Vec<Piece>,
    length: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    /// A variable that the builder replaces, and how it is written.
    Later {
        name: String,
        written: String,
    },
}

impl Word {
    /// The word, if no variable of it is left to the build; otherwise the name of the first.
    pub(super) fn fixed(&self) -> Result<String, &str> {
        let pieces = self.pieces.iter().map(|piece| match piece {
            Piece::Text(text) => Ok(text.as_str()),
            Piece::Later { name, .. } => Err(name.as_str()),
        });
        pieces.collect()
    }

    /// The word as the builder reads it: dollar signs that mean themselves are escaped.
    pub(super) fn for_builder(&self) -> String {
        let pieces = self.pieces.iter().map(|piece| match piece {
            Piece::Text(text) => text.replace('$', "\\$"),
            Piece::Later { written, .. } => written.clone(),
        });
        pieces.collect()
    }

    fn push(&mut self, letter: char) -> Result<(), String> {
        self.count(letter.len_utf8())?;
        match self.pieces.last_mut() {
            Some(Piece::Text(text)) => text.push(letter),
            _ => self.pieces.push(Piece::Text(letter.to_string())),
        }
        Ok(())
    }

    fn add(&mut self, text: &str) -> Result<(), String> {
        self.count(text.len())?;
        self.pieces.push(Piece::Text(text.to_string()));
        Ok(())
    }

    fn later(&mut self, name: &str, written: String) -> Result<(), String> {
        self.count(written.len())?;
        self.pieces.push(Piece::Later { name: name.to_string(), written });
        Ok(())
    }

    fn join(&mut self, other: Self) -> Result<(), String> {
        self.count(other.length)?;
        self.pieces.extend(other.pieces);
        Ok(())
    }

    fn count(&mut self, more: usize) -> Result<(), String> {
        self.length += more;
        match self.length <= LONGEST_WORD {
            true => Ok(()),
            false => Err(format!("a word has more than {LONGEST_WORD} bytes")),
        }
    }
}

/// Splits at white space outside of quotes. Quotes and escapes stay.
pub(super) fn split(text: &str, escape: char) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if quote.is_none() && letter.is_whitespace() {
            if !word.is_empty() {
                words.push(std::mem::take(&mut word));
            }
            continue;
        }
        word.push(letter);
        if letter == escape && quote != Some('\'') {
            word.extend(letters.next());
        } else if quote == Some(letter) {
            quote = None;
        } else if quote.is_none() && matches!(letter, '"' | '\'') {
            quote = Some(letter);
        }
    }
    if let Some(quote) = quote {
        return Err(format!("a quotation mark {quote} has no second one"));
    }
    if !word.is_empty() {
        words.push(word);
    }
    Ok(words)
}

/// Resolves the quotes, escapes and known variables of a word.
pub(super) fn word(raw: &str, escape: char, variables: &Variables) -> Result<Word, String> {
    Reader { letters: raw.chars().peekable(), escape, variables }.word(None, 0)
}

struct Reader<'a> {
    letters: std::iter::Peekable<std::str::Chars<'a>>,
    escape: char,
    variables: &'a Variables,
}

impl Reader<'_> {
    /// Reads to `end`, or to the end of the text.
    fn word(&mut self, end: Option<char>, depth: usize) -> Result<Word, String> {
        if depth > DEEPEST {
            return Err("variables are nested too deeply".to_string());
        }
        let mut word = Word::default();
        let mut in_quotes = false;
        while let Some(letter) = self.letters.next() {
            match letter {
                letter if Some(letter) == end && !in_quotes => return Ok(word),
                '\'' if !in_quotes => loop {
                    match self.letters.next() {
                        Some('\'') => break,
                        Some(letter) => word.push(letter)?,
                        None => return Err("a quotation mark ' has no second one".to_string()),
                    }
                },
                '"' => in_quotes = !in_quotes,
                letter if letter == self.escape => match self.letters.next() {
                    // Within quotes it escapes only what would mean something.
                    Some(next) if in_quotes && next != '"' && next != '$' && next != self.escape => {
                        word.push(letter)?;
                        word.push(next)?;
                    }
                    Some(next) => word.push(next)?,
                    None => word.push(letter)?,
                },
                '$' => self.variable(&mut word, depth)?,
                letter => word.push(letter)?,
            }
        }
        match (in_quotes, end) {
            (true, _) => Err("a quotation mark \" has no second one".to_string()),
            (false, Some(end)) => Err(format!("a '{end}' is missing")),
            (false, None) => Ok(word),
        }
    }

    fn variable(&mut self, word: &mut Word, depth: usize) -> Result<(), String> {
        let braced = self.letters.next_if_eq(&'{').is_some();
        let name = self.name();
        if !braced {
            return match name.is_empty() {
                true => word.push('$'),
                false => match self.variables.get(&name) {
                    Some(Some(value)) => word.add(value),
                    _ => word.later(&name, format!("${{{name}}}")),
                },
            };
        }
        if name.is_empty() {
            return Err("'${' needs the name of a variable".to_string());
        }
        let value = self.variables.get(&name).cloned().flatten();
        let mut operator = match self.letters.next() {
            Some('}') => {
                return match value {
                    Some(value) => word.add(&value),
                    None => word.later(&name, format!("${{{name}}}")),
                };
            }
            Some(letter) => letter.to_string(),
            None => return Err("a '}' is missing".to_string()),
        };
        if operator == ":" {
            operator.extend(self.letters.next());
        }
        if !matches!(operator.as_str(), ":-" | "-" | ":+" | "+") {
            return Err(format!("'${{{name}{operator}' is not supported; use :-, -, :+ or +"));
        }
        let other = self.word(Some('}'), depth + 1)?;
        let Some(value) = value else {
            // The builder has to decide, and its text ends at the first brace.
            return match other.fixed() {
                Ok(other) if !other.contains('}') => {
                    let other = other.replace('$', "\\$");
                    word.later(&name, format!("${{{name}{operator}{other}}}"))
                }
                _ => Err(format!("what '${{{name}{operator}' means is known only during the build; use ARG")),
            };
        };
        let is_set = !operator.starts_with(':') || !value.is_empty();
        match (operator.ends_with('-'), is_set) {
            (true, true) => word.add(&value),
            (true, false) | (false, true) => word.join(other),
            (false, false) => Ok(()),
        }
    }

    fn name(&mut self) -> String {
        let mut name = String::new();
        while let Some(letter) = self.letters.next_if(|letter| {
            letter.is_ascii_alphabetic() || *letter == '_' || (!name.is_empty() && letter.is_ascii_digit())
        }) {
            name.push(letter);
        }
        name
    }
}

/// Words as one line of a shell, each meaning itself.
pub(super) fn shell_line(words: &[String]) -> String {
    let quoted = words.iter().map(|word| {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "@%+=:,./-_".contains(letter);
        match !word.is_empty() && word.chars().all(plain) {
            true => word.clone(),
            false => format!("'{}'", word.replace('\'', r#"'"'"'"#)),
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn known() -> Variables {
        let known = [("A", Some("1")), ("E", Some("")), ("D", Some("a$b")), ("LATER", None)];
        known.map(|(name, value)| (name.to_string(), value.map(String::from))).into()
    }

    #[test]
    fn words_keep_what_is_quoted() {
        assert_eq!(split(r#"a "b c" 'd e' f\ g"#, '\\').unwrap(), ["a", "\"b c\"", "'d e'", "f\\ g"]);
        assert!(split("a \"b", '\\').is_err());
        for (raw, text) in [
            ("\"b c\"", "b c"),
            ("'$A'", "$A"),
            ("\"$A\"", "1"),
            ("\\$A", "$A"),
            (r"a\ b", "a b"),
            (r#""a\nb\"c""#, "a\\nb\"c"),
            ("x${A}y", "x1y"),
            ("$D", "a$b"),
            ("${E:-d} ${E-d} ${A:+y} ${E:+y} ${E+y}", "d  y  y"),
            ("${E:-${A}}", "1"),
            ("$ $1 a$", "$ $1 a$"),
        ] {
            assert_eq!(word(raw, '\\', &known()).unwrap().fixed(), Ok(text.to_string()), "{raw}");
        }
    }

    #[test]
    fn what_only_the_build_knows_is_left_to_it() {
        let left = |raw: &str| word(raw, '\\', &known()).unwrap();
        assert_eq!(left("$PATH:/x").for_builder(), "${PATH}:/x");
        assert_eq!(left("$LATER").fixed(), Err("LATER"));
        assert_eq!(left("'$5'$PATH$D").for_builder(), "\\$5${PATH}a\\$b");
        assert_eq!(left("${LATER:-$A}").for_builder(), "${LATER:-1}");
        for raw in ["${LATER:-$PATH}", "${A", "${}", "${A%x}", "${A:?x}", "'a", "\"a"] {
            assert!(word(raw, '\\', &known()).is_err(), "{raw}");
        }
    }

    #[test]
    fn words_do_not_grow_without_end() {
        let mut variables = known();
        variables.insert("BIG".into(), Some("x".repeat(LONGEST_WORD)));
        assert!(word("$BIG", '\\', &variables).is_ok());
        assert!(word("$BIG$BIG", '\\', &variables).is_err());
        assert!(word(&"${E:-".repeat(20), '\\', &variables).is_err());
    }

    proptest! {
        #[test]
        fn a_shell_line_means_its_words(words in proptest::collection::vec("[^\0]{0,8}", 1..4)) {
            let line = shell_line(&words);
            let none = Variables::new();
            // Without escapes, as within single quotes.
            let again = split(&line, '\0').unwrap().into_iter().map(|raw| word(&raw, '\0', &none).unwrap().fixed().unwrap());
            prop_assert_eq!(again.collect::<Vec<_>>(), words);
        }
    }
}
