//! Settings from a file, the environment and flags.
//!
//! [`resolve`] merges the sources (flag over environment over file over default), one leaf at a time, and
//! remembers where each value came from, so that an error can say what to change and `coffer config show` can
//! list it. The settings are read from the types in [`settings`].

mod complaint;
mod file;
mod flags;
mod reference;
mod schema;
mod secret;
mod settings;
mod show;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use coffer_core::settings::MASK;
use serde_json::Value;

use crate::printer;
use complaint::Complaint;
pub(crate) use flags::{Flags, Sources, arguments};
use schema::{Kind, Schema, Setting, at, put};
pub(crate) use settings::{Log, LogFormat, Settings, Tls};
pub(crate) use show::Config;

const FILE_NAME: &str = "coffer.toml";
const SYSTEM_FILE: &str = "/etc/coffer/coffer.toml";

/// Variables with the prefix of settings that are not settings.
const NOT_SETTINGS: [&str; 5] =
    ["COFFER_CONFIG", "COFFER_URL", "COFFER_API_KEY", "COFFER_BIN", "COFFER_UPDATE"];

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    Default,
    File { path: PathBuf, line: usize },
    Environment(String),
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// Settings that hold together, and where each came from.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) settings: Settings,
    /// The settings as they were given, before they are checked.
    tree: Value,
    origins: BTreeMap<String, Origin>,
    /// The file that was read, if there was one.
    file: Option<PathBuf>,
    /// Possible mistakes, reported as warnings.
    pub(crate) doubts: Vec<String>,
}

impl Resolved {
    /// The settings for another part, secrets and all: to be written to a pipe and nowhere else.
    pub(crate) fn handover(&self) -> &Value {
        &self.tree
    }

    fn origin(&self, path: &str) -> &Origin {
        self.origins.get(path).unwrap_or(&Origin::Default)
    }
}

/// Reads settings from the part that resolved them.
pub(crate) fn take_over(tree: Value) -> anyhow::Result<Settings> {
    serde_json::from_value(tree).context("the settings from the parent process are invalid")
}

/// Resolves the settings of this process.
pub(crate) fn resolve(sources: &Sources, flags: &Flags) -> anyhow::Result<Resolved> {
    resolve_in(sources, flags, std::env::vars_os(), Path::new(SYSTEM_FILE))
}

fn resolve_in(
    sources: &Sources,
    flags: &Flags,
    environment: impl Iterator<Item = (OsString, OsString)>,
    system_file: &Path,
) -> anyhow::Result<Resolved> {
    let schema = Schema::new();
    let environment: BTreeMap<String, String> = environment
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(_, value)| !value.is_empty())
        .collect();
    let mut layers = Layers { schema: &schema, tree: Value::Null, origins: BTreeMap::new() };
    for setting in &schema.settings {
        put(&mut layers.tree, &setting.path, setting.default.clone());
    }
    let given = given_by_flags(sources, flags, &schema)?;
    let file = find_file(sources, &given, &environment, system_file)?;
    let mut doubts = strange_variables(&environment, &schema);
    if let Some((path, text)) = &file {
        let written = file::read(text, path, &schema)?;
        let is_secret = |path: &str| schema.setting(path).is_some_and(|setting| setting.kind == Kind::Secret);
        // A table says where the secret is.
        let holds = |written: &file::Written| is_secret(&written.path) && !written.value.is_object();
        if written.iter().any(holds) && readable_by_others(path) {
            doubts.push(format!("`{}` holds a secret and others can read it: chmod 600", path.display()));
        }
        for written in written {
            let origin = Origin::File { path: path.clone(), line: written.line };
            layers.lay(&written.path, written.value, origin);
        }
    }
    for setting in &schema.settings {
        let found = setting.variables.iter().find_map(|name| Some((name, environment.get(name)?)));
        if let Some((name, text)) = found {
            if let Some(wanted) = foreign(name, text) {
                doubts.push(format!(
                    "{name} is not used: {wanted}; hint: set `{}` to choose one here",
                    setting.path
                ));
                continue;
            }
            layers.lay(&setting.path, setting.value_of(text), Origin::Environment(name.clone()));
        }
        layers.lay_source_of_secret(setting, &environment)?;
    }
    for given in given {
        let setting = schema.setting(&given.path).expect("checked when the flags were read");
        layers.lay(&given.path, setting.value_of(&given.value), Origin::Flag(given.flag));
    }
    layers.finish(file.map(|(path, _)| path), doubts)
}

fn given_by_flags(sources: &Sources, flags: &Flags, schema: &Schema) -> anyhow::Result<Vec<flags::Given>> {
    let mut given = flags.given();
    for set in &sources.set {
        let Some((path, value)) = set.split_once('=') else {
            anyhow::bail!("`--set {set}` lacks a value: write `--set KEY=VALUE`");
        };
        let path = path.trim();
        anyhow::ensure!(schema.setting(path).is_some(), "--set: {}", schema.unknown(path));
        given.push(flags::Given { path: path.into(), flag: "--set".into(), value: value.trim().into() });
    }
    Ok(given)
}

/// The file to read, with its text: the named one, or the first that exists.
fn find_file(
    sources: &Sources,
    given: &[flags::Given],
    environment: &BTreeMap<String, String>,
    system_file: &Path,
) -> anyhow::Result<Option<(PathBuf, String)>> {
    let named = sources.config.clone().or_else(|| environment.get("COFFER_CONFIG").map(PathBuf::from));
    if let Some(path) = named {
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("could not read the configuration `{}`", path.display()))?;
        return Ok(Some((path, text)));
    }
    let flag = given.iter().rev().find(|given| given.path == "data_dir").map(|given| given.value.as_str());
    let data_dir = flag.or_else(|| environment.get("COFFER_DATA_DIR").map(String::as_str));
    let usual = Settings::default().data_dir;
    let in_data_dir = data_dir.map_or(usual, PathBuf::from).join(FILE_NAME);
    for path in [in_data_dir, system_file.to_path_buf()] {
        match std::fs::read_to_string(&path) {
            Ok(text) => return Ok(Some((path, text))),
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                ) => {}
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("could not read the configuration `{}`", path.display()));
            }
        }
    }
    Ok(None)
}

/// Variables that look like settings, but are not.
fn strange_variables(environment: &BTreeMap<String, String>, schema: &Schema) -> Vec<String> {
    let sources: Vec<String> = schema
        .settings
        .iter()
        .filter(|setting| setting.kind == Kind::Secret)
        .flat_map(|setting| setting.variables.iter().flat_map(|name| secret::variants(name)))
        .collect();
    let known = schema.settings.iter().flat_map(|setting| &setting.variables).chain(&sources);
    let known: Vec<&str> = known.map(String::as_str).collect();
    let strange = environment.keys().filter(|name| {
        name.starts_with("COFFER_")
            && !known.contains(&name.as_str())
            && !NOT_SETTINGS.contains(&name.as_str())
    });
    let doubt = |name: &String| {
        let like =
            file::nearest(name, known.iter().copied().filter(|known| strsim::levenshtein(known, name) <= 3))?;
        Some(format!("the variable {name} is not a setting; did you mean {like}?"))
    };
    strange.filter_map(doubt).collect()
}

/// What is wrong with a variable of E2B's tools. Many shells set them for E2B's own cloud: a value that is
/// unusable here must not prevent the server from starting.
fn foreign(variable: &str, text: &str) -> Option<&'static str> {
    match variable {
        "E2B_API_KEY" if coffer_store::ApiKeySecret::parse(text).is_none() => {
            Some("a key of this server is `e2b_` and 40 hexadecimal digits in lower case")
        }
        "E2B_TEMPLATE_ID" if text.parse::<coffer_core::TemplateRef>().is_err() => {
            Some("it is not a template name")
        }
        _ => None,
    }
}

fn readable_by_others(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).is_ok_and(|about| about.mode() & 0o044 != 0)
}

struct Layers<'a> {
    schema: &'a Schema,
    tree: Value,
    origins: BTreeMap<String, Origin>,
}

impl Layers<'_> {
    fn lay(&mut self, path: &str, value: Value, origin: Origin) {
        put(&mut self.tree, path, value);
        self.origins.insert(path.to_string(), origin);
    }

    /// Takes a variable that says where a secret is.
    fn lay_source_of_secret(
        &mut self,
        setting: &Setting,
        environment: &BTreeMap<String, String>,
    ) -> anyhow::Result<()> {
        if setting.kind != Kind::Secret {
            return Ok(());
        }
        let names = setting
            .variables
            .iter()
            .flat_map(|name| std::iter::once(name.clone()).chain(secret::variants(name)).collect::<Vec<_>>());
        let given: Vec<String> = names.filter(|name| environment.contains_key(name)).collect();
        let is_source = |name: &String| !setting.variables.contains(name);
        let Some(name) = given.iter().find(|name| is_source(name)) else { return Ok(()) };
        if let Some(other) = given.iter().find(|other| *other != name) {
            return Err(printer::hint(
                format!("{name} and {other} both give `{}`", setting.path),
                "unset one of them",
            ));
        }
        let value = secret::source(name, &environment[name]);
        self.lay(&setting.path, value, Origin::Environment(name.clone()));
        Ok(())
    }

    /// Replaces sources of secrets by the secrets. Only now, so that no command runs whose value another source hides.
    fn reveal(&mut self) -> anyhow::Result<()> {
        let secrets = self.schema.settings.iter().filter(|setting| setting.kind == Kind::Secret);
        for setting in secrets {
            let path = &setting.path;
            match secret::reveal(at(&self.tree, path)) {
                Ok(None) => {}
                Ok(Some(text)) => put(&mut self.tree, path, Value::String(text)),
                Err(why) => {
                    let origin = self.origins.get(path).unwrap_or(&Origin::Default);
                    return Err(secret::unreadable(path, &origin.to_string(), &why));
                }
            }
        }
        Ok(())
    }

    /// Checks everything into settings.
    fn finish(mut self, file: Option<PathBuf>, doubts: Vec<String>) -> anyhow::Result<Resolved> {
        self.reveal()?;
        for setting in &self.schema.settings {
            let value = at(&self.tree, &setting.path);
            if let Some(allowed) = value.as_f64().and_then(|number| setting.outside(number)) {
                return Err(self.complain(&Complaint::of(&setting.path, &allowed)));
            }
        }
        let parsed: Result<Settings, _> = serde_path_to_error::deserialize(&self.tree);
        let settings = parsed.map_err(|error| self.complain(&self.misfit(&error)))?;
        settings.check().map_err(|complaint| self.complain(&complaint))?;
        let Self { tree, origins, .. } = self;
        Ok(Resolved { settings, tree, origins, file, doubts })
    }

    /// A value of the wrong shape, as an error about the setting that it is part of.
    fn misfit(&self, error: &serde_path_to_error::Error<serde_json::Error>) -> Complaint {
        let path = error.path().to_string();
        let within = |setting: &&Setting| {
            path.strip_prefix(&setting.path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        match self.schema.settings.iter().find(within) {
            // The cause may quote the value.
            Some(setting) if setting.kind == Kind::Secret => Complaint::of(&setting.path, "must be text"),
            Some(setting) => {
                let (cause, allowed) = (error.inner().to_string(), setting.allowed());
                let inside = path.strip_prefix(&setting.path).filter(|rest| !rest.is_empty());
                let inside =
                    inside.map_or(String::new(), |rest| format!("at `{}`: ", rest.trim_start_matches('.')));
                let allowed = allowed.map_or(String::new(), |allowed| format!("; {allowed}"));
                Complaint { path: setting.path.clone(), allowed: format!("{inside}{cause}{allowed}") }
            }
            None => Complaint { path, allowed: error.inner().to_string() },
        }
    }

    fn complain(&self, complaint: &Complaint) -> anyhow::Error {
        let Complaint { path, allowed } = complaint;
        let origin = self.origins.get(path).unwrap_or(&Origin::Default);
        let value = match self.schema.setting(path) {
            Some(setting) => setting.shown(at(&self.tree, path)),
            None => "?".to_string(),
        };
        printer::hint(
            format!("bad setting `{path}` = {value} ({origin}): {allowed}"),
            "`coffer config show` lists every setting and its source",
        )
    }
}

impl Setting {
    /// Parses text from the environment or a flag. Text of the wrong form stays text, and is reported with
    /// the other errors.
    fn value_of(&self, text: &str) -> Value {
        let as_is = || Value::String(text.to_string());
        match &self.kind {
            Kind::Integer => text.parse::<i64>().map_or_else(|_| as_is(), Value::from),
            Kind::Number => text.parse::<f64>().map_or_else(|_| as_is(), Value::from),
            Kind::Boolean => match text.to_ascii_lowercase().as_str() {
                "true" | "1" | "yes" | "on" => Value::Bool(true),
                "false" | "0" | "no" | "off" => Value::Bool(false),
                _ => as_is(),
            },
            Kind::List => text.split(',').map(str::trim).filter(|item| !item.is_empty()).collect(),
            Kind::Other => {
                let document = format!("value = {text}");
                let parsed = toml::de::DeTable::parse(&document);
                let value =
                    parsed.ok().and_then(|table| Some(file::plain(table.get_ref().get("value")?.get_ref())));
                value.unwrap_or_else(as_is)
            }
            Kind::Text | Kind::Secret | Kind::Period | Kind::Size | Kind::Choice(_) => as_is(),
        }
    }

    /// The allowed range, if this number is outside it.
    fn outside(&self, number: f64) -> Option<String> {
        let (least, most) = self.bounds;
        let fits = least.is_none_or(|least| number >= least) && most.is_none_or(|most| number <= most);
        if fits { None } else { self.allowed() }
    }

    /// The allowed values, if they can be described briefly.
    fn allowed(&self) -> Option<String> {
        match (&self.kind, self.bounds) {
            (Kind::Integer | Kind::Number, (Some(least), Some(most))) => {
                Some(format!("must be from {least} to {most}"))
            }
            (Kind::Integer | Kind::Number, (Some(least), None)) => Some(format!("must be at least {least}")),
            (Kind::Integer | Kind::Number, (None, Some(most))) => Some(format!("must be at most {most}")),
            (Kind::Boolean, _) => Some("must be `true` or `false`".into()),
            (Kind::Choice(choices), _) => Some(format!("must be one of `{}`", choices.join("`, `"))),
            _ => None,
        }
    }

    /// A value as people may see it.
    fn shown(&self, value: &Value) -> String {
        match (&self.kind, value) {
            (_, Value::Null) => "(unset)".into(),
            (Kind::Secret, _) => MASK.into(),
            (_, Value::String(text)) => format!("\"{}\"", without_login(text)),
            (_, other) => other.to_string(),
        }
    }
}

/// A URL without its user and password: a value that is refused is shown.
fn without_login(text: &str) -> Cow<'_, str> {
    let Some((scheme, rest)) = text.split_once("://") else { return text.into() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    match authority.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://{MASK}@{host}{path}").into(),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests;
