//! Instructions of a Dockerfile, each in one piece: continued lines joined, comments gone, heredocs attached.

use super::error::BadDockerfile;
use super::words::split;

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Instruction {
    /// The number of its first line, from 1.
    pub(super) line: u32,
    /// In upper case.
    pub(super) name: String,
    /// Everything after the name.
    pub(super) rest: String,
    pub(super) heredocs: Vec<Heredoc>,
}

/// `<<EOF` and the lines that follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Heredoc {
    /// The word that begins it, as written.
    pub(super) word: String,
    /// The line that ends it.
    pub(super) name: String,
    pub(super) body: String,
}

/// Most lines of heredocs that one instruction begins.
const MOST_HEREDOCS: usize = 16;

/// Reads all instructions. Returns them with the character that escapes.
pub(super) fn instructions(text: &str) -> Result<(Vec<Instruction>, char), BadDockerfile> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line)).zip(1u32..);
    let escape = escape(text)?;
    let mut found = Vec::new();
    while let Some((first, number)) = lines.next() {
        if is_skipped(first) {
            continue;
        }
        let mut whole = String::new();
        let mut current = first;
        loop {
            match continued(current, escape) {
                Some(part) => whole.push_str(part),
                None => {
                    whole.push_str(current);
                    break;
                }
            }
            match lines.by_ref().find(|(line, _)| !is_skipped(line)) {
                Some((next, _)) => current = next,
                // The file ends with a continuation: what there is counts.
                None => break,
            }
        }
        let whole = whole.trim();
        let (name, rest) = whole.split_once(char::is_whitespace).unwrap_or((whole, ""));
        let mut instruction = Instruction {
            line: number,
            name: name.to_ascii_uppercase(),
            rest: rest.trim_start().to_string(),
            heredocs: Vec::new(),
        };
        if matches!(instruction.name.as_str(), "RUN" | "COPY" | "ADD") {
            for (word, name, strips) in heredocs(&instruction.rest, escape) {
                if instruction.heredocs.len() == MOST_HEREDOCS {
                    let message = format!("begins more than {MOST_HEREDOCS} heredocs");
                    return Err(BadDockerfile::new(number, message));
                }
                let mut body = String::new();
                loop {
                    let Some((line, _)) = lines.next() else {
                        return Err(BadDockerfile::new(number, format!("the heredoc '{name}' does not end")));
                    };
                    let bare = if strips { line.trim_start_matches('\t') } else { line };
                    if bare == name {
                        break;
                    }
                    body.push_str(line);
                    body.push('\n');
                }
                instruction.heredocs.push(Heredoc { word, name, body });
            }
        }
        found.push(instruction);
    }
    Ok((found, escape))
}

/// Empty lines and comments, which may also be in the middle of an instruction.
fn is_skipped(line: &str) -> bool {
    let line = line.trim_start();
    line.is_empty() || line.starts_with('#')
}

/// The line without its end, if it goes on in the next one.
fn continued(line: &str, escape: char) -> Option<&str> {
    let part = line.trim_end_matches([' ', '\t']).strip_suffix(escape)?;
    // Twice is the character itself.
    (!part.ends_with(escape)).then_some(part)
}

/// What the first lines say about the character that escapes.
fn escape(text: &str) -> Result<char, BadDockerfile> {
    for (line, number) in text.lines().zip(1u32..) {
        let directive = line.trim().strip_prefix('#').and_then(|line| line.split_once('='));
        let Some((name, value)) = directive else { break };
        let name = name.trim().to_ascii_lowercase();
        match (name.as_str(), value.trim()) {
            ("escape", "\\") => return Ok('\\'),
            ("escape", "`") => return Ok('`'),
            ("escape", _) => {
                return Err(BadDockerfile::new(number, "escape must be a backslash or a backquote"));
            }
            ("syntax" | "check", _) => {}
            // An ordinary comment; there are no directives after it.
            _ => break,
        }
    }
    Ok('\\')
}

/// The heredocs that an instruction begins: the word, the line that ends it, and whether leading tabs go.
fn heredocs(rest: &str, escape: char) -> Vec<(String, String, bool)> {
    // A shell line may have quotes that only the shell understands.
    let words = split(rest, escape).unwrap_or_default();
    let begins = words.into_iter().filter_map(|word| {
        let after = word.trim_start_matches(|letter: char| letter.is_ascii_digit()).strip_prefix("<<")?;
        let (after, strips) = after.strip_prefix('-').map_or((after, false), |after| (after, true));
        let name = ['"', '\'']
            .into_iter()
            .find_map(|quote| after.strip_prefix(quote)?.strip_suffix(quote))
            .unwrap_or(after);
        let is_name = !name.is_empty() && !name.contains(['<', '"', '\'', '$', '\\', '`']);
        is_name.then(|| (word.clone(), name.to_string(), strips))
    });
    begins.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(u32, String, String)> {
        let (found, _) = instructions(text).unwrap();
        found.into_iter().map(|it| (it.line, it.name, it.rest)).collect()
    }

    #[test]
    fn lines_are_joined_and_comments_left_out() {
        let text = "\u{feff}# a comment\r\nfrom debian:12\r\n\r\nRUN one && \\\r\n  # why\r\n\r\n  two \\ \r\n  three\r\nUSER x \\";
        assert_eq!(
            read(text),
            [
                (2, "FROM".into(), "debian:12".into()),
                (4, "RUN".into(), "one &&   two   three".into()),
                (9, "USER".into(), "x".into()),
            ]
        );
        // Two are one character, not a continuation.
        assert_eq!(
            read("RUN a\\\\\nUSER b"),
            [(1, "RUN".into(), "a\\\\".into()), (2, "USER".into(), "b".into())]
        );
    }

    #[test]
    fn the_escape_may_be_a_backquote() {
        let (found, escape) = instructions("# syntax=docker/dockerfile:1\n# escape=`\nRUN a `\n b").unwrap();
        assert_eq!((found[0].rest.as_str(), escape), ("a  b", '`'));
        // After another comment it is a comment.
        assert_eq!(instructions("# hello\n# escape=`\nRUN a").unwrap().1, '\\');
        assert_eq!(instructions("# escape=x\n").unwrap_err().line, 1);
    }

    #[test]
    fn heredocs_belong_to_their_instruction() {
        let (found, _) = instructions("RUN <<-EOF\n\techo # no comment\n\tEOF\nUSER x").unwrap();
        let heredoc =
            Heredoc { word: "<<-EOF".into(), name: "EOF".into(), body: "\techo # no comment\n".into() };
        assert_eq!(found[0].heredocs, [heredoc]);
        assert_eq!(found[1].line, 4);
        assert!(instructions("RUN cat <<< x").unwrap().0[0].heredocs.is_empty());
        let unended = instructions("USER x\nRUN cat <<'EOF'\nno end").unwrap_err();
        assert_eq!((unended.line, unended.message.as_str()), (2, "the heredoc 'EOF' does not end"));
    }
}
