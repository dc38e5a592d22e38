//! The program of an agent in its sandbox: whether it is there, and the files that it leaves.

use std::time::Duration;

use coffer_core::StepCode;
use coffer_core::agent::AgentDefinition;
use coffer_fleet::exec::Command;
use coffer_flow::StepError;

use super::{Station, Workbench};

const WITHIN: Duration = Duration::from_secs(30);
const MOST_OUTPUT: usize = 4096;
const LONGEST_VERSION: usize = 200;

/// Finds a program as a start of it would; a path with a slash is taken below the directory.
const FIND: &str = r#"cd "$2" 2>/dev/null; command -v -- "$1" >/dev/null"#;
/// Adds patterns to the repository's own list of files to leave alone, which is not part of its contents.
const EXCLUDE: &str = r#"cd "$1" && shift && file=$(git rev-parse --git-path info/exclude) && mkdir -p "${file%/*}" &&
for pattern; do grep -qsxF -- "$pattern" "$file" || printf '%s\n' "$pattern" >> "$file"; done"#;

impl Workbench {
    /// Runs a short command as the sandbox's user; returns whether it succeeded, and what it wrote.
    pub(super) async fn small(
        &self,
        at: &Station,
        words: Vec<String>,
        cwd: Option<&str>,
        within: Duration,
    ) -> Result<(bool, String), StepError> {
        let record = self.record(at).await?;
        let command = Command {
            words,
            cwd: cwd.map(str::to_string),
            timeout: Some(within),
            most: MOST_OUTPUT,
            ..Command::default()
        };
        let done = self.exec.run(&record, command, None).await;
        let done = done.map_err(|error| self.trouble_at(at, error))?;
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        let text = if text.trim().is_empty() { done.stderr.clone() } else { text };
        Ok((done.succeeded(), text))
    }

    async fn shell(&self, at: &Station, script: &str, words: &[&str]) -> Result<bool, StepError> {
        let all = ["/bin/sh", "-c", script, "sh"].iter().chain(words).map(ToString::to_string).collect();
        Ok(self.small(at, all, None, WITHIN).await?.0)
    }

    /// Explains why an agent's program was not started: the most common reason is that it is not there.
    pub(super) async fn why_not_started(
        &self,
        at: &Station,
        definition: &AgentDefinition,
        program: &str,
        cwd: &str,
        error: StepError,
    ) -> StepError {
        // If that cannot be found out, the first error is the better one.
        if self.shell(at, FIND, &[program, cwd]).await.unwrap_or(true) {
            return error;
        }
        StepError::fatal(StepCode::AgentMissing, missing(definition, program, &self.default_template))
    }

    /// Lets git leave alone what the agent's program keeps in the repository for itself.
    pub(super) async fn exclude_litter(
        &self,
        at: &Station,
        definition: &AgentDefinition,
        cwd: &str,
    ) -> Result<(), StepError> {
        let patterns = definition.preset.litter();
        if !patterns.is_empty() {
            let words: Vec<&str> = [cwd].into_iter().chain(patterns.iter().copied()).collect();
            if !self.shell(at, EXCLUDE, &words).await? {
                tracing::debug!("could not exclude the files of {}", definition.preset.as_str());
            }
        }
        Ok(())
    }

    /// What a program says about its version: its first line.
    pub(super) async fn version_of(&self, at: &Station, program: &str) -> Result<Option<String>, StepError> {
        let words = vec![program.to_string(), "--version".to_string()];
        let (succeeded, text) = self.small(at, words, None, WITHIN * 2).await?;
        let line = text.lines().map(str::trim).find(|line| !line.is_empty()).filter(|_| succeeded);
        Ok(line
            .map(|line| line.chars().filter(|letter| !letter.is_control()).take(LONGEST_VERSION).collect()))
    }
}

/// What to say to the person whose agent has no program.
fn missing(definition: &AgentDefinition, program: &str, default_template: &str) -> String {
    let program: String = program.chars().filter(|letter| !letter.is_control()).take(200).collect();
    let template = definition.template.as_deref().unwrap_or(default_template);
    let begin = format!("`{program}` is not in template `{template}`");
    match definition.recipe() {
        Some(recipe) if definition.template.as_deref() != Some(recipe.template) => format!(
            "{begin}: set `template` of the agent to `{}`, which has it, or install it in a template of your own with `{}`",
            recipe.template,
            recipe.install()
        ),
        Some(recipe) => {
            format!("{begin}: `coffer template build {} --force` builds it again", recipe.template)
        }
        None => format!("{begin}: use a template that has it, or correct `command`"),
    }
}

#[cfg(test)]
mod tests {
    use coffer_core::agent::Preset;

    use super::*;

    #[test]
    fn a_missing_program_comes_with_the_line_that_installs_it() {
        let claude = AgentDefinition::of(Preset::ClaudeCode);
        let told = missing(&claude, "claude", "base");
        assert!(told.starts_with(
            "`claude` is not in template `base`: set `template` of the agent to `agent-claude-code`"
        ));
        assert!(told.contains("`npm install -g --no-audit --no-fund '@anthropic-ai/claude-code@"), "{told}");
        let named = AgentDefinition { template: Some("agent-claude-code".into()), ..claude };
        assert!(missing(&named, "claude", "base").contains("--force"));
        let words = ["./mine", "{prompt}"].map(String::from).to_vec();
        let own = AgentDefinition { command: Some(words), ..AgentDefinition::of(Preset::Custom) };
        assert!(
            missing(&own, "./mine\u{1b}", "base")
                .starts_with("`./mine` is not in template `base`: use a template")
        );
    }
}
