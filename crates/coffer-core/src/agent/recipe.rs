//! Recipes: how the program of a preset gets into a template, and what it needs there.

use super::login_file::{CODEX as CODEX_FILE, GEMINI as GEMINI_FILE};
use super::preset::Preset;

/// How to get the program of a preset, and how to sign it in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recipe {
    /// The template of the catalogue that has it.
    pub template: &'static str,
    /// The name of its program.
    pub program: &'static str,
    pub package: Package,
    /// A command line for root that follows the installation.
    pub afterwards: Option<&'static str>,
    /// The version that `make agents` was last run with.
    pub tested: &'static str,
    /// The least memory for its sandbox. A peak was measured with a small repository; this leaves room for its tools.
    pub memory_mib: u64,
    /// Ways to sign in, the usual one first.
    pub logins: &'static [Login],
    /// Whether it does not run without a model.
    pub needs_model: bool,
}

/// Where a program comes from. The version is a range of which `make agents` tested one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Package {
    /// A package of the npm registry, which has checksums of all of them.
    Npm { name: &'static str, versions: &'static str },
    /// The same for one kind of processor; its program has another name than it should.
    NpmBinary { name: &'static str, versions: &'static str, program: &'static str },
    /// A package of the Python index, in a virtual environment of its own below `/opt`.
    Pip { name: &'static str, versions: &'static str },
}

/// A way to sign in: a variable, or a file below the home directory, with the value of a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Login {
    pub variable: &'static str,
    /// What it is, for the person who is asked for it.
    pub about: &'static str,
    /// The usual name of the secret.
    pub secret: &'static str,
    /// The hosts that it is for.
    pub hosts: &'static [&'static str],
    /// Other variables that this way needs.
    pub env: &'static [(&'static str, &'static str)],
}

const fn login(
    variable: &'static str,
    about: &'static str,
    secret: &'static str,
    hosts: &'static [&'static str],
) -> Login {
    Login { variable, about, secret, hosts, env: &[] }
}

const ANTHROPIC: Login =
    login("ANTHROPIC_API_KEY", "an API key of Anthropic", "anthropic", &["api.anthropic.com"]);
const OPENAI: Login = login("OPENAI_API_KEY", "an API key of OpenAI", "openai", &["api.openai.com"]);
const GOOGLE: Login = login(
    "GEMINI_API_KEY",
    "an API key of Google AI Studio",
    "gemini",
    &["generativelanguage.googleapis.com"],
);

const CLAUDE_CODE: Recipe = Recipe {
    template: "agent-claude-code",
    program: "claude",
    package: Package::Npm { name: "@anthropic-ai/claude-code", versions: "~2.1.325" },
    afterwards: None,
    tested: "2.1.327",
    memory_mib: 512,
    logins: &[
        ANTHROPIC,
        login(
            "CLAUDE_CODE_OAUTH_TOKEN",
            "a token of a Claude subscription, which `claude setup-token` prints",
            "claude-subscription",
            &["api.anthropic.com"],
        ),
    ],
    needs_model: false,
};

const CODEX: Recipe = Recipe {
    template: "agent-codex",
    program: "codex",
    package: Package::Npm { name: "@openai/codex", versions: ">=0.166.0 <0.170.0" },
    afterwards: None,
    tested: "0.169.0",
    memory_mib: 512,
    logins: &[
        Login { variable: "CODEX_API_KEY", ..OPENAI },
        login(
            CODEX_FILE,
            "the file that `codex login` writes, for a subscription of ChatGPT",
            "codex-login",
            &["chatgpt.com", "auth.openai.com"],
        ),
    ],
    needs_model: false,
};

const OPENCODE: Recipe = Recipe {
    template: "agent-opencode",
    program: "opencode",
    package: Package::Npm { name: "opencode-ai", versions: "~1.18.33" },
    afterwards: None,
    tested: "1.18.33",
    memory_mib: 1024,
    logins: &[ANTHROPIC, OPENAI, GOOGLE],
    needs_model: false,
};

const GEMINI: Recipe = Recipe {
    template: "agent-gemini",
    program: "gemini",
    package: Package::Npm { name: "@google/gemini-cli", versions: "~0.61.0" },
    // With a base URL in its environment it chooses a way to sign in that it does not have without a terminal.
    afterwards: Some(
        r#"mkdir -p /etc/gemini-cli && echo '{"security":{"auth":{"selectedType":"gemini-api-key"}}}' > /etc/gemini-cli/system-defaults.json"#,
    ),
    tested: "0.61.0",
    memory_mib: 512,
    logins: &[
        GOOGLE,
        Login {
            env: &[("GOOGLE_GENAI_USE_GCA", "true")],
            ..login(
                GEMINI_FILE,
                "the file that `gemini` writes when a person signs in with Google",
                "gemini-login",
                &["oauth2.googleapis.com", "cloudcode-pa.googleapis.com"],
            )
        },
    ],
    needs_model: false,
};

const QWEN: Recipe = Recipe {
    template: "agent-qwen",
    program: "qwen",
    package: Package::Npm { name: "@qwen-code/qwen-code", versions: "~0.24.4" },
    afterwards: None,
    tested: "0.24.4",
    memory_mib: 512,
    logins: &[Login {
        about: "an API key of a service that speaks OpenAI's API; OPENAI_BASE_URL says which, if it is another",
        ..OPENAI
    }],
    needs_model: true,
};

const GOOSE: Recipe = Recipe {
    template: "agent-goose",
    program: "goose",
    package: Package::NpmBinary {
        name: "@aaif/goose-binary-linux-x64",
        versions: "~1.52.0",
        program: "goose-binary-linux-x64",
    },
    afterwards: None,
    tested: "1.52.0",
    memory_mib: 512,
    logins: &[
        Login { env: &[("GOOSE_PROVIDER", "anthropic")], ..ANTHROPIC },
        Login { env: &[("GOOSE_PROVIDER", "openai")], ..OPENAI },
    ],
    needs_model: true,
};

const AIDER: Recipe = Recipe {
    template: "agent-aider",
    program: "aider",
    package: Package::Pip { name: "aider-chat", versions: "~=0.86.2" },
    afterwards: None,
    tested: "0.86.2",
    memory_mib: 768,
    logins: &[ANTHROPIC, OPENAI, GOOGLE],
    needs_model: false,
};

const COPILOT: Recipe = Recipe {
    template: "agent-copilot",
    program: "copilot",
    package: Package::Npm { name: "@github/copilot", versions: "~1.0.102" },
    afterwards: None,
    tested: "1.0.102",
    memory_mib: 768,
    logins: &[
        login(
            "GH_TOKEN",
            "a fine-grained token of GitHub with the permission \"Copilot Requests\"",
            "copilot",
            &["api.github.com", "api.githubcopilot.com", "*.githubcopilot.com"],
        ),
        // A provider of its own, which takes a model by name.
        OPENAI,
        ANTHROPIC,
    ],
    needs_model: false,
};

const AMP: Recipe = Recipe {
    template: "agent-amp",
    program: "amp",
    // Its versions are dates, marked as previews: no range finds them.
    package: Package::Npm { name: "@sourcegraph/amp", versions: "latest" },
    afterwards: None,
    tested: "0.0.1790142911",
    memory_mib: 768,
    logins: &[login("AMP_API_KEY", "an access token of ampcode.com", "amp", &["ampcode.com"])],
    needs_model: false,
};

impl Preset {
    /// How to get its program; `None` if there is no package of it.
    pub const fn recipe(self) -> Option<&'static Recipe> {
        match self {
            Self::ClaudeCode => Some(&CLAUDE_CODE),
            Self::Codex => Some(&CODEX),
            Self::OpenCode => Some(&OPENCODE),
            Self::Gemini => Some(&GEMINI),
            Self::Qwen => Some(&QWEN),
            Self::Goose => Some(&GOOSE),
            Self::Aider => Some(&AIDER),
            Self::Copilot => Some(&COPILOT),
            Self::Amp => Some(&AMP),
            // The vendor has an installer, not a package with a checksum.
            Self::Cursor | Self::Custom => None,
        }
    }

    /// Ways to sign in, the usual one first.
    pub const fn logins(self) -> &'static [Login] {
        const CURSOR: &[Login] = &[login(
            "CURSOR_API_KEY",
            "an API key of Cursor",
            "cursor",
            &["api2.cursor.sh", "api.cursor.com"],
        )];
        match (self.recipe(), self) {
            (Some(recipe), _) => recipe.logins,
            (None, Self::Cursor) => CURSOR,
            (None, _) => &[],
        }
    }
}

impl Recipe {
    /// The command line that installs it, for root.
    pub fn install(&self) -> String {
        match self.package {
            Package::Npm { name, versions } => {
                format!("npm install -g --no-audit --no-fund '{name}@{versions}'")
            }
            Package::NpmBinary { name, versions, program } => format!(
                "npm install -g --no-audit --no-fund '{name}@{versions}' \
                 && ln -sf \"$(npm prefix -g)/bin/{program}\" /usr/local/bin/{}",
                self.program
            ),
            Package::Pip { name, versions } => format!(
                "python3 -m venv /opt/{0} && /opt/{0}/bin/pip install -q --no-cache-dir \
                 --disable-pip-version-check '{name}{versions}' && ln -sf /opt/{0}/bin/{0} /usr/local/bin/{0}",
                self.program
            ),
        }
    }

    /// The range of versions that is installed.
    pub const fn versions(&self) -> &'static str {
        match self.package {
            Package::Npm { versions, .. }
            | Package::NpmBinary { versions, .. }
            | Package::Pip { versions, .. } => versions,
        }
    }

    /// The package, as its registry names it.
    pub const fn package_name(&self) -> &'static str {
        match self.package {
            Package::Npm { name, .. } | Package::NpmBinary { name, .. } | Package::Pip { name, .. } => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recipe_installs_the_program_that_its_preset_runs() {
        for preset in Preset::ALL {
            let Some(recipe) = preset.recipe() else { continue };
            assert_eq!(preset.command_shown()[0], recipe.program, "{preset:?}");
            assert!(
                recipe.template.starts_with("agent-")
                    && recipe.template.parse::<crate::TemplateRef>().is_ok()
            );
            assert!(recipe.install().contains(recipe.package_name()) && !recipe.install().contains('\n'));
            assert!(!recipe.logins.is_empty(), "{preset:?} says how to sign in");
            assert!(recipe.memory_mib >= 512);
            assert!(!recipe.needs_model || preset.takes_model(), "{preset:?}");
        }
    }

    #[test]
    fn a_login_is_a_variable_and_a_secret_for_some_hosts() {
        for preset in Preset::ALL {
            assert_eq!(preset.usual_secret(), preset.logins().first().map(|login| login.variable));
            for login in preset.logins() {
                let fits = |text: &str, more: &str| {
                    text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
                };
                let is_file = crate::agent::login_file::is_path(login.variable);
                assert!((is_file || fits(login.variable, "_")) && fits(login.secret, "-"), "{login:?}");
                assert!(!login.hosts.is_empty() && !login.about.is_empty());
                for host in login.hosts {
                    assert!(crate::network::NamePattern::parse(host).is_ok(), "{host}");
                }
            }
        }
    }
}
