//! Continues the session of an earlier turn, for the programs that can.
//!
//! Sessions are files in the sandbox, so this works from turn to turn of an attempt. The next attempt has another
//! sandbox; it is told what happened instead.

use super::preset::Preset;

const LONGEST_SESSION: usize = 100;

/// Whether a name of a session can be a word of a command: it comes from the sandbox.
fn is_plain(session: &str) -> bool {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    !session.is_empty()
        && session.len() <= LONGEST_SESSION
        && !session.starts_with('-')
        && session.chars().all(fits)
}

/// The words of a preset's command, changed so that it continues the session; `None` if it cannot.
pub(super) fn resumed(preset: Preset, words: &[String], session: &str) -> Option<Vec<String>> {
    if !is_plain(session) {
        return None;
    }
    let mut words = words.to_vec();
    let after = |words: &mut Vec<String>, at: usize, more: &[&str]| {
        let at = at.min(words.len());
        words.splice(at..at, more.iter().map(ToString::to_string));
    };
    match preset {
        Preset::ClaudeCode | Preset::Qwen => after(&mut words, 1, &["--resume", session]),
        // Its sessions have numbers of their own; there is one in the sandbox.
        Preset::Gemini => after(&mut words, 1, &["--resume", "latest"]),
        // `codex exec resume ID`, `opencode run --session ID`.
        Preset::Codex => after(&mut words, 2, &["resume", session]),
        Preset::OpenCode => after(&mut words, 2, &["--session", session]),
        Preset::Aider | Preset::Goose | Preset::Cursor | Preset::Amp | Preset::Copilot | Preset::Custom => {
            return None;
        }
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::prompt::Talk;
    use crate::agent::{AgentDefinition, Job};

    #[test]
    fn a_turn_continues_the_session_of_the_one_before() {
        let said = [crate::agent::prompt::Said { body: "and now?".into(), ..Default::default() }];
        let talk = Talk { attempt: 1, turn: 2, said: &said, session: Some("s-1"), ..Talk::default() };
        let job = Job { title: "t", description: "d", talk, ..Job::default() };
        for (preset, begins) in [
            (Preset::ClaudeCode, &["claude", "--resume", "s-1"][..]),
            (Preset::Codex, &["codex", "exec", "resume", "s-1"]),
            (Preset::OpenCode, &["opencode", "run", "--session", "s-1"]),
            (Preset::Gemini, &["gemini", "--resume", "latest"]),
            (Preset::Qwen, &["qwen", "--resume", "s-1"]),
        ] {
            let ran = AgentDefinition::of(preset).invocation(&job).unwrap();
            assert_eq!(&ran.words[..begins.len()], begins);
            assert!(ran.prompt.contains("and now?") && !ran.prompt.contains("t\n\nd"), "{}", ran.prompt);
        }
        let ran = AgentDefinition::of(Preset::Goose).invocation(&job).unwrap();
        assert!(ran.prompt.starts_with("t\n\nd"), "it remembers nothing: {}", ran.prompt);
        for hostile in ["--dangerous", "", "a b", "x\n", &"y".repeat(200)] {
            assert_eq!(resumed(Preset::ClaudeCode, &["claude".into()], hostile), None);
        }
    }
}
