//! Results on stdout: tables, JSON or YAML. Everything else goes to stderr.

use std::io::{IsTerminal as _, Write as _};

use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;

use crate::encode::{json, yaml};
use crate::escape;
use crate::failure::Failure;
use crate::figures;

/// The form of results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Table,
    /// The API's own shapes
    Json,
    /// The same as YAML
    Yaml,
}

/// Prints results in one format.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Printer {
    pub(crate) format: Format,
}

impl Printer {
    pub(crate) fn is_table(self) -> bool {
        self.format == Format::Table
    }

    /// One thing, with all its fields.
    pub(crate) fn show(self, thing: &impl Serialize) -> Result<(), Failure> {
        let value = to_value(thing)?;
        match self.format {
            Format::Table => print(&fields(&value)),
            Format::Json | Format::Yaml => self.document(&value),
        }
        Ok(())
    }

    /// A list: some fields of each item as columns, all of them as JSON. `path.to.field` names a nested one,
    /// `label=field` gives it another heading.
    pub(crate) fn list(self, items: &[impl Serialize], columns: &[&str]) -> Result<(), Failure> {
        let items = items.iter().map(to_value).collect::<Result<Vec<_>, _>>()?;
        match self.format {
            Format::Table => print(&table(&items, columns)),
            Format::Json | Format::Yaml => self.document(&Value::Array(items)),
        }
        Ok(())
    }

    /// What was done, on one line for people; the thing itself for programs.
    pub(crate) fn done(self, said: &str, thing: &impl Serialize) -> Result<(), Failure> {
        match self.format {
            Format::Table => print(&format!("{}\n", escape::line(said))),
            Format::Json | Format::Yaml => self.document(&to_value(thing)?),
        }
        Ok(())
    }

    /// One item of output that does not end, on one line as JSON.
    pub(crate) fn item(self, thing: &impl Serialize, row: impl FnOnce() -> String) -> Result<(), Failure> {
        match self.format {
            Format::Table => print(&format!("{}\n", row())),
            Format::Json => print(&format!("{}\n", json(&to_value(thing)?, false))),
            Format::Yaml => print(&format!("---\n{}", yaml(&to_value(thing)?))),
        }
        Ok(())
    }

    pub(crate) fn document(self, value: &Value) {
        match self.format {
            Format::Yaml => print(&yaml(value)),
            Format::Table | Format::Json => print(&format!("{}\n", json(value, true))),
        }
    }
}

pub(crate) fn to_value(thing: &impl Serialize) -> Result<Value, Failure> {
    serde_json::to_value(thing).map_err(|error| Failure::new(error.to_string()))
}

/// Writes to stdout. A reader that has gone (`| head`) is no failure.
pub(crate) fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _gone = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

/// Writes bytes as they are.
pub(crate) fn raw(bytes: &[u8], to_stderr: bool) -> std::io::Result<()> {
    if to_stderr {
        let mut stderr = std::io::stderr().lock();
        return stderr.write_all(bytes).and_then(|()| stderr.flush());
    }
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush())
}

/// A line for people on stderr.
pub(crate) fn note(text: &str) {
    eprintln!("{}", escape::line(text));
}

pub(crate) fn failure(failure: &Failure) {
    let (red, bold, plain) = if colours() { ("\u{1b}[31m", "\u{1b}[1m", "\u{1b}[0m") } else { ("", "", "") };
    eprintln!("{red}error:{plain} {}", escape::lines(&failure.message));
    if let Some(hint) = &failure.hint {
        eprintln!("{bold}hint:{plain} {}", escape::lines(hint));
    }
}

/// Whether stderr shows colours.
fn colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && std::io::stderr().is_terminal()
}

/// A table with a header. Cells are escaped and columns padded; the last column is not cut.
pub(crate) fn table(items: &[Value], columns: &[&str]) -> String {
    let header = columns.iter().map(|column| heading(column)).collect();
    let rows = items.iter().map(|item| columns.iter().map(|column| figures::cell(item, column)).collect());
    lay_out(std::iter::once(header).chain(rows).collect())
}

/// Rows whose columns are as wide as their widest cell.
pub(crate) fn lay_out(rows: Vec<Vec<String>>) -> String {
    let width = |text: &str| text.chars().count();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter().filter_map(|row| row.get(column)).map(|cell| width(cell)).max().unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, wide) in row.iter().zip(&widths) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', wide - width(cell) + 2));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn heading(column: &str) -> String {
    if let Some((label, _)) = column.split_once('=') {
        return label.to_uppercase();
    }
    let name = column.rsplit('.').next().unwrap_or(column);
    let name = ["_at", "_bytes", "_id"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
    name.replace('_', " ").to_uppercase()
}

/// Every field on its own line; nested things as JSON.
fn fields(value: &Value) -> String {
    let Value::Object(object) = value else { return format!("{}\n", figures::text(value)) };
    let wide = object.keys().map(|name| name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in object {
        let shown = figures::text(value);
        let shown = if shown.is_empty() { "-".to_string() } else { shown };
        text.push_str(&format!("{name:<wide$}  {shown}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_line_up_and_cells_are_escaped() {
        let items = [json!({"id": "a", "name": "x\u{1b}[0m"}), json!({"id": "long", "name": null})];
        assert_eq!(table(&items, &["id", "name"]), "ID    NAME\na     x\\u{1b}[0m\nlong  -\n");
    }
}
