//! The configuration of an image: what its processes start with.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::digest::Digest;
use crate::platform::Platform;

/// What an image says about processes in it. All of it is the image author's text, bounded by the size of the
/// configuration; nothing of it was checked against the layers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageConfig {
    /// Names and values, in order. Entries without a name, and with NUL characters, are left out.
    pub env: Vec<(String, String)>,
    /// `user`, `user:group` or numbers; empty for root.
    pub user: String,
    /// Empty for `/`.
    pub workdir: String,
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    /// `8080/tcp`.
    pub exposed_ports: Vec<String>,
    pub labels: BTreeMap<String, String>,
}

/// A configuration file, taken apart.
#[derive(Debug)]
pub(crate) struct ConfigFile {
    pub(crate) config: ImageConfig,
    /// `None` if the file does not say.
    pub(crate) platform: Option<Platform>,
    pub(crate) diff_ids: Vec<Digest>,
}

impl ConfigFile {
    /// Reads a configuration file; the error says what is wrong with it. Tolerates what tools write: `null` for
    /// anything that is absent, and a text where a list is meant.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, String> {
        let file: Value = serde_json::from_slice(bytes).map_err(|error| format!("is not JSON: {error}"))?;
        if !file.is_object() {
            return Err("is not a JSON object".into());
        }
        let ids = file["rootfs"]["diff_ids"].as_array().map(Vec::as_slice).unwrap_or_default();
        let digest = |id: &Value| id.as_str().and_then(|text| text.parse().ok());
        let diff_ids: Option<Vec<Digest>> = ids.iter().map(digest).collect();
        let (os, architecture) = (text(&file["os"]), text(&file["architecture"]));
        let platform = (!os.is_empty() && !architecture.is_empty())
            .then(|| Platform::new(&os, &architecture, &text(&file["variant"])));
        Ok(Self {
            config: ImageConfig::from_value(&file["config"]),
            platform,
            diff_ids: diff_ids.ok_or("has a `diff_id` that is not a SHA-256")?,
        })
    }
}

impl ImageConfig {
    fn from_value(config: &Value) -> Self {
        let pair = |entry: String| {
            let (name, value) = entry.split_once('=')?;
            (!name.is_empty() && !entry.contains('\0')).then(|| (name.to_string(), value.to_string()))
        };
        Self {
            env: texts(&config["Env"]).into_iter().filter_map(pair).collect(),
            user: text(&config["User"]),
            workdir: text(&config["WorkingDir"]),
            entrypoint: texts(&config["Entrypoint"]),
            cmd: texts(&config["Cmd"]),
            exposed_ports: keys(&config["ExposedPorts"]),
            labels: config["Labels"].as_object().map_or_else(BTreeMap::new, |labels| {
                labels.iter().map(|(name, value)| (name.clone(), text(value))).collect()
            }),
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_string()
}

/// A list of texts. One text alone is a shell command, as Docker reads it.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::Array(list) => list.iter().filter_map(Value::as_str).map(str::to_string).collect(),
        Value::String(line) => vec!["/bin/sh".into(), "-c".into(), line.clone()],
        _ => Vec::new(),
    }
}

fn keys(value: &Value) -> Vec<String> {
    value.as_object().map_or_else(Vec::new, |map| map.keys().cloned().collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_configuration_is_read() {
        let diff = format!("sha256:{}", "0".repeat(64));
        let file = json!({
            "os": "linux", "architecture": "arm64", "variant": "v8",
            "rootfs": {"type": "layers", "diff_ids": [diff]},
            "config": {
                "Env": ["PATH=/bin", "EMPTY=", "A=b=c", "NAMELESS", "=x", "N=\u{0}"],
                "User": "app:app", "WorkingDir": "/srv", "Entrypoint": ["/init"], "Cmd": "echo hi",
                "ExposedPorts": {"80/tcp": {}, "53/udp": {}}, "Labels": {"a": "b", "c": null},
            },
        });
        let read = ConfigFile::read(file.to_string().as_bytes()).unwrap();
        let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
        assert_eq!(read.config.env, [pair("PATH", "/bin"), pair("EMPTY", ""), pair("A", "b=c")]);
        assert_eq!((read.config.user.as_str(), read.config.workdir.as_str()), ("app:app", "/srv"));
        assert_eq!((read.config.entrypoint, read.config.cmd.len()), (vec!["/init".to_string()], 3));
        assert_eq!(read.config.exposed_ports, ["53/udp", "80/tcp"]);
        assert_eq!(read.config.labels["a"], "b");
        assert_eq!(read.platform.unwrap().to_string(), "linux/arm64");
        assert_eq!(read.diff_ids, [diff.parse().unwrap()]);
    }

    #[test]
    fn nulls_and_absent_fields_are_empty() {
        let nulls = json!({"config": {
            "Env": null, "User": null, "WorkingDir": null, "Entrypoint": null, "Cmd": null, "ExposedPorts": null, "Labels": null,
        }, "rootfs": null, "os": null});
        for file in [nulls, json!({"config": null}), json!({})] {
            let read = ConfigFile::read(file.to_string().as_bytes()).unwrap();
            assert_eq!((read.config, read.platform, read.diff_ids.len()), (ImageConfig::default(), None, 0));
        }
        for bad in
            ["", "[]", "null", "{", r#"{"rootfs":{"diff_ids":["md5:0"]}}"#, r#"{"rootfs":{"diff_ids":[1]}}"#]
        {
            assert!(ConfigFile::read(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
