//! Reads the file, and remembers the line of each setting.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::schema::Schema;

/// A value of the file.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) path: String,
    pub(super) value: Value,
    pub(super) line: usize,
}

/// Reads settings. All unknown names are reported at once.
pub(super) fn read(text: &str, path: &Path, schema: &Schema) -> anyhow::Result<Vec<Written>> {
    let shown = path.display();
    let table = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line(text, &span));
        anyhow::anyhow!("{shown}:{line}: this is not TOML: {}", error.message())
    })?;
    let mut reader = Reader { text, schema, written: Vec::new(), wrong: Vec::new() };
    reader.table("", table.get_ref());
    if reader.wrong.is_empty() {
        return Ok(reader.written);
    }
    let wrong: Vec<String> =
        reader.wrong.iter().map(|(line, message)| format!("{shown}:{line}: {message}")).collect();
    anyhow::bail!("{}", wrong.join("\n       "))
}

struct Reader<'a> {
    text: &'a str,
    schema: &'a Schema,
    written: Vec<Written>,
    wrong: Vec<(usize, String)>,
}

impl Reader<'_> {
    fn table(&mut self, path: &str, table: &DeTable<'_>) {
        let mut keys: Vec<(&Spanned<Cow<'_, str>>, &Spanned<DeValue<'_>>)> = table.iter().collect();
        keys.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in keys {
            let name = key.get_ref();
            let path = if path.is_empty() { name.to_string() } else { format!("{path}.{name}") };
            let line = line(self.text, &key.span());
            match value.get_ref() {
                DeValue::Table(table) if self.schema.is_section(&path) => self.table(&path, table),
                _ if self.schema.is_section(&path) => {
                    self.wrong.push((line, format!("`{path}` is a section: write `[{path}]`")));
                }
                value if self.schema.setting(&path).is_some() => {
                    self.written.push(Written { path, value: plain(value), line });
                }
                _ => self.wrong.push((line, self.schema.unknown(&path))),
            }
        }
    }
}

impl Schema {
    /// The message for an unknown name, with the nearest known one.
    pub(super) fn unknown(&self, path: &str) -> String {
        let known = self.settings.iter().map(|setting| &setting.path);
        let known = known.chain(self.sections.iter().map(|section| &section.path));
        match nearest(path, known.map(String::as_str)) {
            Some(name) => format!("unknown setting `{path}`; did you mean `{name}`?"),
            None => format!("unknown setting `{path}`; `coffer config show` lists them all"),
        }
    }
}

/// The known name that is most like `name`, if any is.
pub(super) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_string();
    // The right key under the wrong section is as likely as a typo.
    let likeness = |other: &str| {
        strsim::jaro_winkler(name, other).max(strsim::jaro_winkler(&last(name), &last(other)) - 0.05)
    };
    let scored = known.map(|other| (likeness(other), other));
    let best = scored.max_by(|one, other| one.0.total_cmp(&other.0));
    best.filter(|(likeness, _)| *likeness > 0.8).map(|(_, name)| name)
}

fn line(text: &str, span: &Range<usize>) -> usize {
    1 + text.as_bytes()[..span.start.min(text.len())].iter().filter(|&&byte| byte == b'\n').count()
}

/// The value without its place.
pub(super) fn plain(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(integer) => {
            let number = i64::from_str_radix(integer.as_str(), integer.radix());
            number.map_or_else(|_| Value::String(integer.as_str().to_string()), Value::from)
        }
        DeValue::Float(float) => {
            let number = float.as_str().parse::<f64>().ok();
            number.map_or_else(|| Value::String(float.as_str().to_string()), Value::from)
        }
        DeValue::Boolean(boolean) => Value::Bool(*boolean),
        DeValue::Datetime(when) => Value::String(when.to_string()),
        DeValue::Array(array) => array.iter().map(|item| plain(item.get_ref())).collect(),
        DeValue::Table(table) => {
            let entry = |(key, value): (&Spanned<Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
                (key.get_ref().to_string(), plain(value.get_ref()))
            };
            Value::Object(table.iter().map(entry).collect())
        }
    }
}
