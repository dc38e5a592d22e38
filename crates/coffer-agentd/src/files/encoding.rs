//! Content codings of requests and answers.

use http::{HeaderMap, HeaderValue, header};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    Identity,
    Gzip,
}

/// The coding of a request's body.
pub(super) fn of_body(headers: &HeaderMap) -> Result<Coding, String> {
    let Some(value) = text(headers, header::CONTENT_ENCODING) else {
        return Ok(Coding::Identity);
    };
    match value.trim().to_ascii_lowercase().as_str() {
        "" | "identity" => Ok(Coding::Identity),
        "gzip" => Ok(Coding::Gzip),
        _ => Err(format!("unsupported Content-Encoding: {value}, supported: gzip")),
    }
}

/// The best coding that a client accepts; plain unless it forbids that.
pub(super) fn accepted(headers: &HeaderMap) -> Result<Coding, String> {
    let Some(value) = text(headers, header::ACCEPT_ENCODING) else {
        return Ok(Coding::Identity);
    };
    let mut wishes: Vec<(String, f32)> =
        value.split(',').map(wish).filter(|(name, _)| !name.is_empty()).collect();
    // Stable, so that of equals the first wins.
    wishes.sort_by(|(_, left), (_, right)| right.total_cmp(left));
    let plain_refused = wishes.iter().any(|(name, quality)| name == "identity" && *quality == 0.0);
    for (name, quality) in &wishes {
        match name.as_str() {
            _ if *quality == 0.0 => {}
            "gzip" => return Ok(Coding::Gzip),
            "*" if plain_refused => return Ok(Coding::Gzip),
            "identity" | "*" => return Ok(Coding::Identity),
            _ => {}
        }
    }
    if plain_refused {
        return Err("no acceptable encoding found, supported: gzip".to_owned());
    }
    Ok(Coding::Identity)
}

fn wish(item: &str) -> (String, f32) {
    let mut parts = item.split(';');
    let name = parts.next().unwrap_or_default().trim().to_ascii_lowercase();
    let quality = parts
        .find_map(|part| part.trim().to_ascii_lowercase().strip_prefix("q=")?.parse().ok())
        .filter(|quality: &f32| quality.is_finite())
        .unwrap_or(1.0);
    (name, quality)
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name).map(HeaderValue::to_str)?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_acceptable_coding_is_chosen() {
        let cases = [
            ("", Ok(Coding::Identity)),
            ("gzip", Ok(Coding::Gzip)),
            ("gzip, deflate, br, zstd", Ok(Coding::Gzip)),
            ("br, GZIP;q=0.5", Ok(Coding::Gzip)),
            ("identity", Ok(Coding::Identity)),
            ("gzip;q=0.2, identity;q=0.8", Ok(Coding::Identity)),
            ("gzip;q=0", Ok(Coding::Identity)),
            ("*", Ok(Coding::Identity)),
            ("identity;q=0, *", Ok(Coding::Gzip)),
            ("br", Ok(Coding::Identity)),
            ("br, identity;q=0", Err(())),
        ];
        for (value, expected) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, value.parse().unwrap());
            assert_eq!(accepted(&headers).map_err(drop), expected, "{value}");
        }
        assert_eq!(accepted(&HeaderMap::new()), Ok(Coding::Identity));
    }
}
