//! Logins that are files: subscriptions whose programs keep them in the home directory, and renew them.
//!
//! A definition names such a file among its secrets, as `~/.codex/auth.json`.

const LONGEST_PATH: usize = 200;
const MOST_PARTS: usize = 5;

/// Codex' own, with a subscription of ChatGPT.
pub const CODEX: &str = "~/.codex/auth.json";
/// Gemini CLI's, with an account of Google.
pub const GEMINI: &str = "~/.gemini/oauth_creds.json";

/// Whether a name among a definition's secrets is that of a file.
pub fn is_file(name: &str) -> bool {
    name.starts_with("~/")
}

/// Whether it can be the path of one: below a directory of the home directory.
pub fn is_path(name: &str) -> bool {
    let Some(path) = name.strip_prefix("~/") else { return false };
    let parts: Vec<&str> = path.split('/').collect();
    let fits = |part: &&str| {
        !part.is_empty()
            && !matches!(*part, "." | "..")
            && part.chars().all(|letter| letter.is_ascii_alphanumeric() || "._-".contains(letter))
    };
    name.len() <= LONGEST_PATH && (2..=MOST_PARTS).contains(&parts.len()) && parts.iter().all(fits)
}

/// The directory below the home directory that is kept in memory, and the rest of the path.
pub fn split(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix("~/").filter(|_| is_path(name))?.split_once('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_below_a_directory_of_the_home_directory() {
        for good in [CODEX, GEMINI, "~/.config/tool/login.json"] {
            assert!(is_file(good) && is_path(good), "{good}");
        }
        for bad in [
            "~/.bashrc",
            "~/",
            "~/a/../b",
            "/etc/passwd",
            "~/a//b",
            "~/a/b c",
            "~root/a/b",
            "~/a/b/c/d/e/f",
            "~/./a",
        ] {
            assert!(!is_path(bad), "{bad}");
        }
        assert_eq!(split(CODEX), Some((".codex", "auth.json")));
        assert_eq!(split("~/.config/tool/login.json"), Some((".config", "tool/login.json")));
    }
}
