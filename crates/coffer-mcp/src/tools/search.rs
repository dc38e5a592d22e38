//! Search in files, by grep in the sandbox.

use coffer_api_types::exec::{NewCommand, Program};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bounds::{bounded, one_line};
use crate::tool::{Call, Effect, Failure, Outcome, Tool};

const USUAL_MATCHES: usize = 100;
const MOST_MATCHES: usize = 500;
const LONGEST_LINE: usize = 300;
/// What grep may write; a model reads less.
const MOST_OUTPUT: i64 = 2 << 20;

pub(super) fn tools() -> Vec<Tool> {
    vec![Tool::new(
        "search_files",
        "Search in files",
        "Search the text files below a directory of a sandbox for a pattern (grep), and return path, line number and line.",
        Effect::Reads,
        search,
    )]
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Search {
    /// The sandbox.
    sandbox_id: String,
    /// An extended regular expression, or plain text with `literal`.
    pattern: String,
    /// Where to search; the user's home by default.
    #[serde(default)]
    path: Option<String>,
    /// Only files with such names, such as `*.rs`.
    #[serde(default)]
    glob: Option<String>,
    /// Whether the pattern is plain text.
    #[serde(default)]
    literal: bool,
    /// Whether case does not matter.
    #[serde(default)]
    ignore_case: bool,
    /// How many matches; 100 by default, at most 500.
    #[serde(default)]
    #[schemars(range(min = 1, max = 500))]
    limit: Option<u32>,
}

#[derive(Debug, Serialize, JsonSchema, PartialEq)]
struct Match {
    path: String,
    line: u64,
    text: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Found {
    matches: Vec<Match>,
    /// Whether there are more.
    more: bool,
}

async fn search(call: Call, input: Search) -> Result<Outcome<Found>, Failure> {
    let limit = bounded(input.limit, USUAL_MATCHES, MOST_MATCHES);
    let command = NewCommand {
        command: Program::Words(words(&input, limit)),
        cwd: None,
        env: [("LC_ALL".to_string(), "C.UTF-8".to_string())].into(),
        user: None,
        stdin: None,
        timeout_s: Some(60),
        background: false,
        max_output_bytes: Some(MOST_OUTPUT),
    };
    let ran = call.client.exec(&input.sandbox_id, &command).await?;
    // 1: nothing found; 2: also if one file could not be read.
    if ran.timed_out || (ran.stdout.is_empty() && ran.exit_code.is_some_and(|code| code > 1)) {
        let why =
            if ran.timed_out { "the search took more than 60 s".into() } else { first_line(&ran.stderr) };
        return Err(Failure::bad_request(why, "check pattern and path, or search a smaller directory"));
    }
    let mut matches = parse(&ran.stdout);
    let more = matches.len() > limit || ran.stdout_truncated;
    matches.truncate(limit);
    let line = |one: &Match| format!("{}:{}: {}", one_line(&one.path), one.line, one.text);
    let mut text = matches.iter().map(line).collect::<Vec<_>>().join("\n");
    if matches.is_empty() {
        text = "nothing found".into();
    } else if more {
        text.push_str(&format!("\n[only the first {limit}; narrow the pattern, the path or glob]"));
    }
    Ok(Outcome::new(text, Found { matches, more }))
}

fn words(input: &Search, limit: usize) -> Vec<String> {
    let mut words = ["grep", "-rnIZ", "--exclude-dir=.git"].map(str::to_string).to_vec();
    words.push(format!("--max-count={}", limit + 1));
    words.push(if input.literal { "-F" } else { "-E" }.into());
    words.extend(input.ignore_case.then(|| "-i".to_string()));
    words.extend(input.glob.as_ref().map(|glob| format!("--include={glob}")));
    // Whatever they begin with, they are no options.
    words.extend(["-e".into(), input.pattern.clone(), "--".into()]);
    words.push(input.path.clone().unwrap_or_else(|| ".".into()));
    words
}

/// Lines of `path NUL number : text`.
fn parse(output: &str) -> Vec<Match> {
    let one = |line: &str| {
        let (path, rest) = line.split_once('\0')?;
        let (number, text) = rest.split_once(':')?;
        let text = text.chars().take(LONGEST_LINE).collect();
        Some(Match { path: path.to_string(), line: number.parse().ok()?, text })
    };
    output.lines().filter_map(one).collect()
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or("grep failed").chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_grep_are_taken_apart_and_cut() {
        let long = "x".repeat(1000);
        let found = parse(&format!("a:b.rs\u{0}12:let a: u8 = 1;\nno match\nc\u{0}3:{long}\n"));
        assert_eq!(found[0], Match { path: "a:b.rs".into(), line: 12, text: "let a: u8 = 1;".into() });
        assert_eq!((found.len(), found[1].text.len()), (2, LONGEST_LINE));
    }

    #[test]
    fn a_pattern_is_never_an_option() {
        let input: Search =
            serde_json::from_str(r#"{"sandbox_id": "s", "pattern": "--file=/etc/shadow", "path": "-x"}"#)
                .unwrap();
        let words = words(&input, 1);
        assert_eq!(words[words.len() - 4..], ["-e", "--file=/etc/shadow", "--", "-x"]);
    }
}
