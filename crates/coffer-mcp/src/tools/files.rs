//! Files in a sandbox: read, write, list.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use coffer_api_types::files::{Entry, ListQuery};
use coffer_client::Upload;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bounds::{bounded, one_line};
use crate::cut::whole_length;
use crate::tool::{Call, Effect, Failure, Outcome, Tool};

const USUAL_READ: usize = 32 << 10;
const MOST_READ: usize = 128 << 10;
const USUAL_ENTRIES: usize = 200;
const MOST_ENTRIES: usize = 1000;

pub(super) fn tools() -> Vec<Tool> {
    vec![
        Tool::new(
            "read_file",
            "Read a file",
            "Read a file of a sandbox, from any offset. Text is returned as it is, other content as base64.",
            Effect::Reads,
            read,
        ),
        Tool::new(
            "write_file",
            "Write a file",
            "Write a file in a sandbox, with missing parent directories. Replaces what is there.",
            Effect::Destroys { again: true },
            write,
        ),
        Tool::new(
            "list_files",
            "List files",
            "List a directory of a sandbox, with its subdirectories to a given depth.",
            Effect::Reads,
            list,
        ),
    ]
}

/// A path as the API takes it: absolute, or below the home. `git_clone` returns paths that are relative to it.
fn whole(path: &str) -> String {
    if path.starts_with('/') || path.starts_with("~/") { path.to_string() } else { format!("~/{path}") }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadInput {
    /// The sandbox.
    sandbox_id: String,
    /// Absolute, or relative to the home of the template's user.
    path: String,
    /// The first byte to return; 0 by default.
    #[serde(default)]
    offset: u64,
    /// How many bytes; 32768 by default, at most 131072.
    #[serde(default)]
    #[schemars(range(min = 1, max = 131072))]
    max_bytes: Option<u32>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Read {
    path: String,
    content: String,
    /// `utf-8` or `base64`.
    encoding: &'static str,
    /// Size of the whole file, if known.
    size_bytes: Option<u64>,
    /// The offset of what follows; null at the end of the file.
    next_offset: Option<u64>,
}

async fn read(call: Call, input: ReadInput) -> Result<Outcome<Read>, Failure> {
    let path = whole(&input.path);
    let most = bounded(input.max_bytes, USUAL_READ, MOST_READ);
    let mut file = call.client.read_file(&input.sandbox_id, &path, input.offset).await?;
    let size_bytes = file.length.map(|rest| input.offset + rest);
    let mut bytes = Vec::new();
    while bytes.len() <= most
        && let Some(piece) = file.next().await?
    {
        bytes.extend_from_slice(&piece);
    }
    let more = bytes.len() > most;
    bytes.truncate(most);
    let whole = if more { whole_length(&bytes) } else { bytes.len() };
    let is_text = std::str::from_utf8(&bytes[..whole]).is_ok() && !bytes.contains(&0);
    if is_text {
        bytes.truncate(whole);
    }
    let next_offset = more.then_some(input.offset + bytes.len() as u64);
    let (content, encoding) = match is_text {
        true => (String::from_utf8_lossy(&bytes).into_owned(), "utf-8"),
        false => (STANDARD.encode(&bytes), "base64"),
    };
    let mut text = if is_text {
        content.clone()
    } else {
        format!("{} bytes that are not text, as base64:\n{content}", bytes.len())
    };
    if let Some(next) = next_offset {
        let size = size_bytes.map(|size| format!(" of {size}")).unwrap_or_default();
        text.push_str(&format!(
            "\n[bytes {} to {next}{size}; read_file with offset {next} returns what follows]",
            input.offset
        ));
    }
    Ok(Outcome::new(text, Read { path, content, encoding, size_bytes, next_offset }))
}

/// How `content` is written.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Encoding {
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    Base64,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WriteInput {
    /// The sandbox.
    sandbox_id: String,
    /// Absolute, or relative to the home of the template's user.
    path: String,
    /// The whole new content.
    content: String,
    /// `utf-8` (the default), or `base64` for content that is not text.
    #[serde(default)]
    encoding: Encoding,
    /// The owner of a new file; the template's user by default.
    #[serde(default)]
    user: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Written {
    path: String,
    size_bytes: i64,
}

async fn write(call: Call, input: WriteInput) -> Result<Outcome<Written>, Failure> {
    let path = whole(&input.path);
    let bytes = match input.encoding {
        Encoding::Utf8 => input.content.into_bytes(),
        Encoding::Base64 => STANDARD.decode(input.content.trim()).map_err(|error| {
            Failure::bad_request(
                format!("content is not base64: {error}"),
                "leave encoding out to write text",
            )
        })?,
    };
    let length = bytes.len();
    let entry =
        call.client.write_file(&input.sandbox_id, &path, input.user.as_deref(), Upload::bytes(bytes)).await?;
    let text = format!("wrote {length} bytes to {}", entry.path);
    Ok(Outcome::new(
        text,
        Written { path: entry.path, size_bytes: i64::try_from(length).unwrap_or(i64::MAX) },
    ))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListInput {
    /// The sandbox.
    sandbox_id: String,
    /// The directory; the template's working directory by default.
    #[serde(default)]
    path: Option<String>,
    /// How many levels, 1 to 10; 1 by default.
    #[serde(default)]
    #[schemars(range(min = 1, max = 10))]
    depth: Option<u32>,
    /// How many entries; 200 by default, at most 1000.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<u32>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Shown {
    path: String,
    /// `file`, `directory`, `symlink` or `other`.
    kind: String,
    size_bytes: i64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Listed {
    entries: Vec<Shown>,
    /// Whether there are more.
    more: bool,
}

async fn list(call: Call, input: ListInput) -> Result<Outcome<Listed>, Failure> {
    let limit = bounded(input.limit, USUAL_ENTRIES, MOST_ENTRIES);
    let query = ListQuery { path: input.path, depth: Some(input.depth.unwrap_or(1).clamp(1, 10)) };
    let mut found = call.client.list_files(&input.sandbox_id, &query).take(limit + 1).await?;
    let more = found.len() > limit;
    found.truncate(limit);
    let shown = |entry: Entry| Shown { path: entry.path, kind: entry.kind, size_bytes: entry.size_bytes };
    let entries: Vec<Shown> = found.into_iter().map(shown).collect();
    let line = |entry: &Shown| match entry.kind.as_str() {
        "directory" => format!("{}/", one_line(&entry.path)),
        "symlink" => format!("{}@", one_line(&entry.path)),
        _ => format!("{} {}", one_line(&entry.path), entry.size_bytes),
    };
    let mut text = entries.iter().map(line).collect::<Vec<_>>().join("\n");
    if entries.is_empty() {
        text = "the directory is empty".into();
    } else if more {
        text.push_str(&format!("\n[only the first {limit}; list a subdirectory, or raise limit]"));
    }
    Ok(Outcome::new(text, Listed { entries, more }))
}
