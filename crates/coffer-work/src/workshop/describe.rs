//! Texts of pull requests.

use coffer_flow::task::Checked;

const LONGEST_TITLE: usize = 256;
const LONGEST_SUMMARY: usize = 8 * 1024;
const LONGEST_COMMAND: usize = 300;

/// The title and body of a pull request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullText {
    pub title: String,
    pub body: String,
}

/// The work to describe.
#[derive(Debug, Clone, Copy)]
pub struct WorkDone<'a> {
    pub title: &'a str,
    pub task: &'a str,
    pub attempt: i64,
    pub agent: &'a str,
    pub model: Option<&'a str>,
    pub check: Option<(&'a str, &'a Checked)>,
    pub summary: Option<&'a str>,
    pub commit: &'a str,
    /// The number of the issue that it resolves, in the same repository.
    pub closes: Option<i64>,
    /// Why it is only a draft.
    pub draft: Option<&'a str>,
}

impl PullText {
    pub fn of(work: WorkDone<'_>) -> Self {
        let model = work.model.map(|model| format!(" ({})", code(model))).unwrap_or_default();
        let check = match work.check {
            None if work.draft.is_some() => "not run".to_string(),
            None => "none requested".to_string(),
            Some((command, checked)) => {
                let command = code(&command.chars().take(LONGEST_COMMAND).collect::<String>());
                match (checked.passed, checked.exit_code) {
                    (true, _) => format!("{command} passed"),
                    (false, Some(code)) => format!("{command} failed with exit code {code}"),
                    (false, None) => format!("{command} did not end in time"),
                }
            }
        };
        let mut body = quoted(work.summary);
        if let Some(number) = work.closes {
            body.push_str(&format!("Closes #{number}\n\n"));
        }
        if let Some(why) = work.draft {
            let why: String = why.chars().map(|c| if c.is_control() || c == '@' { ' ' } else { c }).collect();
            body.push_str(&format!("This is a draft: {why}.\n\n"));
        }
        let rows = [
            ("Task", format!("{} ({})", code(work.task), code(work.title))),
            ("Agent", format!("{}{model}, attempt {}", code(work.agent), work.attempt)),
            ("Check", check),
            ("Commit", work.commit.to_string()),
        ];
        body.push_str("| | |\n|---|---|\n");
        for (name, value) in rows {
            body.push_str(&format!("| {name} | {value} |\n"));
        }
        Self { title: work.title.chars().take(LONGEST_TITLE).collect(), body }
    }
}

/// Quotes what an agent wrote: it must not look like our text, nor mention people.
pub(super) fn quoted(summary: Option<&str>) -> String {
    let Some(summary) = summary.map(str::trim).filter(|summary| !summary.is_empty()) else {
        return String::new();
    };
    let kept = &summary[..summary.floor_char_boundary(LONGEST_SUMMARY)];
    let mut body = String::new();
    // For Markdown a carriage return ends a line too, and the quote with it.
    for line in kept.lines().flat_map(|line| line.split('\r')) {
        body.push_str("> ");
        body.push_str(&line.replace('@', "@\u{200b}"));
        body.push('\n');
    }
    body.push('\n');
    body
}

/// Escapes text for Markdown, on one line of a table.
pub(super) fn code(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let plain = plain.replace('`', "'").replace('|', "\\|");
    format!("`{}`", if plain.trim().is_empty() { "-" } else { plain.trim() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_ends_a_line_does_not_end_the_quote() {
        assert_eq!(quoted(Some("a\rb\r\nc\r\r\nd\r")), "> a\n> b\n> c\n> \n> d\n\n");
        assert_eq!(
            quoted(Some("\r# Merged\r\r| Check | passed |")),
            "> # Merged\n> \n> | Check | passed |\n\n"
        );
        for nothing in [None, Some(""), Some("\r\n ")] {
            assert_eq!(quoted(nothing), "");
        }
    }

    #[test]
    fn a_description_says_what_was_done_and_quotes_the_agent() {
        let checked = Checked { passed: false, exit_code: Some(2), execution: None, tail: None };
        let text = PullText::of(WorkDone {
            title: "Fix `a|b`",
            task: "t-1",
            attempt: 2,
            agent: "coder",
            model: Some("m-1"),
            check: Some(("make\ntest", &checked)),
            summary: Some("Done.\n\n@everyone look\n"),
            commit: "abc",
            closes: Some(7),
            draft: None,
        });
        assert_eq!(text.title, "Fix `a|b`");
        assert_eq!(
            text.body,
            "> Done.\n> \n> @\u{200b}everyone look\n\nCloses #7\n\n| | |\n|---|---|\n| Task | `t-1` (`Fix 'a\\|b'`) |\n\
             | Agent | `coder` (`m-1`), attempt 2 |\n| Check | `make test` failed with exit code 2 |\n\
             | Commit | abc |\n"
        );
    }

    #[test]
    fn a_draft_says_why_it_is_one() {
        let text = PullText::of(WorkDone {
            title: "Fix",
            task: "t-1",
            attempt: 1,
            agent: "coder",
            model: None,
            check: None,
            summary: None,
            commit: "abc",
            closes: None,
            draft: Some("key:1 finished it\nearly"),
        });
        assert!(text.body.starts_with("This is a draft: key:1 finished it early.\n\n"), "{}", text.body);
        assert!(text.body.contains("| Check | not run |"), "{}", text.body);
    }
}
