//! Languages: their names, how their kernels are started, and the code that sets variables in them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::place::Place;

/// Variables of a sandbox or of a call.
pub(crate) type Variables = BTreeMap<String, String>;

/// What modules that are loaded keep for themselves is renewed always. Others ask the system when they are loaded.
const RENEW_PYTHON: &str = r#"
import os, random, sys

def renew(name, change):
    if name in sys.modules:
        try:
            change(sys.modules[name])
        except Exception:
            pass

renew("ssl", lambda ssl: ssl.RAND_add(os.urandom(32), 32.0))
renew("tempfile", lambda tempfile: setattr(tempfile, "_name_sequence", None))
renew("multiprocessing.process", lambda process: setattr(process.current_process(), "authkey", os.urandom(32)))
if seeds:
    random.seed()
    renew("numpy.random", lambda numpy: numpy.seed())
    renew("torch", lambda torch: torch.seed())
"#;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    Python,
    JavaScript,
    TypeScript,
    R,
    Bash,
    Java,
}

/// How a kernel stops what it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interrupt {
    Signal,
    /// By a message: a signal would kill it.
    Message,
}

impl Language {
    pub(crate) const ALL: [Self; 6] =
        [Self::Python, Self::JavaScript, Self::TypeScript, Self::R, Self::Bash, Self::Java];

    pub(crate) fn parse(name: &str) -> Option<Self> {
        match name.trim().to_ascii_lowercase().as_str() {
            "" | "python" | "python3" => Some(Self::Python),
            "javascript" | "js" | "deno" => Some(Self::JavaScript),
            "typescript" | "ts" => Some(Self::TypeScript),
            "r" => Some(Self::R),
            "bash" => Some(Self::Bash),
            "java" => Some(Self::Java),
            _ => None,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::JavaScript => "javascript",
            Self::TypeScript => "typescript",
            Self::R => "r",
            Self::Bash => "bash",
            Self::Java => "java",
        }
    }

    pub(crate) fn program(self, place: &Place) -> PathBuf {
        match self {
            Self::Python => place.home.join("bin/python"),
            Self::JavaScript | Self::TypeScript => place.home.join("bin/deno"),
            Self::R => "/usr/bin/R".into(),
            Self::Bash => "/bin/bash".into(),
            Self::Java => place.home.join("java/bin/java"),
        }
    }

    /// The arguments of a Jupyter kernel, given its connection file; none of others.
    pub(crate) fn arguments(self, connection: &Path) -> Vec<String> {
        let file = connection.display().to_string();
        let words: &[&str] = match self {
            Self::Python => &["-Xfrozen_modules=off", "-m", "ipykernel_launcher", "-f", &file],
            Self::JavaScript | Self::TypeScript => &["jupyter", "--kernel", "--conn", &file],
            Self::R => &["--slave", "-e", "IRkernel::main()", "--args", &file],
            Self::Bash | Self::Java => &[],
        };
        words.iter().map(ToString::to_string).collect()
    }

    /// Variables that its kernel needs.
    pub(crate) fn own_variables(self, place: &Place) -> Vec<(&'static str, String)> {
        match self {
            Self::Python => vec![
                ("IPYTHONDIR", place.home.join("ipython").display().to_string()),
                ("MPLBACKEND", "module://matplotlib_inline.backend_inline".to_string()),
                ("PYDEVD_DISABLE_FILE_VALIDATION", "1".to_string()),
            ],
            // Results without colours, bare names of Node's modules, no request for newer versions.
            Self::JavaScript | Self::TypeScript => ["NO_COLOR", "DENO_COMPAT", "DENO_NO_UPDATE_CHECK"]
                .map(|name| (name, "1".to_string()))
                .to_vec(),
            Self::R | Self::Bash | Self::Java => Vec::new(),
        }
    }

    pub(crate) fn interrupt(self) -> Interrupt {
        match self {
            Self::JavaScript | Self::TypeScript | Self::Java => Interrupt::Message,
            Self::Python | Self::R | Self::Bash => Interrupt::Signal,
        }
    }

    /// Whether code finds variables that its kernel was started with where it looks for them.
    pub(crate) fn reads_environment(self) -> bool {
        self != Self::Java
    }

    /// Whether its kernel listens on Unix sockets.
    pub(crate) fn has_unix_sockets(self) -> bool {
        matches!(self, Self::Python | Self::R)
    }

    /// Code for a fresh kernel.
    pub(crate) fn opening(self) -> Option<&'static str> {
        match self {
            // `require`, and what Node's programs print, which Deno's kernel would lose.
            Self::JavaScript | Self::TypeScript => Some(
                r#"globalThis.require ??= (await import("node:module")).createRequire(Deno.cwd() + "/");
for (const name of ["stdout", "stderr"]) {
  globalThis.process[name].write = (text, encoding, done) => {
    Deno.jupyter.broadcast("stream", { name, text: typeof text === "string" ? text : new TextDecoder().decode(text) });
    (typeof encoding === "function" ? encoding : done)?.();
    return true;
  };
}
void 0;"#,
            ),
            _ => None,
        }
    }

    /// Code for a kernel that is a copy of another one, so that both do not draw the same random numbers. Seeds that code
    /// may have chosen stay unless they are asked for. Nothing if it cannot be given any.
    pub(crate) fn renewal(self, seeds: bool) -> Option<String> {
        match self {
            Self::Python => {
                let seeds = if seeds { "True" } else { "False" };
                Some(format!("exec({}, {{'seeds': {seeds}}})\n", self.literal(RENEW_PYTHON)))
            }
            _ if !seeds => Some(String::new()),
            // Without a seed it would take the time, and its process number, which copies share.
            Self::R => Some(
                "base::set.seed(base::readBin('/dev/urandom', 'integer', size = 2, signed = FALSE) * 32768L \
                 + base::readBin('/dev/urandom', 'integer', size = 1, signed = FALSE))\n"
                    .to_string(),
            ),
            Self::Bash => Some("RANDOM=$(od -An -N4 -tu4 /dev/urandom)\n".to_string()),
            // Their generators have no seed that code could set.
            Self::JavaScript | Self::TypeScript | Self::Java => None,
        }
    }

    /// Code that gives a kernel another key for its messages, if it lets itself be given one.
    pub(crate) fn key_change(self, key: &str) -> Option<String> {
        let key = self.literal(key);
        match self {
            Self::Python => {
                Some(format!("__import__('IPython').get_ipython().kernel.session.key = {key}.encode()\n"))
            }
            // The kernel is a variable of the function that runs it.
            Self::R => Some(format!(
                "base::invisible(base::lapply(base::sys.frames(), function(frame) {{ \
                 kernel <- base::get0('kernel', frame, inherits = FALSE); \
                 if (methods::is(kernel, 'Kernel')) kernel$connection_info$key <- {key} }}))\n"
            )),
            Self::JavaScript | Self::TypeScript | Self::Bash | Self::Java => None,
        }
    }

    /// Code that sets variables.
    pub(crate) fn set(self, variables: &Variables) -> String {
        let changes = variables.iter().map(|(name, value)| (name.as_str(), Some(value.as_str())));
        self.change(changes)
    }

    /// Code that takes a call's variables back: to the sandbox's values, or away.
    pub(crate) fn reset(self, names: &Variables, sandbox: &Variables) -> String {
        self.change(names.keys().map(|name| (name.as_str(), sandbox.get(name).map(String::as_str))))
    }

    fn change<'a>(self, changes: impl Iterator<Item = (&'a str, Option<&'a str>)>) -> String {
        let mut code = String::new();
        for (name, value) in changes.filter(|(name, value)| self.takes(name, value.unwrap_or_default())) {
            let (key, value) = (self.literal(name), value.map(|value| self.literal(value)));
            // A string can be written to.
            let _ = match (self, value) {
                (Self::Python, Some(value)) => writeln!(code, "__import__('os').environ[{key}] = {value}"),
                (Self::Python, None) => writeln!(code, "__import__('os').environ.pop({key}, None)"),
                (Self::JavaScript | Self::TypeScript, Some(value)) => {
                    writeln!(code, "Deno.env.set({key}, {value});")
                }
                (Self::JavaScript | Self::TypeScript, None) => writeln!(code, "Deno.env.delete({key});"),
                (Self::R, Some(value)) => {
                    writeln!(
                        code,
                        "base::invisible(base::do.call(base::Sys.setenv, base::structure(base::list({value}), names = {key})))"
                    )
                }
                (Self::R, None) => writeln!(code, "base::invisible(base::Sys.unsetenv({key}))"),
                (Self::Bash, Some(value)) => writeln!(code, "export {name}={value}"),
                (Self::Bash, None) => writeln!(code, "unset {name}"),
                // A process cannot change its environment: they are properties, as in E2B's kernel.
                (Self::Java, Some(value)) => writeln!(code, "+{key}={value}"),
                (Self::Java, None) => writeln!(code, "-{key}="),
            };
        }
        code
    }

    /// Whether the language can have such a variable.
    fn takes(self, name: &str, value: &str) -> bool {
        let possible = !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0');
        let mut characters = name.chars();
        let word = characters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
            && characters.all(|other| other.is_ascii_alphanumeric() || other == '_');
        possible && (self != Self::Bash || word)
    }

    /// A string in the language's own notation.
    fn literal(self, text: &str) -> String {
        if self == Self::Bash {
            return format!("'{}'", text.replace('\'', r"'\''"));
        }
        let mut out = String::with_capacity(text.len() + 2);
        if self == Self::Java {
            for unit in text.encode_utf16() {
                let _ = write!(out, "\\u{unit:04x}");
            }
            return out;
        }
        out.push('"');
        for character in text.chars() {
            match (self, character) {
                (_, '"' | '\\') => out.extend(['\\', character]),
                (_, ' '..='~') => out.push(character),
                (Self::Python, _) => {
                    let _ = write!(out, "\\U{:08x}", u32::from(character));
                }
                (Self::R, '\n') => out.push_str("\\n"),
                // R takes no number for some control characters, but every character as it is.
                (Self::R, '\0'..='\x1f') => out.push(character),
                (_, _) => {
                    let _ = write!(out, "\\u{{{:x}}}", u32::from(character));
                }
            }
        }
        out.push('"');
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_trimmed_and_have_aliases() {
        assert_eq!(Language::parse("TS "), Some(Language::TypeScript));
        assert_eq!(Language::parse("js"), Some(Language::JavaScript));
        assert_eq!(Language::parse("cobol"), None);
        for language in Language::ALL {
            assert_eq!(Language::parse(language.name()), Some(language));
        }
    }

    #[test]
    fn values_are_quoted() {
        let set =
            |language: Language, value: &str| language.set(&[("A".to_string(), value.to_string())].into());
        assert_eq!(set(Language::Bash, "a'b $(x)\n"), "export A='a'\\''b $(x)\n'\n");
        assert_eq!(
            set(Language::Python, "a'\"é"),
            "__import__('os').environ[\"A\"] = \"a'\\\"\\U000000e9\"\n"
        );
        assert_eq!(set(Language::JavaScript, "\u{2028}"), "Deno.env.set(\"A\", \"\\u{2028}\");\n");
        assert_eq!(set(Language::Java, "=é"), "+\\u0041=\\u003d\\u00e9\n");
        assert!(set(Language::R, "é\\").contains(r#""\u{e9}\\""#));
    }

    #[test]
    fn what_cannot_be_a_variable_is_left_out() {
        let odd = Variables::from([
            ("A=B".into(), "x".into()),
            (String::new(), "x".into()),
            ("C".into(), "\0".into()),
        ]);
        for language in Language::ALL {
            assert_eq!(language.set(&odd), "");
        }
        let word = Variables::from([("a-b;rm".to_string(), "x".to_string())]);
        assert_eq!(Language::Bash.set(&word), "");
        assert_ne!(Language::Python.set(&word), "");
    }

    #[test]
    fn a_calls_variables_go_back_to_the_sandboxes() {
        let call = Variables::from([("A".into(), "call".into()), ("B".into(), "call".into())]);
        let sandbox = Variables::from([("A".to_string(), "box".to_string())]);
        assert_eq!(Language::Bash.reset(&call, &sandbox), "export A='box'\nunset B\n");
    }
}
