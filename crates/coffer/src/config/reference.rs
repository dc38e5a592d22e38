//! The reference page, written from the types. A test keeps the committed page the same.

use super::flags;
use super::schema::{Kind, Schema, Setting};

const INTRODUCTION: &str = "\
# Configuration

<!-- Written from the settings' types: change those, then `COFFER_UPDATE=1 cargo test -p coffer reference`. -->

A setting can be given by a flag, by the environment or in a file; a flag wins over the environment, the
environment over the file, the file over the default. `coffer config show` prints every setting with its value
and its source, `coffer config check` says whether `coffer up` would accept them.

The file is TOML. It is the one that `--config FILE` or `COFFER_CONFIG` names, else `coffer.toml` in the data
directory (from the flag or the environment), else `/etc/coffer/coffer.toml`; only one file is read.
Unknown names are refused, with their line and the nearest known name; so are bad values.

```toml
listen = \"0.0.0.0:3000\"

[sandbox]
memory = \"1GiB\"
idle_timeout = \"30m\"
```

The variable of `section.key` is `COFFER_SECTION_KEY`; some settings have a second variable, and the first wins. An
empty variable counts as unset. `--set section.key=value` sets those without their own flag.

- A **duration** is written with units: `\"90s\"`, `\"1h 30m\"`, `\"7d\"`.
- A **size** is written with a unit or in bytes: `\"512MiB\"`, `\"2GB\"`.
- A **list** has commas between its items in flags and environment.
- A **secret** is never shown. Make a file that contains one readable only by its owner (`chmod 600`). Prefer the file or the environment to flags, which every user of the machine can read. `coffer up` passes settings to its parts by a
  pipe, not by arguments or environment.

## Secrets from files and commands

A secret may also be somewhere else, so that secret managers and container platforms can provide it: in a file, or on the
output of a command, without the last line end. Add `_FILE` or `_COMMAND` to the name of its variable, or write a table in the
file of settings:

```sh
COFFER_DATABASE_URL_FILE=/run/secrets/database-url
COFFER_MASTER_KEY_COMMAND='vault kv get -field=key secret/coffer'
```

```toml
[database]
url = { file = \"/run/secrets/database-url\" }

[secrets]
master_key = { command = \"vault kv get -field=key secret/coffer\" }
```

`coffer up` reads each once, as root, when it starts; a command is a line of `/bin/sh`, has 30 s, and must print nothing but the
secret. A file that is missing, an empty value and a command that fails stop the start with the reason. Setting both a
variable and its `_FILE` is an error.
";

/// The whole page.
pub(super) fn page() -> String {
    let schema = Schema::new();
    let mut page = INTRODUCTION.to_string();
    let in_section = |setting: &&Setting, section: &str| match setting.path.rsplit_once('.') {
        Some((parent, _)) => parent == section,
        None => section.is_empty(),
    };
    let top = std::iter::once(("", "Outside of any section."));
    let sections = schema.sections.iter().map(|section| (section.path.as_str(), section.doc.as_str()));
    for (section, doc) in top.chain(sections) {
        let settings: Vec<&Setting> = schema.settings.iter().filter(|one| in_section(one, section)).collect();
        if settings.is_empty() {
            continue;
        }
        let title = if section.is_empty() { "Top level".to_string() } else { format!("`[{section}]`") };
        let head = "| setting | default | what it is | given by |\n|---|---|---|---|";
        page.push_str(&format!("\n## {title}\n\n{doc}\n\n{head}\n"));
        for setting in settings {
            page.push_str(&row(setting));
        }
    }
    page
}

fn row(setting: &Setting) -> String {
    let kind = match &setting.kind {
        Kind::Text => "text".into(),
        Kind::Secret => "secret".into(),
        Kind::Period => "duration".into(),
        Kind::Size => "size".into(),
        Kind::Integer => "whole number".into(),
        Kind::Number => "number".into(),
        Kind::Boolean => "`true` or `false`".into(),
        Kind::List => "list".into(),
        Kind::Other => "table".into(),
        Kind::Choice(choices) => {
            choices.iter().map(|one| format!("`{one}`")).collect::<Vec<_>>().join(" or ")
        }
    };
    let bounds = match setting.bounds {
        (Some(least), Some(most)) => format!(", {least} to {most}"),
        (Some(least), None) if least > 0.0 => format!(", at least {least}"),
        (None, Some(most)) => format!(", at most {most}"),
        _ => String::new(),
    };
    let flag = flags::NAMES.iter().find(|(path, _)| *path == setting.path);
    let flag = flag.map(|(_, field)| flags::name(field));
    let given: Vec<String> = flag.iter().chain(&setting.variables).map(|name| format!("`{name}`")).collect();
    let default = match &setting.default {
        serde_json::Value::Null => "unset".into(),
        serde_json::Value::Array(items) if items.is_empty() => "none".into(),
        value => format!("`{}`", setting.shown(value)),
    };
    let name = setting.path.rsplit('.').next().unwrap_or_default();
    let doc = setting.doc.replace('|', "\\|");
    format!("| `{name}` | {default} | {doc} ({kind}{bounds}) | {} |\n", given.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_page_is_what_the_types_say() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
        let page = page();
        if std::env::var_os("COFFER_UPDATE").is_some() {
            std::fs::write(&path, &page).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == page,
            "docs/configuration.md is out of date: COFFER_UPDATE=1 cargo test -p coffer reference"
        );
    }

    #[test]
    fn every_setting_is_explained_and_every_flag_gives_one() {
        let schema = Schema::new();
        for setting in &schema.settings {
            assert!(setting.doc.len() > 8, "`{}` has no comment", setting.path);
        }
        for (path, flag) in flags::NAMES {
            assert!(schema.setting(path).is_some(), "--{flag} gives `{path}`, which is no setting");
        }
        let mut variables: Vec<&String> =
            schema.settings.iter().flat_map(|setting| &setting.variables).collect();
        let all = variables.len();
        variables.sort();
        variables.dedup();
        assert_eq!(variables.len(), all, "two settings share a variable");
    }
}
