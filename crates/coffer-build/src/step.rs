//! Steps of a build, checked and typed.

use std::collections::BTreeMap;

use coffer_core::{BuildPlan, BuildSource, BuildStep, BuildStepKind};

/// Most steps of a build.
pub(crate) const MOST_STEPS: usize = 500;
/// Most arguments of a step, and the longest one.
const MOST_ARGS: usize = 512;
const LONGEST_ARG: usize = 64 * 1024;
/// The length of a SHA-256 in hex, as clients name files.
const HASH_LENGTH: usize = 64;

/// The longest text that variables may grow to. Each may name others many times, so that a few of them make any length.
const LONGEST_EXPANDED: usize = LONGEST_ARG;

/// A step that can be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Run {
        command: String,
        user: Option<String>,
        /// Variables of this command only.
        env: BTreeMap<String, String>,
        /// More of them, with the names of the secrets that have their values.
        secrets: BTreeMap<String, String>,
    },
    Copy {
        source: String,
        dest: String,
        /// `user[:group]`.
        owner: Option<String>,
        mode: Option<u32>,
        /// The client's name for the files.
        hash: String,
    },
    /// Pairs, in order: a value may use an earlier one.
    Env(Vec<(String, String)>),
    Workdir(String),
    User(String),
}

/// Why a plan is refused before anything runs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BadPlan {
    pub message: String,
    /// `base`, or the number of the step.
    pub step: String,
}

/// Checks everything about a plan that needs no sandbox.
pub(crate) fn check(plan: &BuildPlan) -> Result<Vec<Step>, BadPlan> {
    let bad = |step: &str, message: String| BadPlan { message, step: step.to_string() };
    let (BuildSource::Image(name) | BuildSource::Template(name) | BuildSource::Archive(name)) = &plan.source;
    if name.is_empty() || name.len() > 512 || name.chars().any(|letter| letter.is_control() || letter == ' ')
    {
        return Err(bad("base", "the name of the base is not usable".to_string()));
    }
    let start = plan.start.iter().flat_map(|start| [&start.command, &start.ready]).flatten();
    if start.into_iter().any(|line| line.len() > LONGEST_ARG) {
        let message = format!("the start or ready command is longer than {LONGEST_ARG} bytes");
        return Err(bad("finalize", message));
    }
    if plan.steps.len() > MOST_STEPS {
        return Err(bad("base", format!("{} steps are more than {MOST_STEPS}", plan.steps.len())));
    }
    let numbered = plan.steps.iter().enumerate();
    numbered
        .map(|(index, step)| typed(step).map_err(|message| bad(&(index + 1).to_string(), message)))
        .collect()
}

fn typed(step: &BuildStep) -> Result<Step, String> {
    let name = step.kind.as_str();
    if step.args.len() > MOST_ARGS || step.args.iter().any(|arg| arg.len() > LONGEST_ARG) {
        return Err(format!(
            "{name} has more than {MOST_ARGS} arguments, or one longer than {LONGEST_ARG} bytes"
        ));
    }
    if step.args.iter().chain(step.env.values()).any(|arg| arg.contains('\0')) {
        return Err(format!("{name} has an argument with a NUL"));
    }
    if step.kind != BuildStepKind::Run && !(step.env.is_empty() && step.secrets.is_empty()) {
        return Err(format!("{name} runs no command, so it has no variables and secrets of its own"));
    }
    let arg = |index: usize| step.args.get(index).map(String::as_str).filter(|arg| !arg.is_empty());
    match step.kind {
        BuildStepKind::Run => {
            let command = arg(0).ok_or("RUN needs a command")?.to_string();
            let variables = step.env.keys().chain(step.secrets.keys());
            if let Some(name) = variables.into_iter().find(|name| !is_variable(name)) {
                return Err(format!("'{name}' cannot be the name of a variable"));
            }
            Ok(Step::Run {
                command,
                user: arg(1).map(String::from),
                env: step.env.clone(),
                secrets: step.secrets.clone(),
            })
        }
        BuildStepKind::Copy => {
            let (Some(source), Some(dest)) = (arg(0), arg(1)) else {
                return Err("COPY needs a source and a destination".to_string());
            };
            let hash = step.files_hash.as_deref().ok_or("COPY needs the hash of its uploaded files")?;
            if !is_hash(hash) {
                return Err(format!(
                    "'{}' is not a SHA-256 in hex",
                    hash.chars().take(80).collect::<String>()
                ));
            }
            let mode = arg(3).map(|mode| u32::from_str_radix(mode, 8).map_err(|_| mode)).transpose();
            let mode = mode.map_err(|mode| format!("the mode '{mode}' is not octal"))?;
            if mode.is_some_and(|mode| mode > 0o7777) {
                return Err("the mode of a file has at most four octal digits".to_string());
            }
            Ok(Step::Copy {
                source: source.to_string(),
                dest: dest.to_string(),
                owner: arg(2).map(String::from),
                mode,
                hash: hash.to_string(),
            })
        }
        BuildStepKind::Env => {
            if step.args.is_empty() || !step.args.len().is_multiple_of(2) {
                return Err("ENV needs names and values in pairs".to_string());
            }
            let pairs = step.args.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
            let pairs: Vec<_> = pairs.collect();
            match pairs.iter().find(|(name, _)| !is_variable(name)) {
                Some((name, _)) => Err(format!("'{name}' cannot be the name of a variable")),
                None => Ok(Step::Env(pairs)),
            }
        }
        BuildStepKind::Workdir => Ok(Step::Workdir(arg(0).ok_or("WORKDIR needs a path")?.to_string())),
        BuildStepKind::User => {
            let user = arg(0).ok_or("USER needs a name")?;
            // A group is the user's own.
            let user = user.split(':').next().unwrap_or(user);
            if !is_user(user) {
                return Err(format!("invalid username: '{user}'"));
            }
            Ok(Step::User(user.to_string()))
        }
    }
}

/// Whether a client may name files by this text, which becomes part of no path.
pub fn is_hash(text: &str) -> bool {
    text.len() == HASH_LENGTH && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

pub(crate) fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.len() <= 256 && !name.contains(['=', '\0'])
}

/// As useradd accepts them, or a number.
fn is_user(name: &str) -> bool {
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    !name.is_empty() && name.len() <= 32 && !name.starts_with('-') && name.bytes().all(letters)
}

/// A text that is too long once its variables are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is longer than {LONGEST_EXPANDED} bytes once its variables are replaced")]
pub(crate) struct TooLong;

/// Replaces `$NAME`, `${NAME}`, `${NAME:-default}` and `${NAME:+instead}`, also without the colon; a backslash keeps
/// a dollar sign.
pub(crate) fn expand(text: &str, variables: &BTreeMap<String, String>) -> Result<String, TooLong> {
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['$', '\\']) {
        if result.len() > LONGEST_EXPANDED {
            return Err(TooLong);
        }
        result.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix('\\') {
            match after.strip_prefix('$') {
                Some(after) => {
                    result.push('$');
                    rest = after;
                }
                None => {
                    result.push('\\');
                    rest = after;
                }
            }
            continue;
        }
        let after = &rest[1..];
        if let Some(inner) = after.strip_prefix('{')
            && let Some(end) = inner.find('}')
        {
            result.push_str(&braced(&inner[..end], variables)?);
            rest = &inner[end + 1..];
            continue;
        }
        let length = after.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
        if length == 0 || after.as_bytes()[0].is_ascii_digit() {
            result.push('$');
            rest = after;
            continue;
        }
        result.push_str(variables.get(&after[..length]).map_or("", String::as_str));
        rest = &after[length..];
    }
    result.push_str(rest);
    if result.len() > LONGEST_EXPANDED { Err(TooLong) } else { Ok(result) }
}

fn braced(inner: &str, variables: &BTreeMap<String, String>) -> Result<String, TooLong> {
    let length = inner.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
    let (name, rest) = inner.split_at(length);
    let value = variables.get(name).cloned();
    let (only_filled, operator) = rest.strip_prefix(':').map_or((false, rest), |rest| (true, rest));
    let value = value.filter(|value| !(only_filled && value.is_empty()));
    match (operator.strip_prefix('-'), operator.strip_prefix('+')) {
        (Some(default), _) => value.map_or_else(|| expand(default, variables), Ok),
        (None, Some(instead)) => value.map_or(Ok(String::new()), |_| expand(instead, variables)),
        (None, None) if rest.is_empty() => Ok(value.unwrap_or_default()),
        // Another operator of the shell: the text stays as it is.
        (None, None) => Ok(format!("${{{inner}}}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn step(kind: BuildStepKind, args: &[&str]) -> BuildStep {
        let step = BuildStep::new(kind, args.iter().map(ToString::to_string).collect());
        BuildStep { files_hash: Some("0".repeat(64)), ..step }
    }

    #[test]
    fn steps_are_what_the_sdks_send() {
        let typed = |kind, args: &[&str]| typed(&step(kind, args));
        assert_eq!(
            typed(BuildStepKind::Run, &["ls", "root"]),
            Ok(Step::Run {
                command: "ls".into(),
                user: Some("root".into()),
                env: BTreeMap::new(),
                secrets: BTreeMap::new()
            })
        );
        assert_eq!(
            typed(BuildStepKind::Copy, &["a", "/b/", "", "0640"]),
            Ok(Step::Copy {
                source: "a".into(),
                dest: "/b/".into(),
                owner: None,
                mode: Some(0o640),
                hash: "0".repeat(64)
            })
        );
        assert_eq!(typed(BuildStepKind::User, &["app:www"]), Ok(Step::User("app".into())));
    }

    #[test]
    fn bad_steps_are_refused_with_their_number() {
        let plan = |bad: BuildStep| BuildPlan {
            source: BuildSource::Template("base".into()),
            steps: vec![step(BuildStepKind::Run, &["true"]), bad],
            start: None,
            force: false,
            platform: None,
        };
        for (kind, args, says) in [
            (BuildStepKind::Run, &[][..], "RUN needs a command"),
            (BuildStepKind::Copy, &["a"], "COPY needs a source and a destination"),
            (BuildStepKind::Copy, &["a", "b", "", "9"], "the mode '9' is not octal"),
            (BuildStepKind::Env, &["A"], "ENV needs names and values in pairs"),
            (BuildStepKind::Env, &["A=B", "c"], "'A=B' cannot be the name of a variable"),
            (BuildStepKind::Workdir, &[""], "WORKDIR needs a path"),
            (BuildStepKind::User, &["; exit 1"], "invalid username: '; exit 1'"),
            (BuildStepKind::User, &["-x"], "invalid username: '-x'"),
        ] {
            let refused = check(&plan(step(kind, args))).unwrap_err();
            assert_eq!((refused.message.as_str(), refused.step.as_str()), (says, "2"));
        }
        let unhashed =
            BuildStep { files_hash: Some("../x".into()), ..step(BuildStepKind::Copy, &["a", "b"]) };
        assert!(check(&plan(unhashed)).unwrap_err().message.contains("'../x' is not a SHA-256"));
    }

    #[test]
    fn values_use_variables_as_in_a_dockerfile() {
        let variables =
            BTreeMap::from([("PATH".to_string(), "/bin".to_string()), ("E".into(), String::new())]);
        for (text, expanded) in [
            ("$PATH:/x", "/bin:/x"),
            ("${PATH}/y", "/bin/y"),
            ("\\$PATH", "$PATH"),
            ("a\\b", "a\\b"),
            ("$1 $ ${", "$1 $ ${"),
            ("${NONE:-d} ${E:-d} ${E-d}", "d d "),
            ("${NONE:-$PATH} ${NONE:-\\$5}", "/bin $5"),
            ("${PATH:+x} ${E:+x} ${E+x} ${NONE+x}", "x  x "),
            ("$NONE.", "."),
            ("${PATH%x}", "${PATH%x}"),
        ] {
            assert_eq!(expand(text, &variables).as_deref(), Ok(expanded), "{text}");
        }
    }

    #[test]
    fn variables_that_multiply_are_refused_before_they_fill_the_memory() {
        let variables = BTreeMap::from([("A".to_string(), "x".repeat(LONGEST_EXPANDED))]);
        assert_eq!(expand("$A", &variables).map(|text| text.len()), Ok(LONGEST_EXPANDED));
        // Two GiB, if all of it were written.
        for bomb in ["$A", "${A}", "${A:-x}"] {
            assert_eq!(expand(&bomb.repeat(32 << 10), &variables), Err(TooLong));
        }
        assert_eq!(expand("$A.", &variables), Err(TooLong));
    }

    #[test]
    fn a_start_command_is_as_long_as_an_argument_at_most() {
        let plan = |command: String, ready: Option<String>| BuildPlan {
            source: BuildSource::Template("base".into()),
            steps: Vec::new(),
            start: Some(coffer_core::StartCommand { command: Some(command), ready }),
            force: false,
            platform: None,
        };
        assert!(check(&plan("x".repeat(LONGEST_ARG), None)).is_ok());
        for long in [plan("x".repeat(LONGEST_ARG + 1), None), plan("x".into(), Some("x".repeat(1 << 20)))] {
            assert_eq!(check(&long).unwrap_err().step, "finalize");
        }
    }

    proptest! {
        #[test]
        fn text_without_dollars_and_backslashes_stays(text in "[^$\\\\]*") {
            prop_assert_eq!(expand(&text, &BTreeMap::new()), Ok(text));
        }

        #[test]
        fn expanding_never_panics(text in ".*") {
            let _ = expand(&text, &BTreeMap::new());
        }
    }
}
