//! Values of arguments: `KEY=VALUE`, durations, sizes, words of the API.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;

use crate::failure::Failure;

/// Metadata: every pair needs a value.
pub(crate) fn metadata(pairs: &[String]) -> Result<BTreeMap<String, String>, Failure> {
    pairs
        .iter()
        .map(|pair| split(pair).ok_or_else(|| Failure::usage(format!("'{pair}' is not KEY=VALUE"))))
        .collect()
}

/// Variables: `NAME` alone takes its value from this program's environment, so that it is not on the command line.
pub(crate) fn variables(pairs: &[String]) -> Result<BTreeMap<String, String>, Failure> {
    let read = |pair: &String| {
        if let Some(both) = split(pair) {
            return Ok(both);
        }
        let value = std::env::var(pair);
        let value = value.map_err(|_| Failure::usage(format!("the variable '{pair}' is not set here")));
        Ok((pair.clone(), value?))
    };
    pairs.iter().map(read).collect()
}

/// `VARIABLE=SECRET`, where the secret is one of the project, by its name.
pub(crate) fn secrets(pairs: &[String]) -> Result<BTreeMap<String, String>, Failure> {
    let read = |pair: &String| split(pair).unwrap_or_else(|| (pair.clone(), pair.clone()));
    Ok(pairs.iter().map(read).collect())
}

fn split(pair: &str) -> Option<(String, String)> {
    let (name, value) = pair.split_once('=')?;
    (!name.is_empty()).then(|| (name.to_string(), value.to_string()))
}

/// A duration such as `90`, `30s`, `5m`, `2h` or `1d`, in seconds.
pub(crate) fn seconds(text: &str) -> Result<i64, String> {
    let (number, unit) =
        text.split_at(text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len()));
    let factor = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86400,
        _ => 0,
    };
    let parsed = number.parse::<i64>().ok().and_then(|number| number.checked_mul(factor));
    parsed
        .filter(|&seconds| seconds > 0)
        .ok_or_else(|| "use seconds, or a number with s, m, h or d".to_string())
}

/// A size such as `512MiB`, `2GiB` or `4G`, in MiB.
pub(crate) fn mebibytes(text: &str) -> Result<u64, String> {
    let (number, unit) =
        text.split_at(text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len()));
    let factor = match unit.to_ascii_lowercase().as_str() {
        "m" | "mib" | "mb" => 1,
        "g" | "gib" | "gb" => 1024,
        _ => 0,
    };
    let parsed = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    parsed.filter(|&size| size > 0).ok_or_else(|| "use a size such as 512MiB or 2GiB".to_string())
}

/// A word as an enum of the API.
pub(crate) fn word<T: DeserializeOwned>(text: Option<String>) -> Result<Option<T>, Failure> {
    let read = text.map(|text| serde_json::from_value(serde_json::Value::String(text)));
    read.transpose().map_err(|error| Failure::usage(error.to_string()))
}

/// Text as it is given, or from stdin for `-`.
pub(crate) fn text(given: Option<String>) -> Result<String, Failure> {
    match given.as_deref() {
        Some("-") => Ok(std::io::read_to_string(std::io::stdin())?),
        _ => Ok(given.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_have_units() {
        assert_eq!(
            ["90", "30s", "5m", "2h", "1d"].map(|text| seconds(text).unwrap()),
            [90, 30, 300, 7200, 86400]
        );
        assert!(["", "0", "5x", "-1", "m"].iter().all(|text| seconds(text).is_err()));
        assert_eq!(["512MiB", "2GiB", "4G"].map(|text| mebibytes(text).unwrap()), [512, 2048, 4096]);
        assert!(["", "512", "0G", "1TB"].iter().all(|text| mebibytes(text).is_err()));
    }

    #[test]
    fn values_may_contain_the_sign_itself() {
        let pairs = metadata(&["a=b=c".into(), "d=".into()]).unwrap();
        assert_eq!(pairs, BTreeMap::from([("a".into(), "b=c".into()), ("d".into(), String::new())]));
        assert!(metadata(&["=x".into()]).is_err() && metadata(&["x".into()]).is_err());
    }
}
