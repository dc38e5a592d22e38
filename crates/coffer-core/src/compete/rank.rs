//! Ranks entries, with reasons.
//!
//! In this order: finished before unfinished, passed checks before failed ones, then the smaller change, the
//! shorter time, the lower cost, the lower number. Known values come before unknown ones. The first
//! difference decides, so the order is total and deterministic.

use std::cmp::Ordering;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strum::VariantArray;

/// The size of an entry's change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffSize {
    pub files: u64,
    /// Lines; a binary file counts as one line.
    pub added: u64,
    pub removed: u64,
}

impl DiffSize {
    /// The number of changed lines.
    pub const fn lines(&self) -> u64 {
        self.added.saturating_add(self.removed)
    }
}

/// An entry's data for the ranking.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contender {
    pub number: i64,
    /// Why it did not finish, if it did not.
    pub failure: Option<String>,
    /// Whether its checks passed; `None` if there were none.
    pub passed: Option<bool>,
    pub diff: Option<DiffSize>,
    pub duration_ms: Option<i64>,
    /// In billionths of the currency.
    pub cost_nanos: Option<i64>,
}

impl Contender {
    const fn finished(&self) -> bool {
        self.failure.is_none()
    }
}

/// The rank of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placing {
    pub number: i64,
    /// From 1, the best; no two have the same.
    pub rank: i64,
    /// For people.
    pub reasons: Vec<String>,
}

/// The criteria, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray)]
enum Criterion {
    Finished,
    Checks,
    Diff,
    Time,
    Cost,
    Number,
}

impl Criterion {
    fn compare(self, one: &Contender, other: &Contender) -> Ordering {
        // Known values first, then the lower one.
        fn lower<T: Ord>(one: Option<T>, other: Option<T>) -> Ordering {
            one.is_none().cmp(&other.is_none()).then_with(|| one.cmp(&other))
        }
        match self {
            Self::Finished => other.finished().cmp(&one.finished()),
            Self::Checks => lower(one.passed.map(|passed| !passed), other.passed.map(|passed| !passed)),
            Self::Diff => {
                let size = |diff: &DiffSize| (diff.lines(), diff.files);
                lower(one.diff.as_ref().map(size), other.diff.as_ref().map(size))
            }
            Self::Time => lower(one.duration_ms, other.duration_ms),
            Self::Cost => lower(one.cost_nanos, other.cost_nanos),
            Self::Number => one.number.cmp(&other.number),
        }
    }

    /// Why one is before or behind the other, for people.
    fn told(self, one: &Contender, other: &Contender) -> String {
        let number = other.number;
        match self {
            Self::Finished if one.finished() => format!("it finished, and entry {number} did not"),
            Self::Finished => format!("it did not finish, and entry {number} did"),
            Self::Checks => {
                let came = |passed: Option<bool>| match passed {
                    Some(true) => "passed",
                    Some(false) => "failed",
                    None => "were not run",
                };
                format!("its checks {}, and those of entry {number} {}", came(one.passed), came(other.passed))
            }
            Self::Diff => {
                let shown = |diff: Option<DiffSize>| diff.map_or_else(|| "an unknown change".into(), size);
                format!("{} against {}", shown(one.diff), shown(other.diff))
            }
            Self::Time => {
                let shown = |time_ms: Option<i64>| time_ms.map_or_else(|| "an unknown time".into(), time);
                format!("{} against {}", shown(one.duration_ms), shown(other.duration_ms))
            }
            Self::Cost => {
                let shown = |nanos: Option<i64>| nanos.map_or_else(|| "an unknown cost".into(), money);
                format!("{} against {}", shown(one.cost_nanos), shown(other.cost_nanos))
            }
            Self::Number => "everything else is equal, so the lower number wins".into(),
        }
    }
}

fn size(diff: DiffSize) -> String {
    let plural = |count: u64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    format!("{} in {}", plural(diff.lines(), "changed line"), plural(diff.files, "file"))
}

fn time(milliseconds: i64) -> String {
    let time = Duration::from_millis(u64::try_from(milliseconds).unwrap_or_default());
    format!("{:.3} s", time.as_secs_f64())
}

fn money(nanos: i64) -> String {
    let nanos = nanos.max(0);
    let text = format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000);
    format!("a cost of {}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// The first criterion in which they differ, and the order.
fn decide(one: &Contender, other: &Contender) -> (Criterion, Ordering) {
    let found = Criterion::VARIANTS
        .iter()
        .map(|&criterion| (criterion, criterion.compare(one, other)))
        .find(|(_, order)| order.is_ne());
    found.unwrap_or((Criterion::Number, Ordering::Equal))
}

/// Sorts entries, the best first.
pub fn rank(contenders: &[Contender]) -> Vec<Placing> {
    let mut order: Vec<&Contender> = contenders.iter().collect();
    order.sort_by(|one, other| decide(one, other).1);
    let against = |at: usize, other: usize, word: &str| {
        let (own, their) = (order[at], order.get(other)?);
        let (criterion, _) = decide(own, their);
        Some(format!("{word} entry {}: {}", their.number, criterion.told(own, their)))
    };
    let place = |(at, own): (usize, &&Contender)| {
        let mut reasons = vec![match (&own.failure, own.passed) {
            (Some(why), _) => format!("did not finish: {why}"),
            (None, Some(true)) => "its checks passed".into(),
            (None, Some(false)) => "its checks failed".into(),
            (None, None) => "finished; there was nothing to check".into(),
        }];
        let behind = at.checked_sub(1).and_then(|better| against(at, better, "behind"));
        reasons.extend(behind);
        reasons.extend(against(at, at + 1, "before"));
        Placing { number: own.number, rank: i64::try_from(at).unwrap_or(i64::MAX - 1) + 1, reasons }
    };
    order.iter().enumerate().map(place).collect()
}

/// The winner without a person: the first, if it finished and its checks did not fail.
pub fn best(contenders: &[Contender]) -> Option<i64> {
    let first = contenders.iter().min_by(|one, other| decide(one, other).1)?;
    (first.finished() && first.passed != Some(false)).then_some(first.number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn passed(number: i64, lines: u64, duration_ms: i64, cost_nanos: i64) -> Contender {
        Contender {
            number,
            failure: None,
            passed: Some(true),
            diff: Some(DiffSize { files: 1, added: lines, removed: 0 }),
            duration_ms: Some(duration_ms),
            cost_nanos: Some(cost_nanos),
        }
    }

    fn numbers(contenders: &[Contender]) -> Vec<i64> {
        rank(contenders).iter().map(|placing| placing.number).collect()
    }

    #[test]
    fn each_thing_decides_where_those_before_it_are_the_same() {
        let base = || passed(1, 10, 1000, 500);
        let cases = [
            Contender { failure: Some("it crashed".into()), ..passed(2, 1, 1, 1) },
            Contender { passed: Some(false), ..passed(2, 1, 1, 1) },
            Contender { passed: None, ..passed(2, 1, 1, 1) },
            passed(2, 11, 1, 1),
            Contender { diff: Some(DiffSize { files: 2, added: 10, removed: 0 }), ..passed(2, 0, 1, 1) },
            Contender { diff: None, ..passed(2, 0, 1, 1) },
            passed(2, 10, 1001, 1),
            Contender { duration_ms: None, ..passed(2, 10, 0, 1) },
            passed(2, 10, 1000, 501),
            Contender { cost_nanos: None, ..passed(2, 10, 1000, 0) },
            passed(2, 10, 1000, 500),
        ];
        for worse in cases {
            assert_eq!(numbers(&[base(), worse.clone()]), [1, 2], "{worse:?}");
            assert_eq!(numbers(&[worse.clone(), base()]), [1, 2], "{worse:?}");
        }
    }

    #[test]
    fn places_say_why_in_plain_words() {
        let placings = rank(&[
            passed(1, 9, 2000, 0),
            Contender { passed: Some(false), ..passed(2, 1, 100, 0) },
            passed(3, 4, 5000, 1_500_000_000),
            Contender { number: 4, failure: Some("exit code 3".into()), ..Contender::default() },
        ]);
        let told: Vec<_> = placings.iter().map(|placing| (placing.number, placing.reasons.clone())).collect();
        let reasons = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            told,
            [
                (
                    3,
                    reasons(&[
                        "its checks passed",
                        "before entry 1: 4 changed lines in 1 file against 9 changed lines in 1 file",
                    ])
                ),
                (
                    1,
                    reasons(&[
                        "its checks passed",
                        "behind entry 3: 9 changed lines in 1 file against 4 changed lines in 1 file",
                        "before entry 2: its checks passed, and those of entry 2 failed",
                    ])
                ),
                (
                    2,
                    reasons(&[
                        "its checks failed",
                        "behind entry 1: its checks failed, and those of entry 1 passed",
                        "before entry 4: it finished, and entry 4 did not",
                    ])
                ),
                (
                    4,
                    reasons(&[
                        "did not finish: exit code 3",
                        "behind entry 2: it did not finish, and entry 2 did",
                    ])
                ),
            ]
        );
    }

    #[test]
    fn times_costs_and_ties_are_told_too() {
        let told = |other: Contender| rank(&[passed(1, 1, 1500, 2_500_000_000), other])[0].reasons[1].clone();
        assert_eq!(told(passed(2, 1, 2000, 0)), "before entry 2: 1.500 s against 2.000 s");
        assert_eq!(
            told(passed(2, 1, 1500, 3_000_000_000)),
            "before entry 2: a cost of 2.5 against a cost of 3"
        );
        let tie = "before entry 2: everything else is equal, so the lower number wins";
        assert_eq!(told(passed(2, 1, 1500, 2_500_000_000)), tie);
    }

    #[test]
    fn nobody_wins_by_rule_who_failed_or_whose_checks_did() {
        let failed = Contender { number: 1, failure: Some("no".into()), ..Contender::default() };
        let unchecked = Contender { number: 2, ..Contender::default() };
        let wrong = Contender { number: 3, passed: Some(false), ..Contender::default() };
        assert_eq!(best(&[]), None);
        assert_eq!(best(std::slice::from_ref(&failed)), None);
        assert_eq!(best(&[failed.clone(), wrong.clone()]), None);
        assert_eq!(best(&[failed, unchecked]), Some(2));
        assert_eq!(best(&[wrong, passed(4, 1, 1, 1)]), Some(4));
    }

    prop_compose! {
        fn contender()(
            failed in any::<bool>(),
            passed in proptest::option::of(any::<bool>()),
            diff in proptest::option::of((0..3u64, 0..3u64, 0..3u64)),
            duration_ms in proptest::option::of(0..3i64),
            cost_nanos in proptest::option::of(0..3i64),
        ) -> Contender {
            let diff = diff.map(|(files, added, removed)| DiffSize { files, added, removed });
            Contender { number: 0, failure: failed.then(|| "no".into()), passed, diff, duration_ms, cost_nanos }
        }
    }

    fn numbered(contenders: Vec<Contender>) -> Vec<Contender> {
        (1..).zip(contenders).map(|(number, one)| Contender { number, ..one }).collect()
    }

    proptest! {
        #[test]
        fn everyone_has_one_place_and_a_reason(all in proptest::collection::vec(contender(), 0..8)) {
            let all = numbered(all);
            let placings = rank(&all);
            let ranks: Vec<i64> = placings.iter().map(|placing| placing.rank).collect();
            prop_assert_eq!(ranks, (1..=i64::try_from(all.len()).unwrap()).collect::<Vec<_>>());
            let mut numbers: Vec<i64> = placings.iter().map(|placing| placing.number).collect();
            numbers.sort_unstable();
            prop_assert_eq!(numbers, all.iter().map(|one| one.number).collect::<Vec<_>>());
            prop_assert!(placings.iter().all(|placing| !placing.reasons.is_empty()));
        }

        #[test]
        fn the_order_in_which_they_come_changes_nothing(
            all in proptest::collection::vec(contender(), 1..8), turn in 0..8usize,
        ) {
            let all = numbered(all);
            let mut turned = all.clone();
            turned.rotate_left(turn % all.len());
            prop_assert_eq!(rank(&all), rank(&turned));
            prop_assert_eq!(best(&all), best(&turned));
        }

        #[test]
        fn who_is_better_in_each_thing_is_never_behind(
            one in contender(), more in 0..3u64, longer in 0..3i64, dearer in 0..3i64,
        ) {
            // The other has the same, and more of what counts against it.
            let other = Contender {
                number: 2,
                failure: one.failure.clone().or(Some("no".into()).filter(|_| more == 2)),
                passed: one.passed.map(|passed| passed && longer == 0),
                diff: one.diff.map(|diff| DiffSize { added: diff.added + more, ..diff }),
                duration_ms: one.duration_ms.map(|time| time + longer),
                cost_nanos: one.cost_nanos.map(|cost| cost + dearer),
            };
            let one = Contender { number: 1, ..one };
            prop_assert_eq!(numbers(&[other, one]), [1, 2]);
        }

        #[test]
        fn who_wins_by_rule_is_the_first(all in proptest::collection::vec(contender(), 0..8)) {
            let all = numbered(all);
            if let Some(winner) = best(&all) {
                prop_assert_eq!(rank(&all)[0].number, winner);
            }
        }
    }
}
