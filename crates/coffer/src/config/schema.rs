//! The list of settings, read from the types, so that nothing has to be listed twice.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use super::settings::Settings;

/// One setting that a person can set.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    /// `section.key`, or `key` alone.
    pub(super) path: String,
    /// What it is for.
    pub(super) doc: String,
    pub(super) kind: Kind,
    /// The default; null if it is unset by default.
    pub(super) default: Value,
    /// Its variables in the environment. The first one wins.
    pub(super) variables: Vec<String>,
    /// The least and the most that is allowed.
    pub(super) bounds: (Option<f64>, Option<f64>),
}

/// The type of a setting's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Secret,
    Period,
    Size,
    Integer,
    Number,
    Boolean,
    Choice(Vec<String>),
    /// A list of texts, separated by commas in flags and environment.
    List,
    /// Anything else, written as TOML.
    Other,
}

/// A named section of the file.
#[derive(Debug, Clone)]
pub(super) struct Section {
    pub(super) path: String,
    pub(super) doc: String,
}

/// All settings and their sections; settings outside any section come first.
#[derive(Debug)]
pub(super) struct Schema {
    pub(super) settings: Vec<Setting>,
    pub(super) sections: Vec<Section>,
}

impl Schema {
    pub(super) fn new() -> Self {
        let flat = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
        let root = flat.into_generator().into_root_schema_for::<Settings>().to_value();
        let defaults = serde_json::to_value(Settings::default()).expect("settings are plain values");
        let mut schema = Self { settings: Vec::new(), sections: Vec::new() };
        schema.walk("", &root, &defaults);
        schema.settings.sort_by_key(|setting| setting.path.contains('.'));
        schema
    }

    pub(super) fn setting(&self, path: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.path == path)
    }

    pub(super) fn is_section(&self, path: &str) -> bool {
        self.sections.iter().any(|section| section.path == path)
    }

    fn walk(&mut self, path: &str, schema: &Value, defaults: &Value) {
        let Some(Value::Object(properties)) = schema.get("properties") else { return };
        for (name, schema) in properties {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let default = defaults.get(name).cloned().unwrap_or(Value::Null);
            let text = |key| schema.get(key).and_then(Value::as_str).unwrap_or_default();
            // Lines of a comment are lines of its source, not of the page.
            let doc = text("description").replace('\n', " ");
            // Structs name their section in their docs; here it is known.
            let doc = doc.strip_prefix(&format!("`[{path}]`: ")).map(capitalised).unwrap_or(doc);
            if schema.get("properties").is_some() {
                self.sections.push(Section { path: path.clone(), doc });
                self.walk(&path, schema, &default);
                continue;
            }
            let own = format!("COFFER_{}", path.replace('.', "_").to_uppercase());
            let another = Some(text("x-env")).filter(|name| !name.is_empty() && *name != own);
            let variables = std::iter::once(own.clone()).chain(another.map(str::to_string)).collect();
            let bound = |key| find(schema, key).and_then(Value::as_f64);
            let bounds = (bound("minimum"), bound("maximum"));
            self.settings.push(Setting { kind: kind(schema), path, doc, default, variables, bounds });
        }
    }
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// A keyword of a schema, also where the value may be unset and the keyword is one level down.
fn find<'a>(schema: &'a Value, key: &str) -> Option<&'a Value> {
    let present = |schema: &'a Value| schema.get(key).filter(|value| !value.is_null());
    present(schema).or_else(|| schema.get("anyOf")?.as_array()?.iter().find_map(present))
}

fn kind(schema: &Value) -> Kind {
    if let Some(choices) = choices(schema) {
        return Kind::Choice(choices);
    }
    let types = find(schema, "type");
    let is = |name: &str| match types {
        Some(Value::Array(types)) => types.iter().any(|one| one == name),
        one => one.is_some_and(|one| one == name),
    };
    match find(schema, "format").and_then(Value::as_str) {
        Some("secret") => return Kind::Secret,
        Some("period") => return Kind::Period,
        Some("size") => return Kind::Size,
        _ => {}
    }
    let items = || find(schema, "items").and_then(|items| items.get("type"));
    match () {
        () if is("integer") => Kind::Integer,
        () if is("number") => Kind::Number,
        () if is("boolean") => Kind::Boolean,
        () if is("string") => Kind::Text,
        () if is("array") && items().is_some_and(|kind| kind == "string") => Kind::List,
        () => Kind::Other,
    }
}

/// The variants of an enum, which are described each on its own when they have comments.
fn choices(schema: &Value) -> Option<Vec<String>> {
    let text = |value: &Value| value.as_str().map(str::to_string);
    if let Some(values) = find(schema, "enum").and_then(Value::as_array) {
        return Some(values.iter().filter_map(text).collect());
    }
    let one_of = find(schema, "oneOf")?.as_array()?;
    one_of.iter().map(|variant| variant.get("const").and_then(text)).collect()
}

/// Puts a value into a tree, and creates missing tables.
pub(super) fn put(tree: &mut Value, path: &str, value: Value) {
    let mut at = tree;
    for name in path.split('.') {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        at = at.as_object_mut().expect("made just now").entry(name).or_insert(Value::Null);
    }
    *at = value;
}

/// The value at a path.
pub(super) fn at<'a>(tree: &'a Value, path: &str) -> &'a Value {
    path.split('.').try_fold(tree, |tree, name| tree.get(name)).unwrap_or(&Value::Null)
}
