//! Keys that a provider refuses. Some agents repeat a call with a wrong key for minutes and print nothing.

use std::collections::BTreeMap;

use coffer_core::model::Provider;
use coffer_core::sync::Mutex;

/// Refusals in a row after which a key counts as wrong. One alone may be a hiccup of the provider.
const MOST: u32 = 3;

/// Refusals of keys in a row, by provider. A restarted server counts from zero: the agent's next calls tell it again.
#[derive(Debug, Default)]
pub(super) struct RefusedKeys(Mutex<BTreeMap<Provider, u32>>);

impl RefusedKeys {
    /// Counts an answer of the provider. Only 401 is about the key: 403 may be about one model.
    pub(super) fn count(&self, provider: Provider, status: u16) {
        match status {
            401 => *self.0.lock().entry(provider).or_default() += 1,
            200..=299 => drop(self.0.lock().remove(&provider)),
            _ => {}
        }
    }

    /// A provider that refuses its key.
    pub(super) fn provider(&self) -> Option<Provider> {
        self.0.lock().iter().find(|(_, refusals)| **refusals >= MOST).map(|(provider, _)| *provider)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_wrong_after_some_refusals_in_a_row() {
        let keys = RefusedKeys::default();
        for status in [401, 401, 200, 401, 529, 403, 401] {
            keys.count(Provider::Anthropic, status);
            assert_eq!(keys.provider(), None, "after {status}");
        }
        keys.count(Provider::OpenAi, 401);
        assert_eq!(keys.provider(), None, "another provider's");
        keys.count(Provider::Anthropic, 401);
        assert_eq!(keys.provider(), Some(Provider::Anthropic));
    }
}
