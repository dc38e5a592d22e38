//! Names of images that templates of the host serve.

/// E2B's own base image, which is our template `base`.
const E2B_BASE: &str = "e2bdev/base";

/// Images that are bootstrapped from a distribution's packages, and the template of the host that has them.
const BOOTSTRAPPED: [(&str, &str); 4] = [
    ("debian:12", "debian-12"),
    ("debian:bookworm", "debian-12"),
    ("debian:13", "debian-13"),
    ("debian:trixie", "debian-13"),
];

/// Names of images that templates serve.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageNames(pub std::collections::BTreeMap<String, String>);

impl ImageNames {
    /// The templates that the operator's names lead to.
    pub fn templates(&self) -> std::collections::BTreeSet<String> {
        self.0.keys().filter_map(|image| self.serve(image)).collect()
    }

    /// The template that serves an image. The operator's names come first; a name may lead to another, once.
    pub(crate) fn serve(&self, image: &str) -> Option<String> {
        let image = short(image);
        let named = self.0.iter().find(|(name, _)| short(name) == image).map(|(_, target)| target.as_str());
        let target = named.map_or(image.clone(), short);
        if target == short(E2B_BASE) {
            return Some(coffer_fleet::DEFAULT_TEMPLATE.to_string());
        }
        if let Some((_, template)) = BOOTSTRAPPED.iter().find(|(name, _)| short(name) == target) {
            return Some((*template).to_string());
        }
        // The operator named a template.
        named.map(String::from)
    }
}

/// An image's name without the default registry and the default tag.
fn short(name: &str) -> String {
    let name = name.trim();
    let name = name.strip_prefix("docker.io/").unwrap_or(name);
    let name = name.strip_prefix("library/").unwrap_or(name);
    name.strip_suffix(":latest").unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_served_by_name_and_never_silently() {
        let names = [("ubuntu:22.04", "debian:12"), ("python:3", "python"), ("node", "e2bdev/base:latest")];
        let names = ImageNames(names.map(|(image, by)| (image.to_string(), by.to_string())).into());
        for (image, template) in [
            ("e2bdev/base", Some("base")),
            ("e2bdev/base:latest", Some("base")),
            ("docker.io/library/ubuntu:22.04", Some("debian-12")),
            ("debian:trixie", Some("debian-13")),
            ("python:3", Some("python")),
            ("node:latest", Some("base")),
            ("ubuntu:24.04", None),
            ("python", None),
        ] {
            assert_eq!(names.serve(image).as_deref(), template, "{image}");
        }
    }
}
