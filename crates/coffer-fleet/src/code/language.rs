//! Languages of the code interpreter.

/// A language, by the name that policies, records and the interpreter have for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    Python,
    JavaScript,
    TypeScript,
    R,
    Bash,
    Java,
}

impl Language {
    pub const ALL: [Self; 6] =
        [Self::Python, Self::JavaScript, Self::TypeScript, Self::R, Self::Bash, Self::Java];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::JavaScript => "javascript",
            Self::TypeScript => "typescript",
            Self::R => "r",
            Self::Bash => "bash",
            Self::Java => "java",
        }
    }

    /// By its name, or another that the interpreter knows. Names are compared here and not there: a policy must not be
    /// evaded by a spelling.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "python3" => Some(Self::Python),
            "js" | "deno" => Some(Self::JavaScript),
            "ts" => Some(Self::TypeScript),
            name => Self::ALL.into_iter().find(|language| language.name() == name),
        }
    }

    /// All names, for messages.
    pub fn names() -> String {
        Self::ALL.iter().map(|language| language.name()).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_to_one_language() {
        for language in Language::ALL {
            assert_eq!(Language::parse(language.name()), Some(language));
        }
        assert_eq!(Language::parse("ts").map(Language::name), Some("typescript"));
        assert_eq!(
            (Language::parse("Python"), Language::parse(""), Language::parse("cobol")),
            (None, None, None)
        );
        assert_eq!(Language::ALL.map(Language::name), coffer_core::command::LANGUAGES);
    }
}
