//! Composes a commit message from a task's title.

use super::{CommitPolicy, ConventionalCommit};

/// First words of a title that suggest a type. The first match decides.
const SIGNS: [(&str, &[&str]); 9] = [
    ("revert", &["revert"]),
    ("fix", &["fix", "fixes", "repair", "correct", "resolve", "prevent", "stop", "avoid", "handle", "bug"]),
    ("docs", &["document", "docs", "doc", "explain", "readme"]),
    ("test", &["test", "tests", "cover"]),
    ("perf", &["speed", "optimise", "optimize", "accelerate", "faster"]),
    (
        "refactor",
        &["refactor", "rename", "simplify", "split", "extract", "move", "clean", "tidy", "restructure"],
    ),
    ("build", &["build", "upgrade", "bump", "package"]),
    ("ci", &["ci"]),
    (
        "feat",
        &["add", "implement", "support", "introduce", "allow", "make", "create", "write", "provide", "show"],
    ),
];
const OTHERWISE: &str = "chore";
/// The scope for projects that require one but list none.
const SOME_SCOPE: &str = "task";

impl CommitPolicy {
    /// A message that follows this policy, for a change with this title. Deterministic.
    pub fn compose(&self, title: &str, footers: &[(String, String)]) -> String {
        let title: String = title.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let title = title.split_whitespace().collect::<Vec<_>>().join(" ");
        let subject = self.subject(&title);
        let mut message = subject;
        for (at, (token, value)) in footers.iter().enumerate() {
            message.push_str(if at == 0 { "\n\n" } else { "\n" });
            message.push_str(&format!("{token}: {value}"));
        }
        message
    }

    fn subject(&self, title: &str) -> String {
        let own = ConventionalCommit::parse(title).ok();
        if own.is_some() && self.judge(title).is_ok() {
            return title.to_string();
        }
        if !self.conventional {
            return shortened(title, self.longest_subject);
        }
        let (named, described) = match own {
            Some(own) => (Some(own.kind), own.description),
            None => (None, title.to_string()),
        };
        let is_allowed = |kind: &str| self.types.iter().any(|known| known.eq_ignore_ascii_case(kind));
        let wanted = named.as_deref().filter(|kind| is_allowed(kind)).unwrap_or_else(|| kind_of(&described));
        let kind = [wanted, OTHERWISE].into_iter().find(|kind| is_allowed(kind));
        let kind = kind.or_else(|| self.types.first().map(String::as_str)).unwrap_or(OTHERWISE);
        let scope = self.scopes.first().map_or(SOME_SCOPE, String::as_str);
        let head = if self.require_scope { format!("{kind}({scope}): ") } else { format!("{kind}: ") };
        let room = self.longest_subject.saturating_sub(head.chars().count()).max(1);
        format!("{head}{}", shortened(&uncapitalised(&described), room))
    }
}

fn kind_of(title: &str) -> &'static str {
    let words: Vec<String> = title
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .take(3)
        .map(str::to_lowercase)
        .collect();
    // The first word decides first: "add a test for the fix" adds a test.
    let signs = |word: &String| SIGNS.iter().find(|(_, signs)| signs.contains(&word.as_str()));
    words.iter().find_map(signs).map_or(OTHERWISE, |(kind, _)| kind)
}

/// Lower-cases `Fix it` for use after a colon; `API` and `README` stay.
fn uncapitalised(text: &str) -> String {
    let mut letters = text.chars();
    match (letters.next(), letters.clone().next()) {
        (Some(first), Some(second)) if first.is_uppercase() && second.is_lowercase() => {
            first.to_lowercase().chain(letters).collect()
        }
        _ => text.to_string(),
    }
}

/// At most this many characters, cut between words if that keeps a good part.
fn shortened(text: &str, most: usize) -> String {
    let text = text.trim().trim_end_matches('.');
    if text.is_empty() {
        return "changes".chars().take(most).collect();
    }
    if text.chars().count() <= most {
        return text.to_string();
    }
    let cut: String = text.chars().take(most).collect();
    match cut.rfind(' ') {
        Some(space) if space * 2 >= cut.len() => cut[..space].trim_end().to_string(),
        _ => cut.trim_end().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn titles_become_conventional() {
        let policy = CommitPolicy::default();
        for (title, message) in [
            ("Fix the door", "fix: fix the door"),
            ("The door squeaks", "chore: the door squeaks"),
            ("Add a test for the fix", "feat: add a test for the fix"),
            ("README explains nothing.", "docs: README explains nothing"),
            ("feat(api)!: drop ids", "feat(api)!: drop ids"),
            ("wip: fix the door", "fix: fix the door"),
            ("a\tb\u{7}  c", "chore: a b c"),
            ("...", "chore: changes"),
        ] {
            assert_eq!(policy.compose(title, &[]), message);
        }
        let footers = [("Task".to_string(), "t-1".to_string()), ("Agent".to_string(), "coder".to_string())];
        let told = policy.compose("Fix it", &footers);
        assert_eq!(told, "fix: fix it\n\nTask: t-1\nAgent: coder");
        assert_eq!(policy.judge(&told).unwrap().unwrap().footers, footers);
        let long = policy.compose(&"word ".repeat(50), &[]);
        assert!(long.chars().count() <= 72 && long.ends_with("word"), "{long}");
    }

    #[test]
    fn the_policy_of_the_project_holds() {
        let strict = CommitPolicy {
            types: vec!["deps".into(), "fix".into()],
            scopes: vec!["web".into()],
            require_scope: true,
            ..CommitPolicy::default()
        };
        assert_eq!(strict.compose("Fix it", &[]), "fix(web): fix it");
        assert_eq!(strict.compose("fix(api): it", &[]), "fix(web): it");
        assert_eq!(strict.compose("Whatever", &[]), "deps(web): whatever");
        let free = CommitPolicy { conventional: false, ..CommitPolicy::default() };
        assert_eq!(free.compose("Fix it", &[]), "Fix it");
    }

    proptest! {
        #[test]
        fn every_title_gives_a_message_that_is_taken(
            title in "\\PC{0,200}", types in prop::collection::vec("[a-z]{1,8}", 1..3),
            require_scope: bool, conventional: bool, longest_subject in 20_usize..100,
        ) {
            let policy = CommitPolicy { conventional, types, scopes: Vec::new(), require_scope, longest_subject };
            let message = policy.compose(&title, &[("Task".into(), "t".into())]);
            prop_assert!(policy.judge(&message).is_ok(), "{message:?}: {:?}", policy.judge(&message));
        }
    }
}
