//! The source of a `COPY`: which members it names, and where they go below the destination.

use super::fault::{Fault, shown};

/// What clients can write; longer ones cannot name a path.
const LONGEST: usize = 4096;

/// A file, a directory or a pattern, relative to the build context.
#[derive(Debug)]
pub(super) struct Source {
    text: String,
    /// Without `.` and final slashes; empty is the whole context.
    literal: Vec<u8>,
    /// Components of a pattern, if it is one.
    pattern: Option<Vec<Part>>,
}

#[derive(Debug)]
enum Part {
    /// `**`: any number of components.
    Any,
    One(Vec<char>),
}

/// Where a member goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place<'a> {
    /// It is the directory whose contents are copied.
    Destination,
    /// To this path below the destination.
    Below(&'a [u8]),
    /// It is the one file that the source names: the destination may be its new name.
    Alone,
}

impl Source {
    pub(super) fn parse(text: &str) -> Result<Self, Fault> {
        if text.len() > LONGEST || text.contains('\0') {
            return Err(Fault::new("the source is no path"));
        }
        let mut components: Vec<&str> = Vec::new();
        for component in text.split('/') {
            match component {
                "" | "." => {}
                ".." => {
                    components.pop().ok_or_else(|| {
                        Fault::new(format!(
                            "the source '{}' is outside of the build context",
                            shown(text.as_bytes())
                        ))
                    })?;
                }
                _ => components.push(component),
            }
        }
        let is_pattern = components.iter().any(|component| component.contains(['*', '?', '[', '\\']));
        let part = |component: &&str| match *component {
            "**" => Part::Any,
            _ => Part::One(component.chars().collect()),
        };
        Ok(Self {
            text: text.to_owned(),
            literal: components.join("/").into_bytes(),
            pattern: is_pattern.then(|| components.iter().map(part).collect()),
        })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The place of a member with a clean name.
    pub(super) fn place<'a>(&self, name: &'a [u8], is_directory: bool) -> Option<Place<'a>> {
        if let Some(rest) = name.strip_prefix(&*self.literal) {
            return match rest {
                _ if self.literal.is_empty() && !name.is_empty() => Some(Place::Below(name)),
                [] if is_directory => Some(Place::Destination),
                [] => Some(Place::Alone),
                [b'/', below @ ..] => Some(Place::Below(below)),
                _ => self.place_by_pattern(name, is_directory),
            };
        }
        self.place_by_pattern(name, is_directory)
    }

    /// What a pattern names is the shortest match: if it is a directory, its contents are copied.
    fn place_by_pattern<'a>(&self, name: &'a [u8], is_directory: bool) -> Option<Place<'a>> {
        let pattern = self.pattern.as_ref()?;
        // The parts of the pattern that may come next, as bits by position; the last is a match.
        let mut states = vec![false; pattern.len() + 1];
        states[0] = true;
        skip_any(pattern, &mut states);
        let mut rest = name;
        loop {
            if states[pattern.len()] {
                return Some(match rest {
                    [] if is_directory => Place::Destination,
                    [] => Place::Below(super::tree::last(name)),
                    _ => Place::Below(rest),
                });
            }
            if rest.is_empty() {
                return None;
            }
            let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
            let component: Vec<char> = String::from_utf8_lossy(&rest[..end]).chars().collect();
            rest = rest.get(end + 1..).unwrap_or_default();
            let mut next = vec![false; states.len()];
            for (at, part) in pattern.iter().enumerate().filter(|(at, _)| states[*at]) {
                match part {
                    Part::Any => next[at] = true,
                    Part::One(pattern) => next[at + 1] |= matches(pattern, &component),
                }
            }
            skip_any(pattern, &mut next);
            states = next;
        }
    }
}

/// `**` also matches nothing.
fn skip_any(pattern: &[Part], states: &mut [bool]) {
    for (at, part) in pattern.iter().enumerate() {
        if states[at] && matches!(part, Part::Any) {
            states[at + 1] = true;
        }
    }
}

/// Whether a component matches a pattern, in time that its length and the pattern's bound.
fn matches(pattern: &[char], text: &[char]) -> bool {
    let (mut at, mut position) = (0, 0);
    // After the last star, and the text from which it was tried.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(at) == Some(&'*') {
            at += 1;
            star = Some((at, position));
            continue;
        }
        let step = match text.get(position) {
            None if at == pattern.len() => return true,
            None => None,
            Some(character) => one(&pattern[at..], *character),
        };
        match (step, star) {
            (Some(length), _) => {
                at += length;
                position += 1;
            }
            // The star takes one more.
            (None, Some((after, tried))) if tried < text.len() => {
                star = Some((after, tried + 1));
                (at, position) = (after, tried + 1);
            }
            (None, _) => return false,
        }
    }
}

/// The length of the pattern's first element, if it matches the character.
fn one(pattern: &[char], character: char) -> Option<usize> {
    match pattern {
        ['?', ..] => Some(1),
        ['\\', escaped, ..] => (*escaped == character).then_some(2),
        ['[', rest @ ..] => {
            let (negated, rest) = match rest {
                ['^' | '!', rest @ ..] => (true, rest),
                _ => (false, rest),
            };
            let mut matched = false;
            let mut at = 0;
            // A bracket at the first place stands for itself.
            while at == 0 || rest.get(at) != Some(&']') {
                let (low, length) = literal(rest.get(at..)?)?;
                at += length;
                let mut high = low;
                if rest.get(at) == Some(&'-') && rest.get(at + 1).is_some_and(|next| *next != ']') {
                    let (end, length) = literal(&rest[at + 1..])?;
                    (high, at) = (end, at + 1 + length);
                }
                matched |= (low..=high).contains(&character);
            }
            (matched != negated).then(|| pattern.len() - rest.len() + at + 1)
        }
        [literal, ..] => (*literal == character).then_some(1),
        [] => None,
    }
}

fn literal(pattern: &[char]) -> Option<(char, usize)> {
    match pattern {
        ['\\', escaped, ..] => Some((*escaped, 2)),
        [character, ..] => Some((*character, 1)),
        [] => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where `source` puts members; a final slash makes one a directory.
    fn places(source: &str, names: &[&str]) -> Vec<String> {
        let source = Source::parse(source).unwrap();
        let shown =
            |name: &&str| match source.place(name.trim_end_matches('/').as_bytes(), name.ends_with('/')) {
                None => "-".to_owned(),
                Some(Place::Destination) => "dest".to_owned(),
                Some(Place::Alone) => "alone".to_owned(),
                Some(Place::Below(path)) => String::from_utf8_lossy(path).into_owned(),
            };
        names.iter().map(shown).collect()
    }

    #[test]
    fn files_and_directories_are_named_as_they_are() {
        for source in ["app", "./app", "app/", "/app", "x/../app"] {
            assert_eq!(
                places(source, &["app/", "app/a", "app/b/c", "apple", "x"]),
                ["dest", "a", "b/c", "-", "-"]
            );
        }
        assert_eq!(places("app/a", &["app/", "app/a", "app/a.txt"]), ["-", "alone", "-"]);
        for source in [".", "./", "", "/"] {
            assert_eq!(places(source, &["a", "b/", "b/c"]), ["a", "b", "b/c"]);
        }
        assert!(Source::parse("../x").is_err());
        assert!(Source::parse("a/../../x").is_err());
    }

    #[test]
    fn patterns_take_files_and_the_contents_of_directories() {
        assert_eq!(
            places("app/*.txt", &["app/", "app/a.txt", "app/b.md", "app/sub/c.txt", "a.txt"]),
            ["-", "a.txt", "-", "-", "-"]
        );
        assert_eq!(places("*", &["a", "d/", "d/x", "d/e/y", ".h"]), ["a", "dest", "x", "e/y", ".h"]);
        assert_eq!(places("d?", &["d1/", "d1/x", "d2/x", "dd2/x", "dé"]), ["dest", "x", "x", "-", "dé"]);
        assert_eq!(
            places("**/*.py", &["a.py", "p/b.py", "p/q/c.py", "p/d.txt"]),
            ["a.py", "b.py", "c.py", "-"]
        );
        assert_eq!(places("app/**", &["app/", "app/a", "app/b/c", "x"]), ["dest", "a", "b/c", "-"]);
        assert_eq!(places("**", &["a", "b/c"]), ["a", "b/c"]);
        assert_eq!(places("a/**/z", &["a/z", "a/b/z", "a/b/c/z", "a/b"]), ["z", "z", "z", "-"]);
    }

    #[test]
    fn brackets_and_escapes() {
        assert_eq!(
            places("f[0-9a].x", &["f1.x", "fa.x", "fb.x", "f[0-9a].x"]),
            ["f1.x", "fa.x", "-", "alone"]
        );
        assert_eq!(places("f[^0-9]", &["f1", "fa"]), ["-", "fa"]);
        assert_eq!(places("f[!0-9]", &["f1", "fa"]), ["-", "fa"]);
        assert_eq!(places("[]a]", &["]", "a", "b"]), ["]", "a", "-"]);
        assert_eq!(places("a\\*", &["a*", "ab"]), ["a*", "-"]);
        assert_eq!(places("a[", &["a[", "ab"]), ["alone", "-"]);
        assert_eq!(places("a[b", &["ab", "a[b/c"]), ["-", "c"]);
        assert_eq!(places("pages/[id].tsx", &["pages/[id].tsx", "pages/i.tsx"]), ["alone", "i.tsx"]);
    }

    /// Exponential matchers would take longer than the universe.
    #[test]
    fn hostile_patterns_take_bounded_time() {
        let text: Vec<char> = "a".repeat(4000).chars().collect();
        let pattern: Vec<char> = ("a*".repeat(1000) + "b").chars().collect();
        assert!(!matches(&pattern, &text));
        let source = Source::parse(&("**/".repeat(1000) + "b")).unwrap();
        assert_eq!(source.place("a/".repeat(1000).trim_end_matches('/').as_bytes(), false), None);
    }
}
