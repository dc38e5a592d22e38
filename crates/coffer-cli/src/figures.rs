//! Values as people read them: ages, sizes, amounts.

use coffer_core::clock::now_ms;
use serde_json::Value;

use crate::{encode, escape};

/// A field of a row: `created_at` as an age, `size_bytes` as a size, anything else as it is.
pub(crate) fn cell(item: &Value, column: &str) -> String {
    let column = column.split_once('=').map_or(column, |(_, field)| field);
    let value = column.split('.').try_fold(item, |value, name| value.get(name)).unwrap_or(&Value::Null);
    let shown = if column.ends_with("_at") || column == "deadline" || column == "at" {
        value.as_str().and_then(since).unwrap_or_else(|| text(value))
    } else if column.ends_with("_bytes") {
        value.as_u64().map(size).unwrap_or_else(|| text(value))
    } else {
        text(value)
    };
    if shown.is_empty() { "-".into() } else { shown }
}

/// A value on one line.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        Value::String(text) => escape::line(text),
        Value::Number(number) => match number.as_f64() {
            Some(float) if !number.is_i64() && !number.is_u64() => amount(float),
            _ => number.to_string(),
        },
        Value::Array(items) if items.iter().all(|item| !item.is_object() && !item.is_array()) => {
            items.iter().map(text).collect::<Vec<_>>().join(", ")
        }
        Value::Object(object) if object.values().all(|value| !value.is_object() && !value.is_array()) => {
            let pairs = object.iter().filter(|(_, value)| !value.is_null());
            pairs
                .map(|(name, value)| format!("{}={}", escape::line(name), text(value)))
                .collect::<Vec<_>>()
                .join(" ")
        }
        nested => encode::json(nested, false),
    }
}

/// Up to four decimals, without zeros at the end.
pub(crate) fn amount(number: f64) -> String {
    let text = format!("{number:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// How long ago, or how far ahead.
fn since(at: &str) -> Option<String> {
    let at = at.parse::<jiff::Timestamp>().ok()?.as_millisecond();
    let away = (now_ms() - at) / 1000;
    let period = period(away.unsigned_abs());
    Some(if away < 0 { format!("in {period}") } else { format!("{period} ago") })
}

/// Seconds in their largest whole unit.
pub(crate) fn period(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

pub(crate) fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut scaled, mut unit) = (bytes, 0);
    let mut rest = 0;
    while scaled >= 1024 && unit < units.len() - 1 {
        rest = (scaled % 1024) * 10 / 1024;
        scaled /= 1024;
        unit += 1;
    }
    if unit == 0 || scaled >= 100 {
        format!("{scaled} {}", units[unit])
    } else {
        format!("{scaled}.{rest} {}", units[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_periods_are_short() {
        assert_eq!(
            [0, 1023, 1536, 256 << 20, 5 << 40].map(size),
            ["0 B", "1023 B", "1.5 KiB", "256 MiB", "5.0 TiB"]
        );
        assert_eq!([5, 119, 120, 7200, 172_800].map(period), ["5s", "119s", "2m", "2h", "2d"]);
        assert_eq!([1.5, 0.0, 0.00004, 2.0].map(amount), ["1.5", "0", "0", "2"]);
    }
}
