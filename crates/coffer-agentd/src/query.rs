//! The query of a URL, decoded.

use percent_encoding::percent_decode_str;

/// Parameters in order; of two with the same name the first counts.
#[derive(Debug, Default)]
pub(crate) struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    pub(crate) fn parse(query: &str) -> Self {
        let pairs = query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                (decode(name), decode(value))
            })
            .collect();
        Self { pairs }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

fn decode(text: &str) -> String {
    let spaced = text.replace('+', " ");
    percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_out_as_they_were_meant() {
        let query = Query::parse("path=%2Fa+b%2Bc&path=x&empty=&flag");
        assert_eq!(query.get("path"), Some("/a b+c"));
        assert_eq!(query.get("empty"), Some(""));
        assert_eq!(query.get("flag"), Some(""));
        assert_eq!(query.get("none"), None);
    }
}
