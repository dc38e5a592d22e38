//! The `WWW-Authenticate` header: how a registry wants to be asked.

use http::HeaderMap;
use http::header::WWW_AUTHENTICATE;

const LONGEST: usize = 8 << 10;
const MOST_HEADERS: usize = 8;
const MOST_PARAMETERS: usize = 32;

/// What a registry asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Challenge {
    /// A token, from the server at `realm`.
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
    /// A user name and a password.
    Basic,
}

/// The challenge to answer: a token rather than a password. Unknown schemes and malformed headers are ignored.
pub(super) fn challenge_of(headers: &HeaderMap) -> Option<Challenge> {
    let values = headers.get_all(WWW_AUTHENTICATE).into_iter().take(MOST_HEADERS);
    let texts = values.filter_map(|value| value.to_str().ok()).filter(|text| text.len() <= LONGEST);
    let all: Vec<Challenge> = texts.flat_map(parse).collect();
    let bearer = all.iter().find(|challenge| matches!(challenge, Challenge::Bearer { .. }));
    bearer.or(all.first()).cloned()
}

/// A scheme and its parameters, as they were written.
struct Draft<'a> {
    scheme: &'a str,
    parameters: Vec<(&'a str, String)>,
}

impl Draft<'_> {
    fn finish(self) -> Option<Challenge> {
        let mut parameters = self.parameters;
        let mut take = |name: &str| {
            let found = parameters.iter().position(|(known, _)| known.eq_ignore_ascii_case(name))?;
            Some(parameters.swap_remove(found).1)
        };
        match self.scheme.to_ascii_lowercase().as_str() {
            "basic" => Some(Challenge::Basic),
            "bearer" => Some(Challenge::Bearer {
                realm: take("realm")?,
                service: take("service"),
                scope: take("scope"),
            }),
            _ => None,
        }
    }
}

/// Reads challenges: a scheme, then `name=value` with commas between them. A word that no `=` follows begins the next.
fn parse(text: &str) -> Vec<Challenge> {
    let mut drafts: Vec<Draft<'_>> = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let end = rest.find(|letter: char| !is_word(letter)).unwrap_or(rest.len());
        if end == 0 {
            break;
        }
        let word = &rest[..end];
        rest = &rest[end..];
        let after = rest.trim_start_matches([' ', '\t']);
        match (after.strip_prefix('='), drafts.last_mut()) {
            (Some(after), Some(draft)) if draft.parameters.len() < MOST_PARAMETERS => {
                let Some((value, after)) = value_of(after.trim_start_matches([' ', '\t'])) else { break };
                draft.parameters.push((word, value));
                rest = after;
            }
            (Some(_), _) => break,
            (None, _) => drafts.push(Draft { scheme: word, parameters: Vec::new() }),
        }
    }
    drafts.into_iter().filter_map(Draft::finish).collect()
}

/// A quoted value or a plain one, and what follows it.
fn value_of(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ', '\t']).unwrap_or(text.len());
        return Some((text[..end].to_string(), &text[end..]));
    };
    let mut value = String::new();
    let mut letters = quoted.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, &quoted[at + 1..])),
            '\\' => value.push(letters.next()?.1),
            _ => value.push(letter),
        }
    }
    None
}

fn is_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~/".contains(letter)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn of(texts: &[&str]) -> Option<Challenge> {
        let mut headers = HeaderMap::new();
        for text in texts {
            headers.append(WWW_AUTHENTICATE, HeaderValue::from_str(text).unwrap());
        }
        challenge_of(&headers)
    }

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Option<Challenge> {
        let own = |text: Option<&str>| text.map(str::to_string);
        Some(Challenge::Bearer { realm: realm.into(), service: own(service), scope: own(scope) })
    }

    #[test]
    fn challenges_are_read_as_registries_write_them() {
        let hub = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull""#;
        let read =
            bearer("https://auth.docker.io/token", Some("registry.docker.io"), Some("repository:a/b:pull"));
        assert_eq!(of(&[hub]), read);
        assert_eq!(of(&[&hub.replace(',', " , ").replace('=', " = ")]), read, "spaces are allowed");
        assert_eq!(of(&["Basic realm=\"x\""]), Some(Challenge::Basic));
        assert_eq!(of(&["basic"]), Some(Challenge::Basic));
        assert_eq!(of(&[r#"BEARER Realm=https://x/t,service=y"#]), bearer("https://x/t", Some("y"), None));
        assert_eq!(of(&[r#"Bearer realm="a\"b\\c,d""#]), bearer("a\"b\\c,d", None, None));
        // A token is preferred, in one header or in two.
        assert_eq!(of(&[r#"Basic realm="x", Bearer realm="https://t""#]), bearer("https://t", None, None));
        assert_eq!(of(&["Basic realm=x", "Bearer realm=https://t"]), bearer("https://t", None, None));
        assert_eq!(of(&["Negotiate YIIabc==, Basic realm=x"]), Some(Challenge::Basic));
        assert_eq!(of(&["Negotiate", "Basic realm=x"]), Some(Challenge::Basic));
    }

    #[test]
    fn malformed_challenges_are_ignored() {
        let long = format!("Bearer realm=\"{}\"", "x".repeat(LONGEST));
        let many = format!("Bearer {}realm=x", "a=b,".repeat(MOST_PARAMETERS));
        for bad in [
            "",
            ",,,",
            "=x",
            "Bearer",
            "Bearer realm=\"x",
            "Bearer service=x",
            "Bearer realm=\"x\\",
            &long,
            &many,
        ] {
            assert_eq!(of(&[bad]), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_header_is_read_without_a_panic(text in "[ -~]{0,200}|(Bearer|Basic|realm|=|\"|,| |\\\\|x){0,60}") {
            parse(&text);
        }

        #[test]
        fn quoted_values_come_out_as_they_went_in(realm in "[ -~]{0,60}") {
            let quoted = realm.replace('\\', "\\\\").replace('"', "\\\"");
            let text = format!("Bearer scope=\"s\", realm=\"{quoted}\"");
            prop_assert_eq!(parse(&text), [bearer(&realm, None, Some("s")).unwrap()]);
        }
    }
}
