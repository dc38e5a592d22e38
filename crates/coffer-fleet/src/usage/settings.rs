//! Prices of sandboxes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[usage]`: prices of sandboxes. All are 0 by default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UsageSettings {
    /// Price of a processor of a sandbox for each second it runs, used or not.
    pub cpu_second: f64,
    /// Price of a GiB of its memory limit for each second it runs, used or not.
    pub memory_gib_second: f64,
    /// Price of the sandbox itself for each second it runs.
    pub sandbox_second: f64,
    /// The currency of prices; a label, nothing is converted.
    pub currency: String,
    /// How often usage is recorded and budgets are checked, in seconds.
    pub interval_s: u64,
}

impl Default for UsageSettings {
    fn default() -> Self {
        Self {
            cpu_second: 0.0,
            memory_gib_second: 0.0,
            sandbox_second: 0.0,
            currency: "USD".into(),
            interval_s: 5,
        }
    }
}

/// A setting that does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} {allowed}")]
pub struct BadUsageSetting {
    pub key: &'static str,
    pub allowed: &'static str,
}

impl UsageSettings {
    pub fn check(&self) -> Result<(), BadUsageSetting> {
        let prices = [
            ("usage.cpu_second", self.cpu_second),
            ("usage.memory_gib_second", self.memory_gib_second),
            ("usage.sandbox_second", self.sandbox_second),
        ];
        for (key, price) in prices {
            if !(0.0..=1000.0).contains(&price) {
                return Err(BadUsageSetting { key, allowed: "must be between 0 and 1000" });
            }
        }
        if self.currency.is_empty() || self.currency.len() > 16 || !self.currency.is_ascii() {
            return Err(BadUsageSetting { key: "usage.currency", allowed: "must be 1 to 16 letters" });
        }
        if !(1..=300).contains(&self.interval_s) {
            return Err(BadUsageSetting { key: "usage.interval_s", allowed: "must be between 1 and 300" });
        }
        Ok(())
    }
}
