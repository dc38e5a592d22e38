//! Query strings.

use axum::extract::FromRequestParts;
use http::request::Parts;
use percent_encoding::percent_decode;

use super::error::ApiError;

/// The pairs of a query string, decoded, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Query(Vec<(String, String)>);

impl<S: Sync> FromRequestParts<S> for Query {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let pairs = form_pairs(parts.uri.query().unwrap_or_default());
        pairs.map(Self).ok_or_else(|| ApiError::bad_request("the query string is not UTF-8"))
    }
}

impl Query {
    /// The first value of `name`; an empty one counts as none.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        let first = self.0.iter().find(|(key, _)| key == name)?;
        Some(first.1.as_str()).filter(|value| !value.is_empty())
    }

    /// Every value of `name`.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The first value of `name` as a number that is not negative.
    pub(super) fn number(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.parse::<i64>() {
            Ok(number) if number >= 0 => Ok(Some(number)),
            _ => Err(ApiError::bad_request(format!("{name} must be a whole number that is not negative"))),
        }
    }
}

/// Decodes `application/x-www-form-urlencoded`; `None` where it is not UTF-8.
pub(super) fn form_pairs(text: &str) -> Option<Vec<(String, String)>> {
    let decode = |text: &str| {
        let spaced = text.replace('+', " ");
        percent_decode(spaced.as_bytes()).decode_utf8().ok().map(|text| text.into_owned())
    };
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((decode(key)?, decode(value)?))
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_decoded() {
        let pairs = form_pairs("a=1+2&b=%C3%A9&&c&d=x%3Dy").unwrap();
        let expected = [("a", "1 2"), ("b", "é"), ("c", ""), ("d", "x=y")];
        assert_eq!(pairs, expected.map(|(key, value)| (key.to_string(), value.to_string())));
        assert_eq!(form_pairs("a=%ff"), None);
    }
}
