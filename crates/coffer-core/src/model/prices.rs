//! Prices of models, and the cost of calls.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Asked, Provider};

/// The table that is a part of the program.
const BUILT_IN: &str = include_str!("prices.json");
/// Nobody charges more than this times as much for speed.
const MOST_FOR_SPEED: f64 = 6.0;
/// Searches that a call is expected to do at most.
const MOST_SEARCHES: u64 = 20;

/// A table of prices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// The day on which the table was put together, as `2026-11-18`.
    pub as_of: String,
    pub currency: String,
    /// Where the current prices are.
    #[serde(default)]
    pub sources: Vec<String>,
    /// The price of one search that a provider does, by provider.
    #[serde(default)]
    pub search: BTreeMap<Provider, f64>,
    /// By name, without a date at its end.
    pub models: BTreeMap<String, Price>,
}

/// The prices of a model, for a million tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    pub input: f64,
    /// Input that was read from a cache; the price of input if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<f64>,
    /// Input that was written to a cache for minutes; the price of input if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<f64>,
    /// Input that was written to a cache for an hour; that of `cache_write` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_hour: Option<f64>,
    pub output: f64,
    /// The most tokens of a request.
    pub window: u64,
    /// The most tokens of an answer.
    pub most_output: u64,
    /// How many times as much fast service costs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fast: Option<f64>,
    /// Other prices for requests with more input than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub long: Option<LongPrice>,
}

/// The prices of long requests, for a million tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LongPrice {
    /// Requests with more tokens than this are long.
    pub above: u64,
    /// How many times as much input, cached or not, costs.
    pub input_times: f64,
    pub output_times: f64,
}

/// The table cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadPrices {
    #[error("it cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    #[error("`as_of` must be a day, such as 2026-11-18")]
    Day,
    #[error("a price of `{0}` is not between 0 and 100000 for a million tokens")]
    Price(String),
    #[error("`{0}` needs `window` and `most_output` of at least 1")]
    Window(String),
}

/// Tokens that a call used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    /// Neither read from a cache nor written to one.
    pub input: u64,
    pub cached: u64,
    pub cache_write: u64,
    pub cache_write_hour: u64,
    pub output: u64,
    pub searches: u64,
}

impl Used {
    /// All input.
    pub const fn all_input(&self) -> u64 {
        self.input
            .saturating_add(self.cached)
            .saturating_add(self.cache_write)
            .saturating_add(self.cache_write_hour)
    }
}

impl Prices {
    /// The table that is a part of the program.
    pub fn built_in() -> Self {
        Self::parse(BUILT_IN).expect("the table in the program is tested")
    }

    /// Parses a table and checks it.
    pub fn parse(text: &str) -> Result<Self, BadPrices> {
        let table: Self = serde_json::from_str(text)?;
        if table.as_of.parse::<jiff::civil::Date>().is_err() {
            return Err(BadPrices::Day);
        }
        for (name, price) in &table.models {
            let long = price.long.as_ref();
            let all = [Some(price.input), price.cached, price.cache_write, price.cache_write_hour]
                .into_iter()
                .chain([Some(price.output), price.fast])
                .chain([long.map(|long| long.input_times), long.map(|long| long.output_times)])
                .flatten();
            let mut all = all.chain(table.search.values().copied());
            if !all.all(|price| (0.0..=100_000.0).contains(&price)) {
                return Err(BadPrices::Price(name.clone()));
            }
            if price.window == 0 || price.most_output == 0 {
                return Err(BadPrices::Window(name.clone()));
            }
        }
        Ok(table)
    }

    /// This table with the entries of another, which win.
    #[must_use]
    pub fn with(mut self, other: Self) -> Self {
        self.models.extend(other.models);
        self.search.extend(other.search);
        self.sources.extend(other.sources);
        self.as_of = self.as_of.max(other.as_of);
        self
    }

    /// The price of a model, by its name with or without a date at its end. Other endings are other models,
    /// which may cost ten times as much.
    pub fn of(&self, model: &str) -> Option<&Price> {
        let name = model.to_ascii_lowercase();
        let name = name.rsplit('/').next().unwrap_or(&name);
        self.models.get(name).or_else(|| self.models.get(undated(name)))
    }

    /// The cost of a call in billionths; `None` if the model has no price.
    pub fn cost(&self, provider: Provider, model: &str, used: &Used, is_fast: bool) -> Option<i64> {
        let price = self.of(model)?;
        let searched = self.search.get(&provider).copied().unwrap_or(0.0) * used.searches as f64;
        Some(nanos(price.cost(used, is_fast) + searched))
    }

    /// The most that a call can cost in billionths, with at most `output` tokens in each answer.
    pub fn most(&self, provider: Provider, asked: &Asked, output: u64) -> Option<i64> {
        let price = self.of(&asked.model)?;
        let input = asked.input.within(price.window);
        let dearest = [price.input, price.cached(), price.write(), price.write_hour()];
        let dearest = dearest.into_iter().fold(0.0, f64::max);
        let (mut in_times, mut out_times) = (1.0_f64, 1.0_f64);
        if let Some(long) = price.long.as_ref().filter(|long| input > long.above) {
            (in_times, out_times) = (long.input_times.max(1.0), long.output_times.max(1.0));
        }
        let output = output.saturating_mul(asked.answers) as f64;
        let mut cost = (input as f64 * dearest * in_times + output * price.output * out_times) / 1e6;
        if asked.is_fast {
            cost *= price.fast.unwrap_or(MOST_FOR_SPEED);
        }
        if asked.searches {
            cost += self.search.get(&provider).copied().unwrap_or(0.0) * MOST_SEARCHES as f64;
        }
        Some(nanos(cost))
    }
}

impl Price {
    fn cached(&self) -> f64 {
        self.cached.unwrap_or(self.input)
    }

    fn write(&self) -> f64 {
        self.cache_write.unwrap_or(self.input)
    }

    fn write_hour(&self) -> f64 {
        self.cache_write_hour.unwrap_or_else(|| self.write())
    }

    fn cost(&self, used: &Used, is_fast: bool) -> f64 {
        let mut input = used.input as f64 * self.input
            + used.cached as f64 * self.cached()
            + used.cache_write as f64 * self.write()
            + used.cache_write_hour as f64 * self.write_hour();
        let mut output = used.output as f64 * self.output;
        if let Some(long) = self.long.as_ref().filter(|long| used.all_input() > long.above) {
            (input, output) = (input * long.input_times, output * long.output_times);
        }
        let times = if is_fast { self.fast.unwrap_or(MOST_FOR_SPEED) } else { 1.0 };
        (input + output) * times / 1e6
    }

    /// The most tokens of an answer.
    pub fn answer(&self, asked: &Asked) -> u64 {
        asked.most_output.map_or(self.most_output, |most| most.min(self.most_output))
    }
}

/// Billionths, rounded up: a thousand small calls must not be free.
fn nanos(amount: f64) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "it saturates, and prices are bounded")]
    let nanos = (amount * 1e9 - 1e-3).ceil() as i64;
    nanos.max(0)
}

/// A name without `-latest` or a date at its end: `-20251001`, `-2026-04-01`.
fn undated(name: &str) -> &str {
    if let Some(rest) = name.strip_suffix("-latest") {
        return rest;
    }
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    for (length, shape) in [(9, &[8][..]), (11, &[4, 2, 2][..])] {
        if name.len() > length && name.is_char_boundary(name.len() - length) {
            let (rest, end) = name.split_at(name.len() - length);
            let Some(end) = end.strip_prefix('-') else { continue };
            let parts: Vec<&str> = end.split('-').collect();
            let fits = parts.len() == shape.len()
                && parts.iter().zip(shape).all(|(part, length)| part.len() == *length && digits(part));
            if fits {
                return rest;
            }
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Call;

    fn asked(body: &str) -> Asked {
        Asked::read(&Call::read("POST", "/anthropic/v1/messages", None).unwrap(), body.as_bytes()).unwrap()
    }

    #[test]
    fn the_built_in_table_can_be_used() {
        let table = Prices::built_in();
        assert_eq!(table.currency, "USD");
        assert!(!table.sources.is_empty() && table.models.len() > 20);
        for (name, price) in &table.models {
            assert!(price.output >= price.input && price.cached() <= price.input, "{name}");
            assert!(price.most_output <= price.window, "{name}");
            assert_eq!(undated(name), name, "the table has names without dates");
        }
    }

    #[test]
    fn a_date_at_the_end_of_a_name_does_not_matter_and_every_other_ending_does() {
        let table = Prices::built_in();
        for name in [
            "claude-haiku-4-5-20251001",
            "claude-haiku-4-5",
            "anthropic/Claude-Haiku-4-5",
            "claude-haiku-4-5-latest",
        ] {
            assert_eq!(table.of(name).map(|price| price.input), Some(1.0), "{name}");
        }
        assert!(table.of("gpt-5.4-2026-03-05").is_some());
        for name in ["gpt-5.4-ultra", "gpt-5", "claude", "", "claude-haiku-4-5-2025100", "é-20251001"] {
            assert!(table.of(name).is_none(), "{name}");
        }
    }

    #[test]
    fn a_call_costs_what_the_provider_charges() {
        let table = Prices::built_in();
        let used = Used {
            input: 1000,
            cached: 10_000,
            cache_write: 2000,
            cache_write_hour: 0,
            output: 500,
            searches: 2,
        };
        let cost = table.cost(Provider::Anthropic, "claude-haiku-4-5", &used, false).unwrap();
        // 1000 x 1 + 10,000 x 0.1 + 2000 x 1.25 + 500 x 5, for a million, and two searches at 0.01.
        assert_eq!(cost, 27_000_000);
        assert_eq!(table.cost(Provider::Anthropic, "unknown", &used, false), None);
        let long = Used { input: 150_000, output: 1000, ..Used::default() };
        let cost = table.cost(Provider::Anthropic, "claude-haiku-5-5", &long, false).unwrap();
        assert_eq!(cost, 77_500_000, "more than 100,000 tokens: five times the price");
    }

    #[test]
    fn no_call_costs_more_than_its_bound() {
        let table = Prices::built_in();
        let text = "x".repeat(30_000);
        let call = asked(&format!(r#"{{"model":"claude-haiku-4-5","max_tokens":100,"system":"{text}"}}"#));
        let most = table.most(Provider::Anthropic, &call, 100).unwrap();
        let worst = Used { cache_write_hour: 30_000, output: 100, ..Used::default() };
        assert!(table.cost(Provider::Anthropic, "claude-haiku-4-5", &worst, false).unwrap() <= most);
        let fast = asked(r#"{"model":"claude-haiku-4-5","max_tokens":100,"speed":"fast"}"#);
        assert!(
            table.most(Provider::Anthropic, &fast, 100)
                > table.most(
                    Provider::Anthropic,
                    &asked(r#"{"model":"claude-haiku-4-5","max_tokens":100}"#),
                    100
                )
        );
    }

    #[test]
    fn an_operators_table_wins_and_a_bad_one_is_refused() {
        let own = r#"{"as_of":"2030-01-02","currency":"USD","models":{"claude-haiku-4-5":
            {"input":9,"output":9,"window":10,"most_output":5}}}"#;
        let table = Prices::built_in().with(Prices::parse(own).unwrap());
        assert_eq!(table.of("claude-haiku-4-5").unwrap().input, 9.0);
        assert!(table.models.len() > 20 && table.as_of == "2030-01-02");
        for bad in [
            "{}".to_string(),
            own.replace("2030-01-02", "soon"),
            own.replace("\"input\":9", "\"input\":-1"),
            own.replace("\"window\":10", "\"window\":0"),
            own.replace("\"window\"", "\"windows\""),
        ] {
            assert!(Prices::parse(&bad).is_err(), "{bad}");
        }
    }
}
