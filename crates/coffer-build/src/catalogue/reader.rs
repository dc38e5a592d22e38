//! Reads the Dockerfile of a definition: our own text, so only what definitions use.

use coffer_core::{BuildPlan, BuildSource, BuildStep, BuildStepKind};

use crate::BuildError;

/// Names a template in `FROM`, where an ordinary name is that of an image.
const TEMPLATE: &str = "template://";

/// The template in `FROM`.
pub(super) fn source(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("FROM ")?.trim().strip_prefix(TEMPLATE))
}

/// The plan. Steps run as root in `/`; sandboxes start as `user` in its home, as in E2B's images.
pub(super) fn plan(text: &str, context: Option<&str>) -> Result<BuildPlan, BuildError> {
    let bad = |line: &str| BuildError::BadDefinition(line.chars().take(100).collect());
    let source = source(text).ok_or_else(|| bad(text))?;
    let step = |kind, args: &[&str], files_hash| BuildStep {
        kind,
        args: args.iter().map(ToString::to_string).collect(),
        files_hash,
        force: false,
    };
    let mut steps =
        vec![step(BuildStepKind::User, &["root"], None), step(BuildStepKind::Workdir, &["/"], None)];
    for instruction in instructions(text) {
        let (word, rest) = instruction.split_once(' ').ok_or_else(|| bad(&instruction))?;
        let rest = rest.trim();
        steps.push(match word {
            "FROM" => continue,
            "RUN" => step(BuildStepKind::Run, &[rest], None),
            "COPY" => {
                let (from, to) = rest.split_once(' ').ok_or_else(|| bad(&instruction))?;
                step(BuildStepKind::Copy, &[from, to.trim()], context.map(String::from))
            }
            "ENV" => {
                let pairs = rest.split(' ').map(|pair| pair.split_once('=').ok_or_else(|| bad(&instruction)));
                let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
                let words: Vec<&str> = pairs.into_iter().flat_map(|(name, value)| [name, value]).collect();
                step(BuildStepKind::Env, &words, None)
            }
            "WORKDIR" => step(BuildStepKind::Workdir, &[rest], None),
            "USER" => step(BuildStepKind::User, &[rest], None),
            _ => return Err(bad(&instruction)),
        });
    }
    let own = |kind| steps.iter().skip(2).any(|step: &BuildStep| step.kind == kind);
    let (user, workdir) = (own(BuildStepKind::User), own(BuildStepKind::Workdir));
    if !user {
        steps.push(step(BuildStepKind::User, &["user"], None));
    }
    if !workdir {
        steps.push(step(BuildStepKind::Workdir, &["/home/user"], None));
    }
    Ok(BuildPlan { source: BuildSource::Template(source.to_string()), steps, start: None, force: false })
}

/// Instructions without comments; a backslash at the end of a line continues it.
fn instructions(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut continues = false;
    for line in text.lines() {
        if line.trim_start().starts_with('#') || (line.trim().is_empty() && !continues) {
            continue;
        }
        let (line, goes_on) = line.strip_suffix('\\').map_or((line, false), |line| (line, true));
        match found.last_mut().filter(|_| continues) {
            Some(last) => {
                last.push(' ');
                last.push_str(line.trim());
            }
            None => found.push(line.trim().to_string()),
        }
        continues = goes_on;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_become_steps() {
        let text = "FROM template://base\n# why\nRUN a \\\n    && b\nENV A=1 B=$A:2\nCOPY x /y\n";
        let plan = plan(text, Some("00")).unwrap();
        assert_eq!(plan.source, BuildSource::Template("base".into()));
        let steps: Vec<String> =
            plan.steps.iter().map(|step| format!("{} {}", step.kind.as_str(), step.args.join("|"))).collect();
        let expected = [
            "USER root",
            "WORKDIR /",
            "RUN a  && b",
            "ENV A|1|B|$A:2",
            "COPY x|/y",
            "USER user",
            "WORKDIR /home/user",
        ];
        assert_eq!(steps, expected);
        assert_eq!(plan.steps[4].files_hash.as_deref(), Some("00"));
        assert!(super::plan("FROM template://base\nADD x /y", None).is_err());
        assert!(super::plan("FROM debian:12\n", None).is_err());
    }
}
