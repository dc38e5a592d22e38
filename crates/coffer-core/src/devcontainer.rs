//! `devcontainer.json`, as far as sandboxes follow it. It is a stranger's file: everything is bounded, and what is not
//! followed is named.

use std::collections::BTreeMap;

use serde_json::Value;

/// The longest file that is read.
pub const LONGEST_FILE: usize = 64 * 1024;
const MOST_VARIABLES: usize = 50;
const LONGEST_VALUE: usize = 4 * 1024;
const MOST_COMMANDS: usize = 20;
const LONGEST_COMMAND: usize = 16 * 1024;
const MOST_WARNINGS: usize = 20;
const LONGEST_NAME: usize = 100;

/// Commands of a devcontainer's life that run once, in their order.
const COMMANDS: [&str; 3] = ["onCreateCommand", "updateContentCommand", "postCreateCommand"];
/// Members that change nothing here: editors read them, or a sandbox has what they ask for. Each port of a sandbox can
/// be reached without being named.
const HARMLESS: [&str; 11] = [
    "$schema",
    "name",
    "customizations",
    "forwardPorts",
    "portsAttributes",
    "otherPortsAttributes",
    "shutdownAction",
    "waitFor",
    "updateRemoteUserUID",
    "hostRequirements",
    "overrideCommand",
];

/// What of a `devcontainer.json` is followed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DevContainer {
    /// `containerEnv` and `remoteEnv`.
    pub env: BTreeMap<String, String>,
    /// What runs once, in order, each with the member that it is from.
    pub commands: Vec<(String, Vec<String>)>,
    /// Commands run as root.
    pub as_root: bool,
    /// What is not followed, for people.
    pub warnings: Vec<String>,
}

/// Why a file cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadDevContainer {
    #[error("it has more than {LONGEST_FILE} bytes")]
    TooLong,
    #[error("it is no JSON with comments: {0}")]
    Json(String),
    #[error("it must be an object")]
    NoObject,
    #[error("`{0}` must be a text, a list of texts, or an object of those")]
    Command(String),
    #[error("it has more than {MOST_COMMANDS} commands, or one of more than {LONGEST_COMMAND} bytes")]
    TooMuch,
}

impl DevContainer {
    /// Reads a file of a repository that is at `folder` in the sandbox.
    pub fn read(text: &str, folder: &str) -> Result<Self, BadDevContainer> {
        if text.len() > LONGEST_FILE {
            return Err(BadDevContainer::TooLong);
        }
        let value: Value = serde_json::from_str(&plain_json(text))
            .map_err(|error| BadDevContainer::Json(error.to_string()))?;
        let Value::Object(members) = &value else { return Err(BadDevContainer::NoObject) };
        let mut found = Self::default();
        for (name, value) in members {
            match name.as_str() {
                "containerEnv" | "remoteEnv" => found.take_env(name, value, folder),
                "remoteUser" | "containerUser" => found.take_user(name, value),
                name if COMMANDS.contains(&name) || HARMLESS.contains(&name) => {}
                "image" | "build" | "dockerFile" | "dockerComposeFile" => {
                    found.warn(format!("`{name}` is not followed: the sandbox has the template of the agent"))
                }
                "postStartCommand" | "postAttachCommand" => {
                    found.warn(format!("`{name}` is not run: it belongs to an editor's start"));
                }
                _ => found.warn(format!("`{}` is not followed", shown(name))),
            }
        }
        for name in COMMANDS {
            if let Some(value) = members.get(name) {
                found.take_command(name, value, folder)?;
            }
        }
        let length: usize = found.commands.iter().flat_map(|(_, words)| words).map(String::len).sum();
        if found.commands.len() > MOST_COMMANDS || length > LONGEST_COMMAND {
            return Err(BadDevContainer::TooMuch);
        }
        Ok(found)
    }

    fn warn(&mut self, warning: String) {
        if self.warnings.len() < MOST_WARNINGS {
            self.warnings.push(warning);
        }
    }

    fn take_env(&mut self, member: &str, value: &Value, folder: &str) {
        for (name, value) in value.as_object().into_iter().flatten() {
            let fits = |(at, letter): (usize, char)| {
                letter == '_' || letter.is_ascii_alphabetic() || (at > 0 && letter.is_ascii_digit())
            };
            let is_name =
                !name.is_empty() && name.len() <= LONGEST_NAME && name.chars().enumerate().all(fits);
            let value = value.as_str().map(|value| filled(value, folder));
            match value {
                // A variable of the other container or of the person's machine.
                Some(value) if value.contains("${") => {
                    self.warn(format!(
                        "variable `{}` of `{member}` is not set: its value names others",
                        shown(name)
                    ));
                }
                Some(value)
                    if is_name
                        && !name.starts_with("COFFER_")
                        && value.len() <= LONGEST_VALUE
                        && !value.contains('\0')
                        && self.env.len() < MOST_VARIABLES =>
                {
                    self.env.insert(name.clone(), value);
                }
                _ => self.warn(format!("variable `{}` of `{member}` is not set", shown(name))),
            }
        }
    }

    fn take_user(&mut self, member: &str, value: &Value) {
        match value.as_str() {
            Some("root") if member == "remoteUser" => self.as_root = true,
            Some("root" | "user") => {}
            _ => self.warn(format!("`{member}` is not followed: work is done as `user`")),
        }
    }

    fn take_command(&mut self, member: &str, value: &Value, folder: &str) -> Result<(), BadDevContainer> {
        let bad = || BadDevContainer::Command(member.to_string());
        let words = |value: &Value| match value {
            Value::String(line) => {
                Ok(["/bin/sh", "-c"].map(str::to_string).into_iter().chain([filled(line, folder)]).collect())
            }
            Value::Array(words) => {
                let words = words.iter().map(|word| word.as_str().map(|word| filled(word, folder)));
                let words: Option<Vec<String>> = words.collect();
                words.filter(|words| words.first().is_some_and(|first| !first.is_empty())).ok_or_else(bad)
            }
            _ => Err(bad()),
        };
        match value {
            // Several, which an editor runs at once; one after the other does the same.
            Value::Object(named) => {
                for (name, value) in named {
                    self.commands.push((format!("{member}.{}", shown(name)), words(value)?));
                }
            }
            Value::Null => {}
            _ if value.as_str().is_some_and(|line| line.trim().is_empty()) => {}
            _ => self.commands.push((member.to_string(), words(value)?)),
        }
        Ok(())
    }
}

/// A name from the file, for people.
fn shown(name: &str) -> String {
    name.chars().filter(|letter| !letter.is_control()).take(LONGEST_NAME).collect()
}

/// A text with the folder of the repository filled in.
fn filled(text: &str, folder: &str) -> String {
    let base = folder.rsplit('/').next().unwrap_or(folder);
    ["containerWorkspaceFolder", "localWorkspaceFolder"].iter().fold(text.to_string(), |text, name| {
        text.replace(&format!("${{{name}}}"), folder).replace(&format!("${{{name}Basename}}"), base)
    })
}

/// JSON without the comments and the last commas that editors allow in it. Strings stay as they are.
fn plain_json(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.trim_start_matches('\u{feff}').chars().peekable();
    // Where a comma is that only a closing bracket has followed so far.
    let mut comma = None;
    while let Some(letter) = rest.next() {
        match (letter, rest.peek()) {
            ('"', _) => {
                comma = None;
                plain.push('"');
                let mut is_escaped = false;
                for letter in rest.by_ref() {
                    plain.push(letter);
                    match letter {
                        _ if is_escaped => is_escaped = false,
                        '\\' => is_escaped = true,
                        '"' => break,
                        _ => {}
                    }
                }
            }
            ('/', Some('/')) => {
                plain.push(' ');
                while rest.next_if(|letter| *letter != '\n').is_some() {}
            }
            ('/', Some('*')) => {
                plain.push(' ');
                rest.next();
                let mut before = ' ';
                for letter in rest.by_ref() {
                    if (before, letter) == ('*', '/') {
                        break;
                    }
                    before = letter;
                }
            }
            ('}' | ']', _) => {
                if let Some(at) = comma.take() {
                    plain.replace_range(at..=at, " ");
                }
                plain.push(letter);
            }
            (',', _) => {
                comma = Some(plain.len());
                plain.push(',');
            }
            (letter, _) => {
                if !letter.is_whitespace() {
                    comma = None;
                }
                plain.push(letter);
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> DevContainer {
        DevContainer::read(text, "/home/user/app").unwrap()
    }

    #[test]
    fn comments_and_last_commas_are_read() {
        let found = read(
            r#"{ // a comment
            /* another, with "quotes" and } */
            "name": "x // no comment, \" /* neither",
            "containerEnv": { "A": "1", "URL": "https://example.com/,]", },
            "postCreateCommand": ["npm", "ci",],
        }"#,
        );
        assert_eq!(found.env["URL"], "https://example.com/,]");
        assert_eq!(found.commands, [("postCreateCommand".to_string(), vec!["npm".into(), "ci".to_string()])]);
        assert_eq!(found.warnings, [""; 0]);
    }

    #[test]
    fn commands_run_in_the_order_of_their_life_whatever_their_form() {
        let found = read(
            r#"{"postCreateCommand": "cd ${containerWorkspaceFolder} && make",
                "updateContentCommand": "", "remoteUser": "root", "forwardPorts": [3000],
                "onCreateCommand": {"b": "two", "a": ["one", "${localWorkspaceFolderBasename}"]}}"#,
        );
        let names: Vec<&str> = found.commands.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["onCreateCommand.a", "onCreateCommand.b", "postCreateCommand"]);
        assert_eq!(found.commands[0].1, ["one", "app"]);
        assert_eq!(found.commands[2].1, ["/bin/sh", "-c", "cd /home/user/app && make"]);
        assert!(found.as_root && found.warnings.is_empty());
    }

    #[test]
    fn what_is_not_followed_is_named() {
        let found = read(
            r#"{"image": "x", "features": {}, "postStartCommand": "y", "remoteUser": "vscode",
                "containerEnv": {"P": "${localEnv:HOME}", "COFFER_API_KEY": "x", "1": "x", "N": 7}}"#,
        );
        assert_eq!(found.env.len(), 0);
        let all = found.warnings.join("\n");
        for named in [
            "`image`",
            "`features`",
            "`postStartCommand`",
            "`remoteUser`",
            "`P`",
            "`COFFER_API_KEY`",
            "`1`",
            "`N`",
        ] {
            assert!(all.contains(named), "{named} in {all}");
        }
    }

    #[test]
    fn a_strangers_file_is_bounded() {
        let long = format!("{{\"a\": \"{}\"}}", "x".repeat(LONGEST_FILE));
        assert_eq!(DevContainer::read(&long, "/"), Err(BadDevContainer::TooLong));
        let many: Vec<String> = (0..100).map(|number| format!("\"k{number}\": \"true\"")).collect();
        let many = many.join(",");
        let text = format!("{{\"onCreateCommand\": {{{many}}}}}");
        assert_eq!(DevContainer::read(&text, "/"), Err(BadDevContainer::TooMuch));
        let found = read(&format!("{{\"containerEnv\": {{{many}}}, {many}}}"));
        assert_eq!((found.env.len(), found.warnings.len()), (MOST_VARIABLES, MOST_WARNINGS));
        for bad in ["", "[]", "{", "{\"postCreateCommand\": 7}", "{\"postCreateCommand\": []}", "/* ", "\"\\"]
        {
            assert!(DevContainer::read(bad, "/").is_err(), "{bad}");
        }
        let deep = "[".repeat(10_000);
        assert!(matches!(DevContainer::read(&format!("{{\"a\":{deep}"), "/"), Err(BadDevContainer::Json(_))));
    }

    #[test]
    fn a_name_cannot_write_to_a_terminal() {
        let found = read("{\"\\u001b[31mred\": 1}");
        assert_eq!(found.warnings, ["`[31mred` is not followed"]);
    }
}
