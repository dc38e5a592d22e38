//! Requests on a session before its program starts (RFC 4254, section 6).

use crate::error::Error;
use crate::text::Fields;

const MOST_VARIABLES: usize = 256;
const LONGEST_VARIABLE: usize = 32 << 10;

/// A terminal to give to a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terminal {
    /// The value of `TERM`.
    pub name: String,
    pub columns: u32,
    pub rows: u32,
}

/// What a session is to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    Shell,
    /// A line for the shell.
    Command(String),
    /// A server of files, on the channel.
    Sftp,
}

/// What the client has said about a session so far.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub(crate) terminal: Option<Terminal>,
    pub(crate) env: Vec<(String, String)>,
}

/// What follows from a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Noted,
    Refused,
    Begin(Start),
}

impl Draft {
    pub(crate) fn request(&mut self, kind: &str, mut fields: Fields<'_>) -> Result<Step, Error> {
        Ok(match kind {
            "pty-req" => {
                let name = fields.text()?.to_string();
                let (columns, rows) = (fields.number()?, fields.number()?);
                self.terminal = Some(Terminal { name, columns, rows });
                Step::Noted
            }
            "env" => {
                let (Ok(name), Ok(value)) = (fields.text(), fields.text()) else { return Ok(Step::Refused) };
                let fits = self.env.len() < MOST_VARIABLES && name.len() + value.len() <= LONGEST_VARIABLE;
                if !fits || name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                    return Ok(Step::Refused);
                }
                self.env.push((name.to_string(), value.to_string()));
                Step::Noted
            }
            "shell" => Step::Begin(Start::Shell),
            "exec" => match fields.text() {
                Ok(line) => Step::Begin(Start::Command(line.to_string())),
                // The API has texts for commands.
                Err(_) => Step::Refused,
            },
            "subsystem" if fields.text()? == "sftp" => Step::Begin(Start::Sftp),
            // Forwarding of agents and displays would let the sandbox use the client's machine.
            _ => Step::Refused,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Append as _;

    fn fields(texts: &[&str]) -> Vec<u8> {
        let mut written = Vec::new();
        texts.iter().for_each(|text| written.string(text.as_bytes()));
        written
    }

    #[test]
    fn requests_are_noted_and_agents_and_displays_refused() {
        let mut draft = Draft::default();
        let mut pty = fields(&["xterm"]);
        [80, 24, 0, 0].into_iter().for_each(|number| pty.number(number));
        assert_eq!(draft.request("pty-req", Fields::of(&pty)).unwrap(), Step::Noted);
        assert_eq!(draft.request("env", Fields::of(&fields(&["LANG", "C"]))).unwrap(), Step::Noted);
        assert_eq!(draft.request("env", Fields::of(&fields(&["A=B", "C"]))).unwrap(), Step::Refused);
        for kind in ["auth-agent-req@openssh.com", "x11-req"] {
            assert_eq!(draft.request(kind, Fields::of(&[])).unwrap(), Step::Refused);
        }
        let begun = draft.request("exec", Fields::of(&fields(&["ls"]))).unwrap();
        assert_eq!(begun, Step::Begin(Start::Command("ls".into())));
        assert_eq!(draft.terminal.unwrap(), Terminal { name: "xterm".into(), columns: 80, rows: 24 });
        assert_eq!(draft.env, [("LANG".to_string(), "C".to_string())]);
    }

    #[test]
    fn variables_are_bounded() {
        let mut draft = Draft::default();
        let long = "x".repeat(LONGEST_VARIABLE);
        assert_eq!(draft.request("env", Fields::of(&fields(&["A", &long]))).unwrap(), Step::Refused);
        for _ in 0..MOST_VARIABLES {
            draft.request("env", Fields::of(&fields(&["A", "1"]))).unwrap();
        }
        assert_eq!(draft.request("env", Fields::of(&fields(&["A", "1"]))).unwrap(), Step::Refused);
    }
}
