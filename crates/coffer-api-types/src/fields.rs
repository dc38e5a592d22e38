//! Deserializers for fields that JSON and query strings encode differently.

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

/// `true` or `false`, also as `1` or `0`: a flag in a query string.
pub(crate) fn flag<'de, D: Deserializer<'de>>(from: D) -> Result<Option<bool>, D::Error> {
    match String::deserialize(from)?.as_str() {
        "true" | "1" => Ok(Some(true)),
        "false" | "0" => Ok(Some(false)),
        _ => Err(D::Error::custom("must be true or false")),
    }
}

/// A field that is present, even if it is null. With `default`, a missing field is `None`, null is `Some(None)`.
pub(crate) fn named<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}
