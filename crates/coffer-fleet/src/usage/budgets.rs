//! Decides when a budget warns, and when it is spent. Pure.

use coffer_core::Millis;
use coffer_core::event::{BudgetReached, Event};
use coffer_store::{Budget, BudgetNews, BudgetPeriod};
use jiff::Timestamp;
use jiff::tz::TimeZone;

const DAY_MS: i64 = 86_400_000;

/// All of it, in percent.
const SPENT: i64 = 100;

/// The first day of the period of a time.
pub fn first_day(period: BudgetPeriod, now_ms: Millis) -> i64 {
    let today = now_ms.div_euclid(DAY_MS);
    match period {
        BudgetPeriod::Day => today,
        BudgetPeriod::Total => 0,
        BudgetPeriod::Month => {
            let date = Timestamp::from_millisecond(now_ms).unwrap_or_default().to_zoned(TimeZone::UTC);
            today - i64::from(date.day() - 1)
        }
    }
}

/// The event to emit for a budget with this spending, if any.
pub fn news(budget: &Budget, first_day: i64, spent_nanos: i64, currency: &str) -> Option<BudgetNews> {
    let terms = &budget.terms;
    let percent = i128::from(spent_nanos) * i128::from(SPENT) / i128::from(terms.amount_nanos.max(1));
    let reached = terms.warn_at.iter().copied().chain([SPENT]);
    let reached = reached.filter(|threshold| i128::from(*threshold) <= percent).max()?;
    let told = if budget.told.0 == first_day { budget.told.1 } else { 0 };
    if reached <= told {
        return None;
    }
    let money = |nanos: i64| nanos as f64 / 1e9;
    let told = BudgetReached {
        budget: budget.id,
        sandbox: budget.sandbox,
        period: budget.period,
        percent: reached,
        spent: money(spent_nanos),
        amount: money(terms.amount_nanos),
        currency: currency.to_string(),
        action: terms.action,
    };
    let event = if reached == SPENT { Event::BudgetExceeded(told) } else { Event::BudgetWarned(told) };
    Some(BudgetNews { budget: budget.id, before: budget.told, now: (first_day, reached), event })
}

#[cfg(test)]
mod tests {
    use super::*;
    use coffer_core::{BudgetId, ProjectId};
    use coffer_store::{BudgetAction, BudgetTerms};

    fn budget(told: (i64, i64)) -> Budget {
        Budget {
            id: BudgetId::generate(),
            project: ProjectId::generate(),
            sandbox: None,
            period: BudgetPeriod::Day,
            terms: BudgetTerms { amount_nanos: 1000, warn_at: vec![50, 80], action: BudgetAction::Pause },
            created_ms: 0,
            version: 1,
            told,
        }
    }

    #[test]
    fn each_threshold_is_told_once_in_a_period() {
        let told = |told, spent| {
            news(&budget(told), 7, spent, "USD").map(|news| (news.event.kind().as_str(), news.now))
        };
        assert_eq!(told((0, 0), 499), None);
        assert_eq!(told((0, 0), 500), Some(("budget.warned", (7, 50))));
        assert_eq!(told((7, 50), 799), None);
        assert_eq!(told((7, 50), 950), Some(("budget.warned", (7, 80))));
        assert_eq!(told((7, 80), 1000), Some(("budget.exceeded", (7, 100))));
        assert_eq!(told((7, 100), i64::MAX), None);
        assert_eq!(told((6, 100), 600), Some(("budget.warned", (7, 50))), "a new day");
    }

    #[test]
    fn periods_begin_where_people_expect() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap().as_millisecond();
        let now = at("2024-02-29T23:59:59Z");
        assert_eq!(first_day(BudgetPeriod::Month, now) * DAY_MS, at("2024-02-01T00:00:00Z"));
        assert_eq!(first_day(BudgetPeriod::Day, now) * DAY_MS, at("2024-02-29T00:00:00Z"));
        assert_eq!(first_day(BudgetPeriod::Total, now), 0);
    }
}
