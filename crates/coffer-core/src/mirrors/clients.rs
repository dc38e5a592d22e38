//! How package clients are told of mirrors: by variables where a client reads them, by files where it does not.

use std::collections::BTreeMap;

use super::{Kind, PackageMirrors, apt};

/// Where Maven's settings are. `/etc/maven/settings.xml` belongs to Debian's package.
const MAVEN: &str = "etc/coffer/maven-settings.xml";
/// Cargo reads this in every directory from the current one up to the root.
const CARGO: &str = ".cargo/config.toml";

/// A file for sandboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirrorFile {
    /// Relative to the root.
    pub path: String,
    pub text: String,
}

impl PackageMirrors {
    /// Variables for everything that runs in a sandbox. Those of its template and of its creator win.
    pub fn variables(&self) -> BTreeMap<String, String> {
        let mut variables = BTreeMap::new();
        let mut set = |name: &str, value: String| variables.insert(name.to_string(), value);
        if let Some(url) = self.url(Kind::Pypi) {
            set("PIP_INDEX_URL", url.to_string());
            set("UV_DEFAULT_INDEX", url.to_string());
            if !url.is_tls() {
                // pip refuses plain HTTP otherwise.
                set("PIP_TRUSTED_HOST", url.authority());
            }
        }
        if let Some(url) = self.url(Kind::Npm) {
            set("npm_config_registry", format!("{url}/"));
        }
        if let Some(url) = self.url(Kind::Go) {
            set("GOPROXY", url.to_string());
        }
        if self.url(Kind::Maven).is_some() {
            set("MAVEN_ARGS", format!("-gs /{MAVEN}"));
        }
        variables
    }

    /// Files for a sandbox whose template has these files at these paths, none of which begins with `/`.
    /// Files of the template are changed only if they are sources of apt.
    pub fn files(&self, template: &dyn TemplateFiles) -> Vec<MirrorFile> {
        let mut files = Vec::new();
        if let Some(url) = self.url(Kind::Apt) {
            for path in template.apt_sources() {
                let Some(text) = template.read(&path) else { continue };
                let changed = apt::replace_archives(&path, &text, url);
                files
                    .extend(changed.filter(|changed| *changed != text).map(|text| MirrorFile { path, text }));
            }
        }
        let mut add = |path: &str, text: String| {
            if template.read(path).is_none() {
                files.push(MirrorFile { path: path.to_string(), text });
            }
        };
        if let Some(url) = self.url(Kind::Crates) {
            add(
                CARGO,
                format!(
                    "[source.crates-io]\nreplace-with = \"coffer-mirror\"\n\n\
                     [source.coffer-mirror]\nregistry = \"sparse+{url}/\"\n"
                ),
            );
        }
        if let Some(url) = self.url(Kind::Maven) {
            add(
                MAVEN,
                format!(
                    "<settings>\n  <mirrors>\n    <mirror>\n      <id>coffer-mirror</id>\n      \
                     <mirrorOf>*</mirrorOf>\n      <url>{url}</url>\n    </mirror>\n  </mirrors>\n</settings>\n"
                ),
            );
        }
        files
    }
}

/// The files of a template.
pub trait TemplateFiles {
    /// The text of the file at a path relative to the root, if it is one.
    fn read(&self, path: &str) -> Option<String>;
    /// The paths of apt's sources.
    fn apt_sources(&self) -> Vec<String>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirrors::MirrorSettings;

    struct Given(Vec<(&'static str, &'static str)>);

    impl TemplateFiles for Given {
        fn read(&self, path: &str) -> Option<String> {
            self.0.iter().find(|(known, _)| *known == path).map(|(_, text)| (*text).to_string())
        }

        fn apt_sources(&self) -> Vec<String> {
            self.0.iter().map(|(path, _)| (*path).to_string()).filter(|path| path.contains("apt")).collect()
        }
    }

    fn mirrors(settings: serde_json::Value) -> PackageMirrors {
        serde_json::from_value::<MirrorSettings>(settings).unwrap().resolve().unwrap()
    }

    #[test]
    fn clients_that_read_variables_get_variables() {
        let all = mirrors(serde_json::json!({
            "apt": "http://deb.test", "npm": "https://npm.test/r", "pypi": "http://10.0.0.1:3141/simple/",
            "crates": "https://crates.test/index", "go": "https://go.test", "maven": "https://m2.test/all",
        }));
        let expected = [
            ("GOPROXY", "https://go.test"),
            ("MAVEN_ARGS", "-gs /etc/coffer/maven-settings.xml"),
            ("PIP_INDEX_URL", "http://pypi.mirrors.coffer.internal:3141/simple"),
            ("PIP_TRUSTED_HOST", "pypi.mirrors.coffer.internal:3141"),
            ("UV_DEFAULT_INDEX", "http://pypi.mirrors.coffer.internal:3141/simple"),
            ("npm_config_registry", "https://npm.test/r/"),
        ];
        assert_eq!(all.variables(), expected.map(|(name, value)| (name.into(), value.into())).into());
        assert!(mirrors(serde_json::json!({"hosts": ["pypi.org"]})).variables().is_empty());
        let tls = mirrors(serde_json::json!({"pypi": "https://pypi.test/simple"})).variables();
        assert!(!tls.contains_key("PIP_TRUSTED_HOST"));
    }

    #[test]
    fn clients_that_do_not_get_files_and_a_template_keeps_its_own() {
        let all = mirrors(serde_json::json!({
            "apt": "http://deb.test/debian", "crates": "sparse+https://crates.test/index/", "maven": "https://m2.test/all",
        }));
        let bare = Given(vec![("etc/apt/sources.list", "deb http://deb.debian.org/debian trixie main\n")]);
        let files = all.files(&bare);
        let text = |path: &str| &files.iter().find(|file| file.path == path).unwrap().text;
        assert_eq!(text("etc/apt/sources.list"), "deb http://deb.test/debian trixie main\n");
        assert!(text(CARGO).contains("registry = \"sparse+https://crates.test/index/\"\n"));
        assert!(text(MAVEN).contains("<url>https://m2.test/all</url>"));
        assert_eq!(files.len(), 3);
        let own =
            Given(vec![(CARGO, "# own"), ("etc/apt/sources.list", "deb http://x.test/other trixie main\n")]);
        assert_eq!(all.files(&own).iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), [MAVEN]);
        assert!(PackageMirrors::default().files(&bare).is_empty());
    }
}
