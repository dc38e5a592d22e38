//! Dockerfiles: text to the plan that E2B's clients send as steps.
//!
//! The same as those clients make of a Dockerfile: steps begin as root in `/`, and a file without `USER` or `WORKDIR`
//! ends with the user and directory of E2B's images. `ARG`s are variables of commands, and not of the template.
//! The text is a client's: everything is bounded, and every refusal names its line.

mod error;
mod lines;
mod words;

use std::collections::BTreeMap;

use coffer_core::{BuildPlan, BuildSource, BuildStep, BuildStepKind, StartCommand};

pub use self::error::BadDockerfile;
use self::lines::{Heredoc, Instruction};
use self::words::{Variables, Word, shell_line, split, word};
use crate::step::{MOST_STEPS, is_variable};

/// The longest Dockerfile.
pub const LONGEST_DOCKERFILE: usize = 256 * 1024;
/// The largest plan of one: variables can multiply text.
const LARGEST_PLAN: usize = 4 << 20;
/// Most notes about what has no effect.
const MOST_WARNINGS: usize = 100;

/// Names a template in `FROM`, where an ordinary name is that of an image.
const TEMPLATE_SCHEME: &str = "template://";
/// Names an uploaded archive of an image in `FROM`.
const ARCHIVE_SCHEME: &str = "archive://";

/// What a Dockerfile does not say itself.
#[derive(Debug, Clone, Default)]
pub struct DockerfileOptions {
    /// Values for its `ARG`s.
    pub args: BTreeMap<String, String>,
    /// The client's name for the uploaded build context, from which `COPY` copies.
    pub context: Option<String>,
    /// The platform of the image, instead of that of `FROM --platform`.
    pub platform: Option<String>,
}

/// A Dockerfile, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dockerfile {
    pub plan: BuildPlan,
    /// What has no effect here.
    pub warnings: Vec<DockerfileWarning>,
}

/// Something in a Dockerfile that has no effect here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DockerfileWarning {
    pub line: u32,
    pub message: String,
}

/// Reads a Dockerfile.
pub fn parse(text: &str, options: &DockerfileOptions) -> Result<Dockerfile, BadDockerfile> {
    if text.len() > LONGEST_DOCKERFILE {
        return Err(BadDockerfile::new(1, format!("the file has more than {LONGEST_DOCKERFILE} bytes")));
    }
    if text.contains('\0') {
        let before = text.split('\0').next().unwrap_or_default();
        let line = u32::try_from(before.matches('\n').count() + 1).unwrap_or(u32::MAX);
        return Err(BadDockerfile::new(line, "there is a NUL"));
    }
    let (instructions, escape) = lines::instructions(text)?;
    let mut reader = Reader::new(options, escape);
    for instruction in &instructions {
        reader.read(instruction).map_err(|message| BadDockerfile::new(instruction.line, message))?;
    }
    let last = instructions.last().map_or(1, |instruction| instruction.line);
    reader.finish().map_err(|message| BadDockerfile::new(last, message))
}

/// `CMD` or `ENTRYPOINT`.
#[derive(Debug, Clone)]
enum Start {
    Shell(String),
    Words(Vec<String>),
}

struct Reader<'a> {
    options: &'a DockerfileOptions,
    escape: char,
    source: Option<BuildSource>,
    platform: Option<String>,
    /// `ARG`s before `FROM`, which later ones may take their values from.
    global: Variables,
    /// `ARG`s and `ENV`s, as far as they are known.
    variables: Variables,
    /// The `ARG`s that commands see.
    args: BTreeMap<String, String>,
    steps: Vec<BuildStep>,
    /// The shell of commands, if it is not the usual one.
    shell: Option<Vec<String>>,
    has_user: bool,
    has_workdir: bool,
    entrypoint: Option<Start>,
    cmd: Option<Start>,
    warnings: Vec<DockerfileWarning>,
    size: usize,
}

impl<'a> Reader<'a> {
    fn new(options: &'a DockerfileOptions, escape: char) -> Self {
        Self {
            options,
            escape,
            source: None,
            platform: None,
            global: platform_args(options.platform.as_deref()),
            variables: Variables::new(),
            args: BTreeMap::new(),
            steps: Vec::new(),
            shell: None,
            has_user: false,
            has_workdir: false,
            entrypoint: None,
            cmd: None,
            warnings: Vec::new(),
            size: 0,
        }
    }

    fn read(&mut self, instruction: &Instruction) -> Result<(), String> {
        let Instruction { line, name, rest, heredocs } = instruction;
        if self.source.is_none() && !matches!(name.as_str(), "FROM" | "ARG") {
            return Err(format!("{} comes before FROM", shorten(name)));
        }
        match name.as_str() {
            "FROM" => self.from(rest),
            "ARG" => self.arg(rest),
            "ENV" => self.env(*line, rest),
            "RUN" => self.run(*line, rest, heredocs),
            "COPY" | "ADD" => self.copy(*line, name, rest, heredocs),
            "WORKDIR" => {
                let path = self.one(name, rest)?.for_builder();
                self.has_workdir = true;
                self.step(*line, BuildStepKind::Workdir, vec![path])
            }
            "USER" => {
                let user = self.one(name, rest)?;
                let user = self.fixed(&user)?;
                self.has_user = true;
                self.step(*line, BuildStepKind::User, vec![user])
            }
            "CMD" => {
                self.cmd = Some(start(rest));
                Ok(())
            }
            "ENTRYPOINT" => {
                self.entrypoint = Some(start(rest));
                Ok(())
            }
            "SHELL" => match words_of_json(rest) {
                Some(words) if !words.is_empty() => {
                    self.shell = Some(words);
                    Ok(())
                }
                _ => Err("SHELL needs words as JSON, such as [\"/bin/bash\", \"-c\"]".to_string()),
            },
            "EXPOSE" => self.warn(*line, "EXPOSE has no effect: every port of a sandbox can be reached"),
            "VOLUME" => {
                self.warn(*line, "VOLUME has no effect: volumes are mounted when a sandbox is created")
            }
            "LABEL" | "MAINTAINER" | "STOPSIGNAL" | "HEALTHCHECK" | "ONBUILD" => {
                self.warn(*line, &format!("{name} has no effect"))
            }
            _ => Err(format!("'{}' is not an instruction", shorten(name))),
        }
    }

    fn warn(&mut self, line: u32, message: &str) -> Result<(), String> {
        if self.warnings.len() < MOST_WARNINGS {
            self.warnings.push(DockerfileWarning { line, message: message.to_string() });
        }
        Ok(())
    }

    fn from(&mut self, rest: &str) -> Result<(), String> {
        if self.source.is_some() {
            return Err("a second FROM: builds of several stages are not supported; \
                        build the first stage as a template of its own, and start from it"
                .to_string());
        }
        let (flags, rest) = flags(rest);
        let words = split(rest, self.escape)?;
        let name = match words.as_slice() {
            [name] => name,
            [name, as_word, _] if as_word.eq_ignore_ascii_case("as") => name,
            _ => return Err("FROM needs the name of an image".to_string()),
        };
        for (flag, value) in flags {
            match flag {
                "platform" => {
                    let value = word(value.unwrap_or_default(), self.escape, &self.global)?;
                    self.platform = Some(self.fixed(&value)?).filter(|platform| !platform.is_empty());
                }
                flag => return Err(format!("FROM has no flag --{}", shorten(flag))),
            }
        }
        let name = word(name, self.escape, &self.global)?;
        let name = self.fixed(&name)?;
        if name.is_empty() {
            return Err("FROM needs the name of an image".to_string());
        }
        self.source = Some(source(&name));
        let first = [(BuildStepKind::User, "root"), (BuildStepKind::Workdir, "/")];
        self.steps.extend(first.map(|(kind, arg)| BuildStep::new(kind, vec![arg.to_string()])));
        Ok(())
    }

    fn arg(&mut self, rest: &str) -> Result<(), String> {
        let words = split(rest, self.escape)?;
        if words.is_empty() {
            return Err("ARG needs a name".to_string());
        }
        for raw in words {
            let (name, default) =
                raw.split_once('=').map_or((raw.as_str(), None), |(name, value)| (name, Some(value)));
            if !is_name(name) {
                return Err(format!("'{}' cannot be the name of an ARG", shorten(name)));
            }
            let inside = self.source.is_some();
            let known = if inside { &self.variables } else { &self.global };
            let default = default.map(|default| word(default, self.escape, known)).transpose()?;
            let default = default.map(|default| self.fixed(&default)).transpose()?;
            let inherited = || self.global.get(name).cloned().flatten();
            let value = self.options.args.get(name).cloned().or(default).or_else(inherited);
            let Some(value) = value else { continue };
            self.count(name.len() + value.len())?;
            if !inside {
                self.global.insert(name.to_string(), Some(value));
            } else if !self.is_env(name) {
                self.variables.insert(name.to_string(), Some(value.clone()));
                self.args.insert(name.to_string(), value);
            }
        }
        Ok(())
    }

    /// Whether an `ENV` set the variable, which no `ARG` changes.
    fn is_env(&self, name: &str) -> bool {
        self.variables.contains_key(name) && !self.args.contains_key(name)
    }

    fn env(&mut self, line: u32, rest: &str) -> Result<(), String> {
        let words = split(rest, self.escape)?;
        let first = words.first().ok_or("ENV needs a name and a value")?;
        let mut pairs = Vec::new();
        if first.contains('=') {
            for raw in &words {
                let pair = raw.split_once('=');
                let (name, value) =
                    pair.ok_or_else(|| format!("'{}' needs a value: NAME=VALUE", shorten(raw)))?;
                pairs.push((name.to_string(), word(value, self.escape, &self.variables)?));
            }
        } else {
            // The old form: everything after the name is the value.
            let value = rest.strip_prefix(first.as_str()).unwrap_or_default().trim();
            if value.is_empty() {
                return Err(format!("'{}' needs a value: NAME=VALUE", shorten(first)));
            }
            pairs.push((first.clone(), word(value, self.escape, &self.variables)?));
        }
        let mut args = Vec::new();
        for (name, value) in pairs {
            if !is_variable(&name) {
                return Err(format!("'{}' cannot be the name of a variable", shorten(&name)));
            }
            args.extend([name.clone(), value.for_builder()]);
            self.args.remove(&name);
            self.variables.insert(name, value.fixed().ok());
        }
        self.step(line, BuildStepKind::Env, args)
    }

    fn run(&mut self, line: u32, rest: &str, heredocs: &[Heredoc]) -> Result<(), String> {
        let (flags, rest) = flags(rest);
        let mut secrets = BTreeMap::new();
        for (flag, value) in flags {
            match (flag, value.unwrap_or_default()) {
                ("mount", value) => match mount(value)? {
                    Mount::Secret { variable, secret } => drop(secrets.insert(variable, secret)),
                    Mount::Cache => {
                        self.warn(line, "--mount of a cache has no effect: finished steps are cached whole")?;
                    }
                },
                ("network", "default") => {}
                (flag, _) => return Err(format!("RUN --{} is not supported", shorten(flag))),
            }
        }
        let rest = rest.trim_end();
        let command = match (words_of_json(rest), heredocs) {
            (Some(words), _) if words.is_empty() => return Err("RUN needs a command".to_string()),
            (Some(words), _) => shell_line(&words),
            (None, []) => self.in_shell(rest),
            (None, [heredoc]) if heredoc.word == rest => self.in_shell(&script(heredoc)?),
            (None, heredocs) => {
                // The shell reads them itself.
                let bodies = heredocs.iter().map(|heredoc| format!("{}{}\n", heredoc.body, heredoc.name));
                self.in_shell(&format!("{rest}\n{}", bodies.collect::<String>()))
            }
        };
        if command.trim().is_empty() {
            return Err("RUN needs a command".to_string());
        }
        self.step(line, BuildStepKind::Run, vec![command])?;
        let env = self.args.clone();
        self.count(env.iter().map(|(name, value)| name.len() + value.len()).sum())?;
        let step = self.steps.last_mut().expect("it was just added");
        (step.env, step.secrets) = (env, secrets);
        Ok(())
    }

    fn in_shell(&self, line: &str) -> String {
        match &self.shell {
            None => line.to_string(),
            Some(shell) => {
                let words: Vec<String> = shell.iter().cloned().chain([line.to_string()]).collect();
                shell_line(&words)
            }
        }
    }

    fn copy(&mut self, line: u32, name: &str, rest: &str, heredocs: &[Heredoc]) -> Result<(), String> {
        if !heredocs.is_empty() {
            return Err(format!("{name} of a heredoc is not supported; write the file with RUN"));
        }
        let (flags, rest) = flags(rest);
        let (mut owner, mut mode) = (String::new(), String::new());
        for (flag, value) in flags {
            let value = word(value.unwrap_or_default(), self.escape, &self.variables)?;
            let value = self.fixed(&value)?;
            match flag {
                "chown" => owner = value,
                "chmod" => mode = octal(&value)?,
                // The result is the same.
                "link" => {}
                "from" => {
                    return Err(format!(
                        "{name} --from is not supported: builds have one stage; start from a template that has the files"
                    ));
                }
                flag => return Err(format!("{name} --{} is not supported", shorten(flag))),
            }
        }
        let words = match words_of_json(rest) {
            Some(words) => words,
            None => split(rest, self.escape)?,
        };
        let Some((dest, sources)) = words.split_last().filter(|(_, sources)| !sources.is_empty()) else {
            return Err(format!("{name} needs a source and a destination"));
        };
        let dest = word(dest, self.escape, &self.variables)?.for_builder();
        if sources.len() > 1 && !dest.ends_with('/') {
            return Err(format!("the destination of {name} with several sources must end with '/'"));
        }
        let missing = || format!("{name} needs the build context: upload it and name it in `context`");
        let context = self.options.context.clone().ok_or_else(missing)?;
        for source in sources {
            let source = word(source, self.escape, &self.variables)?;
            let source = self.fixed(&source)?;
            if name == "ADD" {
                local(&source)?;
            }
            let source = within_context(&source)?;
            let args = vec![source, dest.clone(), owner.clone(), mode.clone()];
            self.step(line, BuildStepKind::Copy, args)?;
            let step = self.steps.last_mut().expect("it was just added");
            step.files_hash = Some(context.clone());
        }
        Ok(())
    }

    /// The only word of an instruction.
    fn one(&self, name: &str, rest: &str) -> Result<Word, String> {
        let rest = rest.trim();
        if rest.is_empty() {
            return Err(format!("{name} needs a value"));
        }
        word(rest, self.escape, &self.variables)
    }

    /// The text of a word that has to be known before the build.
    fn fixed(&self, word: &Word) -> Result<String, String> {
        word.fixed().map_err(|name| {
            format!("${} has no value before the build; give it one with ARG before this line", shorten(name))
        })
    }

    fn step(&mut self, line: u32, kind: BuildStepKind, args: Vec<String>) -> Result<(), String> {
        // One user and one directory may follow at the end.
        if self.steps.len() + 2 >= MOST_STEPS {
            return Err(format!("a build has at most {MOST_STEPS} steps"));
        }
        self.count(args.iter().map(String::len).sum())?;
        self.steps.push(BuildStep { line: Some(line), ..BuildStep::new(kind, args) });
        Ok(())
    }

    fn count(&mut self, more: usize) -> Result<(), String> {
        self.size += more;
        match self.size <= LARGEST_PLAN {
            true => Ok(()),
            false => Err(format!("the steps have more than {LARGEST_PLAN} bytes, with their variables")),
        }
    }

    fn finish(mut self) -> Result<Dockerfile, String> {
        let source = self.source.ok_or("there is no FROM")?;
        if !self.has_user {
            self.steps.push(BuildStep::new(BuildStepKind::User, vec!["user".to_string()]));
        }
        if !self.has_workdir {
            self.steps.push(BuildStep::new(BuildStepKind::Workdir, vec!["/home/user".to_string()]));
        }
        let command = match (self.entrypoint, self.cmd) {
            (None, None) => None,
            (None, Some(start)) | (Some(start @ Start::Shell(_)), _) | (Some(start), None) => {
                Some(start.line())
            }
            (Some(Start::Words(words)), Some(cmd)) => Some(match cmd {
                Start::Words(more) => shell_line(&[words, more].concat()),
                Start::Shell(line) => {
                    shell_line(&[words, vec!["/bin/sh".into(), "-c".into(), line]].concat())
                }
            }),
        };
        let command = command.filter(|command| !command.trim().is_empty());
        Ok(Dockerfile {
            plan: BuildPlan {
                source,
                steps: self.steps,
                start: command.map(|command| StartCommand { command: Some(command), ready: None }),
                force: false,
                platform: self.options.platform.clone().or(self.platform),
            },
            warnings: self.warnings,
        })
    }
}

impl Start {
    fn line(self) -> String {
        match self {
            Self::Shell(line) => line,
            Self::Words(words) => shell_line(&words),
        }
    }
}

fn start(rest: &str) -> Start {
    words_of_json(rest).map_or_else(|| Start::Shell(rest.trim().to_string()), Start::Words)
}

/// What `FROM`, or a request, names: an image, or with a scheme a template or an uploaded archive.
pub fn source(name: &str) -> BuildSource {
    if let Some(template) = name.strip_prefix(TEMPLATE_SCHEME) {
        return BuildSource::Template(template.to_string());
    }
    if let Some(archive) = name.strip_prefix(ARCHIVE_SCHEME) {
        return BuildSource::Archive(archive.to_string());
    }
    match name {
        // As in Docker: no image, but an empty root.
        "scratch" => BuildSource::Template(name.to_string()),
        name => BuildSource::Image(name.to_string()),
    }
}

/// The variables that Docker sets by the platform.
fn platform_args(platform: Option<&str>) -> Variables {
    let host = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let host = format!("linux/{host}");
    let target = platform.unwrap_or(&host);
    let mut parts = target.split('/');
    let (os, arch) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let known = [
        ("TARGETPLATFORM", target),
        ("TARGETOS", os),
        ("TARGETARCH", arch),
        ("TARGETVARIANT", parts.next().unwrap_or_default()),
        ("BUILDPLATFORM", &host),
    ];
    known.map(|(name, value)| (name.to_string(), Some(value.to_string()))).into()
}

/// Leading `--name=value`, and what follows.
fn flags(rest: &str) -> (Vec<(&str, Option<&str>)>, &str) {
    let (mut found, mut rest) = (Vec::new(), rest.trim_start());
    while let Some(after) = rest.strip_prefix("--") {
        let (flag, next) = after.split_once(char::is_whitespace).unwrap_or((after, ""));
        found.push(flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value))));
        rest = next.trim_start();
    }
    (found, rest)
}

enum Mount {
    Secret { variable: String, secret: String },
    Cache,
}

/// `--mount` of a command.
fn mount(value: &str) -> Result<Mount, String> {
    let part = |wanted: &str| {
        let mut parts = value.split(',').filter_map(|part| part.split_once('='));
        parts.find(|(name, _)| *name == wanted).map(|(_, value)| value.to_string())
    };
    match part("type").as_deref() {
        Some("secret") => {
            let secret = part("id").filter(|id| !id.is_empty());
            let secret =
                secret.ok_or("--mount=type=secret needs id=, the name of a secret of the project")?;
            let variable = part("env").filter(|name| is_name(name));
            let variable = variable.ok_or(
                "--mount=type=secret needs env=, the variable that gets the secret; secrets as files are not supported",
            )?;
            Ok(Mount::Secret { variable, secret })
        }
        Some("cache" | "tmpfs") => Ok(Mount::Cache),
        Some(other) => Err(format!("--mount of type {} is not supported", shorten(other))),
        None => Err("--mount needs a type, such as type=secret".to_string()),
    }
}

/// The body of `RUN <<EOF`, which is a script.
fn script(heredoc: &Heredoc) -> Result<String, String> {
    let strips = heredoc.word.contains("<<-");
    let lines = heredoc.body.lines().map(|line| if strips { line.trim_start_matches('\t') } else { line });
    let body = lines.collect::<Vec<_>>().join("\n");
    match body.starts_with("#!") {
        true => Err("a heredoc with '#!' is not supported; name the program: RUN python3 <<EOF".to_string()),
        false => Ok(body),
    }
}

/// Words in JSON, if the text is that; otherwise it is a shell's.
fn words_of_json(text: &str) -> Option<Vec<String>> {
    let text = text.trim();
    text.starts_with('[').then(|| serde_json::from_str(text).ok()).flatten()
}

fn octal(mode: &str) -> Result<String, String> {
    let is_octal = (3..=4).contains(&mode.len()) && mode.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    match is_octal {
        true => Ok(mode.to_string()),
        false => Err(format!("the mode '{}' is not octal, such as 755", shorten(mode))),
    }
}

/// Refuses what `ADD` of Docker does beyond `COPY`.
fn local(source: &str) -> Result<(), String> {
    const ARCHIVES: [&str; 8] =
        [".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst"];
    let lower = source.to_ascii_lowercase();
    if lower.contains("://") || lower.starts_with("git@") {
        return Err("ADD of an address is not supported; download it with RUN".to_string());
    }
    match ARCHIVES.iter().any(|end| lower.ends_with(end)) {
        true => Err("ADD does not unpack archives here; use COPY, and RUN tar".to_string()),
        false => Ok(()),
    }
}

/// A source relative to the context, which it cannot leave.
fn within_context(source: &str) -> Result<String, String> {
    let mut kept: Vec<&str> = Vec::new();
    for part in source.split('/') {
        match part {
            "" | "." => {}
            // Docker stops at the context too.
            ".." => drop(kept.pop()),
            part => kept.push(part),
        }
    }
    if source.is_empty() {
        return Err("a source is empty".to_string());
    }
    Ok(if kept.is_empty() { ".".to_string() } else { kept.join("/") })
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    let first = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    first && name.len() <= 256 && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn shorten(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(64).collect()
}

#[cfg(test)]
mod tests;
