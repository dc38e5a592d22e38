//! How providers answer a turn's calls, so that people learn why an agent waits, and why it failed.
//!
//! Some agents repeat a refused call for minutes and print nothing, and some end as if all were well.

use std::collections::BTreeMap;

use coffer_core::model::Provider;
use coffer_core::sync::Mutex;

/// Refusals in a row after which a key counts as wrong while the agent works. One alone may be a hiccup.
const MOST_REFUSALS: u32 = 3;
/// Failed answers of a turn that its transcript tells.
const MOST_TOLD: u32 = 200;
/// Those that wait to be told.
const MOST_WAITING: usize = 32;

/// A provider's answers that failed, in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Streak {
    /// Of the last one; nothing if there was no answer.
    pub status: Option<u16>,
    pub times: u32,
}

impl Streak {
    /// The last answer, in words: `529 (overloaded)`.
    pub fn words(&self) -> String {
        let Some(status) = self.status else { return "nothing".into() };
        let why = match status {
            401 => "the key is refused",
            408 | 504 => "it took too long",
            429 => "too many requests",
            529 => "overloaded",
            503 => "unavailable",
            _ => "an error of the provider",
        };
        format!("{status} ({why})")
    }
}

/// An answer for which an agent is expected to ask again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailedAnswer {
    pub provider: Provider,
    pub streak: Streak,
}

impl FailedAnswer {
    pub fn reason(&self) -> String {
        format!("provider `{}` answered {}", self.provider.as_str(), self.streak.words())
    }
}

/// What a turn's calls came to. A restarted server counts from zero: the agent's next calls tell it again.
#[derive(Debug, Default)]
pub(super) struct Answers(Mutex<Heard>);

#[derive(Debug, Default)]
struct Heard {
    streaks: BTreeMap<Provider, Streak>,
    waiting: Vec<FailedAnswer>,
    told: u32,
    any_good: bool,
}

/// Whether a status is about the provider, or the key, rather than about the request.
const fn is_trouble(status: Option<u16>) -> bool {
    matches!(status, None | Some(401 | 408 | 429 | 500..=599))
}

impl Answers {
    /// Counts an answer. 403 is not about the key: it may be about one model.
    pub(super) fn count(&self, provider: Provider, status: Option<u16>) {
        let mut heard = self.0.lock();
        if !is_trouble(status) {
            let is_good = status.is_some_and(|status| (200..300).contains(&status));
            heard.any_good |= is_good;
            // Another error is about the request: the provider is there, but it says nothing of the key.
            if is_good || heard.streaks.get(&provider).is_some_and(|streak| streak.status != Some(401)) {
                heard.streaks.remove(&provider);
            }
            return;
        }
        let streak = heard.streaks.entry(provider).or_insert(Streak { status, times: 0 });
        // A key that is refused is another trouble than a provider that is away.
        let is_same = (streak.status == Some(401)) == (status == Some(401));
        *streak = Streak { status, times: if is_same { streak.times.saturating_add(1) } else { 1 } };
        let failed = FailedAnswer { provider, streak: *streak };
        if heard.told < MOST_TOLD && heard.waiting.len() < MOST_WAITING {
            heard.told += 1;
            heard.waiting.push(failed);
        }
    }

    /// Whether a provider refuses its key, while the agent still works.
    pub(super) fn refuses(&self) -> bool {
        let is_refused = |streak: &Streak| streak.status == Some(401) && streak.times >= MOST_REFUSALS;
        self.0.lock().streaks.values().any(is_refused)
    }

    /// The trouble with which an ended turn's calls ended.
    pub(super) fn last(&self) -> Option<FailedAnswer> {
        let heard = self.0.lock();
        let (provider, streak) = heard.streaks.iter().max_by_key(|(_, streak)| streak.times)?;
        Some(FailedAnswer { provider: *provider, streak: *streak })
    }

    /// Whether any call was answered.
    pub(super) fn any_good(&self) -> bool {
        self.0.lock().any_good
    }

    /// Failed answers that were not told yet.
    pub(super) fn take(&self) -> Vec<FailedAnswer> {
        std::mem::take(&mut self.0.lock().waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_wrong_after_some_refusals_in_a_row() {
        let answers = Answers::default();
        for status in [401, 401, 200, 401, 529, 401, 401] {
            answers.count(Provider::Anthropic, Some(status));
            assert!(!answers.refuses(), "after {status}");
        }
        answers.count(Provider::OpenAi, Some(401));
        assert!(!answers.refuses(), "another provider's");
        answers.count(Provider::Anthropic, Some(401));
        assert!(answers.refuses());
    }

    #[test]
    fn a_request_that_is_refused_says_nothing_of_the_key() {
        let answers = Answers::default();
        for status in [401, 401, 403, 401] {
            answers.count(Provider::Anthropic, Some(status));
        }
        assert!(answers.refuses());
        assert!(!answers.any_good());
    }

    #[test]
    fn an_overloaded_provider_is_the_reason_until_it_answers() {
        let answers = Answers::default();
        for status in [Some(529), Some(429), None] {
            answers.count(Provider::OpenAi, status);
        }
        let last = answers.last().unwrap();
        assert_eq!((last.streak.times, last.reason().as_str()), (3, "provider `openai` answered nothing"));
        let told: Vec<String> = answers.take().iter().map(FailedAnswer::reason).collect();
        assert_eq!(
            told[..2],
            [
                "provider `openai` answered 529 (overloaded)",
                "provider `openai` answered 429 (too many requests)"
            ]
        );
        assert!(answers.take().is_empty(), "each is told once");
        answers.count(Provider::OpenAi, Some(200));
        assert_eq!(answers.last(), None);
        assert!(answers.any_good());
    }

    #[test]
    fn what_is_told_of_an_agent_that_asks_for_ever_is_bounded() {
        let answers = Answers::default();
        let mut told = 0;
        for _ in 0..1000 {
            (0..100).for_each(|_| answers.count(Provider::Gemini, Some(503)));
            told += answers.take().len();
        }
        assert_eq!(told, MOST_TOLD as usize);
        assert_eq!(answers.last().unwrap().streak.times, 100_000);
    }
}
