//! Leads apt's sources to a mirror.
//!
//! Only URIs of archives of the distributions change. Third-party sources, suites, components, keyrings and
//! comments stay as they are.

use super::url::MirrorUrl;

/// The names of archives, at the end of their URIs.
const ARCHIVES: [&str; 4] = ["debian", "debian-security", "ubuntu", "ubuntu-ports"];

/// The text of a sources file with the URIs of archives replaced; `None` if the file is not one of sources.
pub(super) fn replace_archives(path: &str, text: &str, mirror: &MirrorUrl) -> Option<String> {
    let mirror = mirror.clone().above(&ARCHIVES);
    if path.ends_with(".list") {
        Some(each_line(text, |line| one_line(line, &mirror)))
    } else if path.ends_with(".sources") {
        let mut in_uris = false;
        Some(each_line(text, |line| {
            // A field goes on in indented lines.
            if !line.starts_with([' ', '\t', '#']) {
                in_uris =
                    line.split_once(':').is_some_and(|(key, _)| key.trim().eq_ignore_ascii_case("uris"));
            }
            if in_uris && !line.starts_with('#') { replace_words(line, &mirror) } else { line.to_string() }
        }))
    } else {
        None
    }
}

fn each_line(text: &str, mut change: impl FnMut(&str) -> String) -> String {
    text.split_inclusive('\n')
        .map(|line| {
            let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
            format!("{}{end}", change(line))
        })
        .collect()
}

/// `deb [options] uri suite component...`
fn one_line(line: &str, mirror: &MirrorUrl) -> String {
    let first = line.split_whitespace().next().unwrap_or_default();
    if first == "deb" || first == "deb-src" { replace_words(line, mirror) } else { line.to_string() }
}

/// Replaces every word that is the URI of an archive; spaces stay.
fn replace_words(line: &str, mirror: &MirrorUrl) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(start) = rest.find(|c: char| !c.is_whitespace()) {
        let (space, word) = rest.split_at(start);
        let (word, after) = word.split_at(word.find(char::is_whitespace).unwrap_or(word.len()));
        out.push_str(space);
        match archive(word) {
            Some(name) => out.push_str(&format!("{mirror}/{name}")),
            None => out.push_str(word),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// The archive that a URI leads to.
fn archive(uri: &str) -> Option<&str> {
    let rest = uri.strip_prefix("http://").or_else(|| uri.strip_prefix("https://"))?;
    let (_, path) = rest.split_once('/')?;
    let last = path.trim_end_matches('/').rsplit('/').next()?;
    ARCHIVES.into_iter().find(|name| *name == last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(path: &str, text: &str) -> String {
        replace_archives(path, text, &MirrorUrl::parse("https://m.test:8443/r/debian").unwrap()).unwrap()
    }

    #[test]
    fn lines_of_the_distribution_lead_to_the_mirror() {
        let list = "# deb http://deb.debian.org/debian old main\n\
                    deb [signed-by=/a/debian.gpg]  http://deb.debian.org/debian/ trixie main contrib\n\
                    deb-src http://deb.debian.org/debian trixie main\n\
                    deb https://u:p@x.test/a/debian-security trixie-security main\n\
                    deb http://apt.example.com/node trixie main\n\
                    deb file:/srv/debian trixie main";
        let expected = "# deb http://deb.debian.org/debian old main\n\
                        deb [signed-by=/a/debian.gpg]  https://m.test:8443/r/debian trixie main contrib\n\
                        deb-src https://m.test:8443/r/debian trixie main\n\
                        deb https://m.test:8443/r/debian-security trixie-security main\n\
                        deb http://apt.example.com/node trixie main\n\
                        deb file:/srv/debian trixie main";
        assert_eq!(replaced("etc/apt/sources.list", list), expected);
    }

    #[test]
    fn stanzas_keep_their_other_fields() {
        let sources = "Types: deb\nURIs: http://archive.ubuntu.com/ubuntu\n  http://ports.test/ubuntu-ports/\n# x\n\
                       Suites: noble noble-updates\nComponents: main\nSigned-By:\n http://not.a/ubuntu\n\n\
                       types: deb\nuris: https://third.test/debian-tools\n";
        let expected = sources
            .replace("http://archive.ubuntu.com/ubuntu", "https://m.test:8443/r/ubuntu")
            .replace("http://ports.test/ubuntu-ports/", "https://m.test:8443/r/ubuntu-ports");
        assert_eq!(replaced("etc/apt/sources.list.d/ubuntu.sources", sources), expected);
        let mirror = MirrorUrl::parse("http://m.test").unwrap();
        assert_eq!(replace_archives("etc/apt/sources.list.d/x.save", sources, &mirror), None);
    }
}
