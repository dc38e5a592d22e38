//! Query strings: typed on our own routes, where unknown parameters are refused; as pairs on E2B's, whose SDKs
//! may send parameters that this server does not know.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{FromRequestParts, MatchedPath, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::Method;
use http::request::Parts;
use percent_encoding::percent_decode;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;
use utoipa::openapi::path::{Operation, ParameterIn};
use utoipa::openapi::{OpenApi, RefOr};

use super::error::ApiError;

const NOT_UTF8: &str = "the query string is not UTF-8";

/// Some of the parameters of one of our own routes. A route may read several such parts: [`Allowed`] knows
/// all of them, and the OpenAPI description uses the same types.
#[derive(Debug)]
pub(crate) struct Query<T>(pub T);

impl<T: DeserializeOwned + IntoParams, S: Sync> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        read(parts.uri.query().unwrap_or_default()).map(Self)
    }
}

fn read<T: DeserializeOwned>(text: &str) -> Result<T, ApiError> {
    if form_pairs(text).is_none() {
        return Err(ApiError::bad_request(NOT_UTF8));
    }
    // A parameter without a value counts as missing.
    let given =
        text.split('&').filter(|pair| pair.split_once('=').is_some_and(|(_, value)| !value.is_empty()));
    let given = given.collect::<Vec<_>>().join("&");
    let parsed =
        serde_path_to_error::deserialize(serde_html_form::Deserializer::from_bytes(given.as_bytes()));
    parsed.map_err(|error| {
        let (name, why) = (error.path().to_string(), error.inner().to_string());
        // The error for a missing parameter has no path.
        let missing = why.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
        match missing {
            Some(name) => ApiError::invalid(name, "is needed"),
            None => ApiError::invalid(&name, format!("is invalid: {why}")),
        }
    })
}

/// The names in parameters that may be repeated and may have several values, joined by commas.
pub(crate) fn names(values: &[String]) -> impl Iterator<Item = &str> {
    values.iter().flat_map(|value| value.split(',')).filter(|name| !name.is_empty())
}

/// The parameters of each of our own routes, from its OpenAPI description.
#[derive(Debug, Clone)]
pub(super) struct Allowed(Arc<HashMap<(Method, String), Vec<String>>>);

impl Allowed {
    pub(super) fn of(openapi: &OpenApi) -> Self {
        let mut routes = HashMap::new();
        for (path, item) in &openapi.paths.paths {
            let operations = [
                (Method::GET, &item.get),
                (Method::HEAD, &item.head),
                (Method::PUT, &item.put),
                (Method::POST, &item.post),
                (Method::DELETE, &item.delete),
                (Method::PATCH, &item.patch),
            ];
            for (method, operation) in operations {
                let Some(operation) = operation else { continue };
                let names = parameters(operation).map(str::to_string).collect();
                routes.insert((method, path.clone()), names);
            }
        }
        Self(Arc::new(routes))
    }

    /// Refuses a request with a parameter that its route does not take: an ignored parameter would seem to
    /// work.
    pub(super) async fn check(self, request: Request, next: Next) -> Response {
        match self.refusal(&request) {
            Some(refusal) => refusal.into_response(),
            None => next.run(request).await,
        }
    }

    fn refusal(&self, request: &Request) -> Option<ApiError> {
        let query = request.uri().query()?;
        // The description writes a wildcard part of the path as an ordinary one.
        let route = request.extensions().get::<MatchedPath>()?.as_str().replace("{*", "{");
        let of = |method: &Method| self.0.get(&(method.clone(), route.clone()));
        // A route without its own HEAD answers it like GET.
        let is_head = *request.method() == Method::HEAD;
        let allowed = of(request.method()).or_else(|| is_head.then(|| of(&Method::GET)).flatten())?;
        let Some(pairs) = form_pairs(query) else { return Some(ApiError::bad_request(NOT_UTF8)) };
        let (unknown, _) = pairs.into_iter().find(|(name, _)| !allowed.contains(name))?;
        let shown: String = unknown.chars().take(64).collect();
        let hint = match &allowed[..] {
            [] => "this route takes no parameters in its query".to_string(),
            allowed => format!("this route takes {}", allowed.join(", ")),
        };
        Some(ApiError::bad_request(format!("unknown parameter '{shown}'; {hint}")))
    }
}

/// The names of the parameters that an operation reads from the query.
pub(super) fn parameters(operation: &Operation) -> impl Iterator<Item = &str> {
    operation.parameters.iter().flatten().filter_map(|parameter| match parameter {
        RefOr::T(parameter) if parameter.parameter_in == ParameterIn::Query => Some(parameter.name.as_str()),
        RefOr::T(_) | RefOr::Ref(_) => None,
    })
}

/// The pairs of a query string, decoded, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pairs(Vec<(String, String)>);

impl<S: Sync> FromRequestParts<S> for Pairs {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let pairs = form_pairs(parts.uri.query().unwrap_or_default());
        pairs.map(Self).ok_or_else(|| ApiError::bad_request(NOT_UTF8))
    }
}

impl Pairs {
    /// The first value of `name`; an empty one counts as missing.
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

/// Decodes `application/x-www-form-urlencoded`; `None` if it is not UTF-8.
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
    use coffer_api_types::executions::OutputQuery;
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Read {
        limit: Option<u32>,
        kind: Vec<String>,
        text: Option<String>,
    }

    #[test]
    fn values_are_read_as_their_types() {
        let read_all: Read = read("limit=5&kind=a,b&kind=c&text=x+%C3%A9&other=7&empty=").unwrap();
        let expected =
            Read { limit: Some(5), kind: vec!["a,b".into(), "c".into()], text: Some("x é".into()) };
        assert_eq!(read_all, expected);
        assert_eq!(names(&read_all.kind).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(read::<Read>("limit=&text=&&kind").unwrap(), Read::default(), "empty is none");
        for (query, said) in [
            ("limit=x", "limit is invalid: "),
            ("limit=-1", "limit is invalid: "),
            ("limit=1&limit=2", "limit is invalid: "),
            ("text=%ff", NOT_UTF8),
        ] {
            let refused = read::<Read>(query).unwrap_err();
            let (_, message, _) = refused.into_parts();
            assert!(message.starts_with(said), "{query}: {message}");
        }
    }

    #[test]
    fn flags_are_true_or_false() {
        for (query, expected) in [
            ("raw=1", Some(true)),
            ("raw=true", Some(true)),
            ("raw=0", Some(false)),
            ("raw=", None),
            ("", None),
        ] {
            assert_eq!(read::<OutputQuery>(query).unwrap().raw, expected, "{query}");
        }
        let (_, message, _) = read::<OutputQuery>("raw=maybe").unwrap_err().into_parts();
        assert_eq!(message, "raw is invalid: must be true or false");
    }

    #[test]
    fn forms_are_decoded() {
        let pairs = form_pairs("a=1+2&b=%C3%A9&&c&d=x%3Dy").unwrap();
        let expected = [("a", "1 2"), ("b", "é"), ("c", ""), ("d", "x=y")];
        assert_eq!(pairs, expected.map(|(key, value)| (key.to_string(), value.to_string())));
        assert_eq!(form_pairs("a=%ff"), None);
    }
}
