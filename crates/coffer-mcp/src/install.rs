//! Writes Cofferdam into the configuration of MCP clients.
//!
//! What is in a file stays: JSON files are parsed and get one entry more, TOML gets a table at its end. A file that
//! cannot be parsed, such as JSON with comments, is left alone. Where a format can name an environment variable, the
//! file has its name and not the key.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

/// How the entry is called.
const NAME: &str = "cofferdam";
const KEY_VARIABLE: &str = "COFFER_API_KEY";
const URL_VARIABLE: &str = "COFFER_URL";
const DIRECTORY_VARIABLE: &str = "COFFER_CONFIG_DIR";

/// Where configuration is on this machine.
#[derive(Debug, Clone)]
pub struct Places {
    pub home: PathBuf,
    /// `XDG_CONFIG_HOME`.
    pub config: Option<PathBuf>,
    /// `APPDATA`, on Windows.
    pub roaming: Option<PathBuf>,
    /// `CODEX_HOME`.
    pub codex: Option<PathBuf>,
}

/// What the entry says.
#[derive(Debug, Clone)]
pub struct Wish {
    /// This program.
    pub program: PathBuf,
    pub from: KeySource,
}

/// Where the program gets its server and key from.
#[derive(Clone)]
pub enum KeySource {
    /// The key from the environment of the client.
    Environment { url: String },
    /// The key is in the file itself.
    Key { url: String, key: String },
    /// Both from a profile of `coffer login`, in the usual directory or this one.
    Profile { name: String, directory: Option<PathBuf> },
}

/// Without the key.
impl std::fmt::Debug for KeySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Environment { url } => f.debug_struct("Environment").field("url", url).finish(),
            Self::Key { url, .. } => f.debug_struct("Key").field("url", url).finish_non_exhaustive(),
            Self::Profile { name, .. } => {
                f.debug_struct("Profile").field("name", name).finish_non_exhaustive()
            }
        }
    }
}

impl KeySource {
    fn key(&self) -> Option<&str> {
        match self {
            Self::Key { key, .. } => Some(key),
            Self::Environment { .. } | Self::Profile { .. } => None,
        }
    }

    fn arguments(&self) -> Vec<&str> {
        match self {
            Self::Profile { name, .. } => vec!["mcp", "--profile", name],
            Self::Environment { .. } | Self::Key { .. } => vec!["mcp"],
        }
    }
}

/// A file with its new content.
pub struct Plan {
    pub path: PathBuf,
    pub is_new: bool,
    pub notes: Vec<String>,
    content: String,
    key: Option<String>,
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("path", &self.path).field("is_new", &self.is_new).finish_non_exhaustive()
    }
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("there is no client '{name}'; there are {}", names().join(", "))]
    NoClient { name: String },
    #[error("{client} cannot name an environment variable\nhint: `coffer login` and install from its profile, or --with-key writes the key into {}", path.display())]
    NeedsKey { client: &'static str, path: PathBuf },
    #[error("could not read {}: {problem}\nhint: --dry-run shows what to add by hand", path.display())]
    Unreadable { path: PathBuf, problem: String },
    #[error("{} has a server 'cofferdam' already, with other settings\nhint: remove it there, then try again", path.display())]
    Exists { path: PathBuf },
    #[error("could not write {}: {problem}", path.display())]
    Unwritable { path: PathBuf, problem: io::Error },
}

/// How a format names an environment variable.
#[derive(Debug, Clone, Copy)]
enum Reference {
    /// `${NAME}`.
    Braces,
    /// `${env:NAME}`.
    Env,
    /// A question that the editor asks once, and remembers.
    Input,
    /// It cannot.
    None,
}

#[derive(Debug, Clone, Copy)]
enum Format {
    /// An object of servers under this name.
    Json { servers: &'static str, with_type: bool, reference: Reference },
    /// Codex's TOML.
    Codex,
}

struct Known {
    name: &'static str,
    title: &'static str,
    path: fn(&Places) -> PathBuf,
    format: Format,
    /// What else the user has to do if the key comes from the environment.
    note: &'static str,
    /// The same if it comes from a profile.
    trust: &'static str,
}

const KNOWN: &[Known] = &[
    Known {
        name: "claude-code",
        title: "Claude Code",
        path: |_| PathBuf::from(".mcp.json"),
        format: Format::Json { servers: "mcpServers", with_type: true, reference: Reference::Braces },
        note: "this is the project's file; Claude Code asks once whether to trust it",
        trust: "this is the project's file, and Claude Code asks once whether to trust it",
    },
    Known {
        name: "claude-desktop",
        title: "Claude Desktop",
        path: claude_desktop,
        format: Format::Json { servers: "mcpServers", with_type: false, reference: Reference::None },
        note: "quit Claude Desktop and start it again",
        trust: "quit it and start it again",
    },
    Known {
        name: "cursor",
        title: "Cursor",
        path: |places| places.home.join(".cursor/mcp.json"),
        format: Format::Json { servers: "mcpServers", with_type: false, reference: Reference::Env },
        note: "Cursor must be started with COFFER_API_KEY in its environment",
        trust: "start it again",
    },
    Known {
        name: "vscode",
        title: "VS Code",
        path: |_| PathBuf::from(".vscode/mcp.json"),
        format: Format::Json { servers: "servers", with_type: true, reference: Reference::Input },
        note: "this is the workspace's file; VS Code asks for the key when it starts the server, and remembers it",
        trust: "this is the workspace's file",
    },
    Known {
        name: "codex",
        title: "Codex CLI",
        path: |places| places.codex.clone().unwrap_or_else(|| places.home.join(".codex")).join("config.toml"),
        format: Format::Codex,
        note: "Codex must be started with COFFER_API_KEY in its environment",
        trust: "start it again",
    },
    Known {
        name: "gemini",
        title: "Gemini CLI",
        path: |places| places.home.join(".gemini/settings.json"),
        format: Format::Json { servers: "mcpServers", with_type: false, reference: Reference::Braces },
        note: "Gemini CLI must be started with COFFER_API_KEY in its environment",
        trust: "start it again",
    },
];

fn claude_desktop(places: &Places) -> PathBuf {
    let directory = if cfg!(target_os = "macos") {
        places.home.join("Library/Application Support")
    } else if let (true, Some(roaming)) = (cfg!(windows), &places.roaming) {
        roaming.clone()
    } else {
        places.config.clone().unwrap_or_else(|| places.home.join(".config"))
    };
    directory.join("Claude/claude_desktop_config.json")
}

/// The clients that `plan` knows.
pub fn names() -> Vec<&'static str> {
    KNOWN.iter().map(|known| known.name).collect()
}

/// The file of a client with Cofferdam in it. Writes nothing.
pub fn plan(client: &str, places: &Places, wish: &Wish) -> Result<Plan, InstallError> {
    let known = KNOWN.iter().find(|known| known.name == client);
    let known = known.ok_or_else(|| InstallError::NoClient { name: client.to_string() })?;
    let path = (known.path)(places);
    let old = match fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(InstallError::Unreadable { path, problem: error.to_string() }),
    };
    let text = old.as_deref().unwrap_or_default();
    let content = match known.format {
        Format::Json { servers, with_type, reference } => {
            json_with(known, &path, text, wish, servers, with_type, reference)?
        }
        Format::Codex => toml_with(&path, text, wish)?,
    };
    let note = match &wish.from {
        KeySource::Key { .. } => format!("the key is in {}: keep the file to yourself", path.display()),
        KeySource::Profile { name, .. } => {
            format!("{} uses the profile {name}; {}", known.title, known.trust)
        }
        KeySource::Environment { .. } => known.note.to_string(),
    };
    let key = wish.from.key().map(str::to_string);
    Ok(Plan { is_new: old.is_none(), path, notes: vec![note], content, key })
}

fn json_with(
    known: &Known,
    path: &Path,
    text: &str,
    wish: &Wish,
    servers: &str,
    with_type: bool,
    reference: Reference,
) -> Result<String, InstallError> {
    let unreadable = |problem: String| InstallError::Unreadable { path: path.into(), problem };
    let root = if text.trim().is_empty() { Ok(json!({})) } else { serde_json::from_str(text) };
    let mut root: Value = root.map_err(|error| unreadable(error.to_string()))?;
    let not_object = |name: &str| unreadable(format!("{name} is not an object"));
    let fields = root.as_object_mut().ok_or_else(|| not_object("it"))?;
    let env = match (&wish.from, reference) {
        (KeySource::Profile { directory: None, .. }, _) => json!({}),
        (KeySource::Profile { directory: Some(directory), .. }, _) => json!({DIRECTORY_VARIABLE: directory}),
        (KeySource::Key { url, key }, _) => json!({URL_VARIABLE: url, KEY_VARIABLE: key}),
        (KeySource::Environment { url }, reference) => {
            let key = match reference {
                Reference::Braces => format!("${{{KEY_VARIABLE}}}"),
                Reference::Env => format!("${{env:{KEY_VARIABLE}}}"),
                Reference::Input => "${input:coffer-api-key}".into(),
                Reference::None => {
                    return Err(InstallError::NeedsKey { client: known.title, path: path.into() });
                }
            };
            json!({URL_VARIABLE: url, KEY_VARIABLE: key})
        }
    };
    if matches!((&wish.from, reference), (KeySource::Environment { .. }, Reference::Input)) {
        let inputs = fields.entry("inputs").or_insert_with(|| json!([]));
        let inputs = inputs.as_array_mut().ok_or_else(|| unreadable("inputs is not a list".into()))?;
        if !inputs.iter().any(|input| input["id"] == "coffer-api-key") {
            let about = "Key of your Cofferdam project";
            inputs.push(json!({"type": "promptString", "id": "coffer-api-key", "description": about, "password": true}));
        }
    }
    let mut entry = json!({"command": wish.program, "args": wish.from.arguments(), "env": env});
    if with_type {
        entry["type"] = json!("stdio");
    }
    let servers_field = fields.entry(servers).or_insert_with(|| Value::Object(Map::new()));
    let all = servers_field.as_object_mut().ok_or_else(|| not_object(servers))?;
    match all.get(NAME) {
        Some(there) if *there != entry => return Err(InstallError::Exists { path: path.into() }),
        _ => drop(all.insert(NAME.into(), entry)),
    }
    let mut text = serde_json::to_string_pretty(&root).expect("a value is JSON");
    text.push('\n');
    Ok(text)
}

fn toml_with(path: &Path, text: &str, wish: &Wish) -> Result<String, InstallError> {
    let root: toml::Table = toml::from_str(text).map_err(|error| InstallError::Unreadable {
        path: path.into(),
        problem: error.message().to_string(),
    })?;
    // As a table of tables, so that what is there keeps its comments and order.
    let quoted = |text: &str| toml::Value::String(text.to_string()).to_string();
    let program = quoted(&wish.program.to_string_lossy());
    let entry = match &wish.from {
        // Over HTTP it takes the key from its environment; a program that it starts gets only some variables.
        KeySource::Environment { url } => format!(
            "[mcp_servers.{NAME}]
url = {}
bearer_token_env_var = \"{KEY_VARIABLE}\"
",
            quoted(&format!("{}/mcp", url.trim_end_matches('/')))
        ),
        KeySource::Key { url, key } => format!(
            "[mcp_servers.{NAME}]
command = {program}
args = [\"mcp\"]
env = {{ {URL_VARIABLE} = {}, {KEY_VARIABLE} = {} }}
",
            quoted(url),
            quoted(key)
        ),
        KeySource::Profile { name, directory } => {
            let env = directory.as_ref().map(|directory| {
                format!("env = {{ {DIRECTORY_VARIABLE} = {} }}\n", quoted(&directory.to_string_lossy()))
            });
            format!(
                "[mcp_servers.{NAME}]
command = {program}
args = [\"mcp\", \"--profile\", {}]
{}",
                quoted(name),
                env.unwrap_or_default()
            )
        }
    };
    if let Some(there) = root.get("mcp_servers").and_then(|servers| servers.get(NAME)) {
        let wanted: toml::Table = toml::from_str(&entry).expect("our own table is TOML");
        let same = wanted["mcp_servers"].get(NAME) == Some(there);
        return if same { Ok(text.to_string()) } else { Err(InstallError::Exists { path: path.into() }) };
    }
    let gap = if text.is_empty() || text.ends_with("\n\n") {
        ""
    } else if text.ends_with('\n') {
        "\n"
    } else {
        "\n\n"
    };
    let joined = format!("{text}{gap}{entry}");
    // `mcp_servers = {…}` cannot be extended by a table.
    match toml::from_str::<toml::Table>(&joined) {
        Ok(_) => Ok(joined),
        Err(error) => {
            Err(InstallError::Unreadable { path: path.into(), problem: error.message().to_string() })
        }
    }
}

impl Plan {
    /// The new content, without the key.
    pub fn shown(&self) -> String {
        match &self.key {
            Some(key) => self.content.replace(key.as_str(), "***"),
            None => self.content.clone(),
        }
    }

    /// Writes the file by rename, so that nobody reads half of it. A file with a key is for its owner only.
    pub fn write(&self) -> Result<(), InstallError> {
        // What a link points to is replaced, not the link.
        let path = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let unwritable = |problem| InstallError::Unwritable { path: path.clone(), problem };
        let directory =
            path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(directory).map_err(unwritable)?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let draft = directory.join(format!(".{name}.{}", std::process::id()));
        let written = self.write_draft(&draft, &path).and_then(|()| fs::rename(&draft, &path));
        if written.is_err() {
            let _none_there = fs::remove_file(&draft);
        }
        written.map_err(unwritable)
    }

    fn write_draft(&self, draft: &Path, path: &Path) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        {
            use std::os::unix::fs::OpenOptionsExt as _;
            options.mode(0o600);
        }
        let mut file = options.open(draft)?;
        file.write_all(self.content.as_bytes())?;
        if self.key.is_none() {
            #[cfg(unix)]
            {
                use std::os::unix::fs::PermissionsExt as _;
                let old = fs::metadata(path).map(|old| old.permissions());
                file.set_permissions(old.unwrap_or_else(|_| fs::Permissions::from_mode(0o644)))?;
            }
            #[cfg(not(unix))]
            let _ = path;
        }
        file.sync_all()
    }
}

#[cfg(test)]
mod tests;
