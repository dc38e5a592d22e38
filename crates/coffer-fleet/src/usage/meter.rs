//! The meter of one sandbox.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use coffer_core::{AgentId, Limits, Millis, ProjectId, SandboxId, SandboxState};
use coffer_store::{Amounts, Charge, SandboxRow, UsageMark};

use super::settings::UsageSettings;
use coffer_core::clock::now_ms;

/// How long a sandbox no longer runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Until it is resumed.
    Paused,
    /// For good.
    Ended,
}

const DAY_MS: i64 = 86_400_000;

/// Counts while its sandbox runs.
#[derive(Debug)]
pub(super) struct Meter {
    project: ProjectId,
    agent: Option<AgentId>,
    limits: Limits,
    run: Run,
    /// Counted but not recorded yet, by day.
    pending: BTreeMap<i64, Amounts>,
    /// The recorded mark.
    mark: Option<Millis>,
    /// The processor time that the host reported last.
    cpu_seen_us: u64,
    over: bool,
}

#[derive(Debug)]
enum Run {
    No,
    /// Runs; counted up to this moment.
    Yes(Instant),
    /// Ran under an earlier server, which counted up to this date.
    Maybe(Millis),
}

impl Meter {
    pub(super) fn new(row: &SandboxRow) -> Self {
        Self {
            project: row.project,
            agent: row.agent,
            limits: row.limits,
            run: Run::No,
            pending: BTreeMap::new(),
            mark: None,
            cpu_seen_us: 0,
            over: false,
        }
    }

    pub(super) fn adopted(row: &SandboxRow, mark: Option<UsageMark>) -> Self {
        let began = row.lifetime.started_ms;
        let run = match row.state {
            // Time before a pause that the mark does not cover is lost, so that the pause is not counted.
            SandboxState::Running => Run::Maybe(mark.map_or(began, |mark| mark.counted_to_ms.max(began))),
            _ => Run::No,
        };
        let cpu_seen_us = mark.map_or(0, |mark| u64::try_from(mark.cpu_us).unwrap_or(0));
        Self { run, mark: mark.map(|mark| mark.counted_to_ms), cpu_seen_us, ..Self::new(row) }
    }

    pub(super) fn confirm(&mut self, prices: &UsageSettings) {
        if let Run::Maybe(since_ms) = self.run {
            let now = now_ms();
            self.count(since_ms, now, prices);
            self.run = Run::Yes(Instant::now());
        }
    }

    pub(super) fn begin(&mut self) {
        if !matches!(self.run, Run::Yes(_)) {
            self.run = Run::Yes(Instant::now());
        }
    }

    pub(super) fn stop(&mut self, prices: &UsageSettings, stop: Stop) {
        self.settle(prices);
        self.run = Run::No;
        self.over |= stop == Stop::Ended;
    }

    pub(super) fn used(&mut self, cpu_us: u64) {
        // A smaller counter is from a new run.
        let more = if cpu_us >= self.cpu_seen_us { cpu_us - self.cpu_seen_us } else { cpu_us };
        self.cpu_seen_us = cpu_us;
        if more > 0 {
            let more = i64::try_from(more).unwrap_or(i64::MAX);
            self.pending.entry(now_ms().div_euclid(DAY_MS)).or_default().cpu_used_us += more;
        }
    }

    /// Counts up to now, by the monotonic clock.
    fn settle(&mut self, prices: &UsageSettings) {
        if let Run::Yes(since) = self.run {
            let elapsed = i64::try_from(since.elapsed().as_millis()).unwrap_or(0);
            let now = now_ms();
            self.count(now.saturating_sub(elapsed), now, prices);
            // Not to now: fractions of a millisecond are counted next time.
            self.run = Run::Yes(since + Duration::from_millis(u64::try_from(elapsed).unwrap_or(0)));
        }
    }

    fn count(&mut self, from_ms: Millis, to_ms: Millis, prices: &UsageSettings) {
        for (day, ms) in days(from_ms, to_ms) {
            let amounts = amounts(self.limits, ms, prices);
            *self.pending.entry(day).or_default() += amounts;
        }
    }

    /// Counted but not recorded cost, in billionths of the currency.
    pub(super) fn pending_nanos(&mut self, prices: &UsageSettings) -> i64 {
        self.settle(prices);
        self.pending.values().map(|amounts| amounts.cost_nanos).sum()
    }

    /// The charge to record, if any.
    pub(super) fn read(&mut self, sandbox: SandboxId, prices: &UsageSettings) -> Option<Charge> {
        self.settle(prices);
        // A sandbox that never ran has no charge and no mark.
        if self.pending.is_empty() && !self.over {
            return None;
        }
        // The mark must advance, to tell two charges apart.
        let counted_to_ms = now_ms().max(self.mark.map_or(0, |mark| mark + 1));
        let to = UsageMark { counted_to_ms, cpu_us: i64::try_from(self.cpu_seen_us).unwrap_or(i64::MAX) };
        let days = self.pending.iter().map(|(day, amounts)| (*day, *amounts)).collect();
        let (project, agent, from, last) = (self.project, self.agent, self.mark, self.over);
        Some(Charge { sandbox, project, agent, from, to, days, last })
    }

    /// The charge was recorded with this mark; what was counted meanwhile stays.
    pub(super) fn was_read(&mut self, charge: &Charge, mark: Option<Millis>) {
        self.mark = mark;
        for (day, read) in &charge.days {
            let Some(pending) = self.pending.get_mut(day) else { continue };
            pending.running_ms -= read.running_ms;
            pending.cpu_ms -= read.cpu_ms;
            pending.memory_mib_ms -= read.memory_mib_ms;
            pending.cpu_used_us -= read.cpu_used_us;
            pending.cost_nanos -= read.cost_nanos;
            if *pending == Amounts::default() {
                self.pending.remove(day);
            }
        }
    }
}

/// The usage and cost of a sandbox for this much time.
fn amounts(limits: Limits, ms: i64, prices: &UsageSettings) -> Amounts {
    let seconds = ms as f64 / 1000.0;
    let gib = limits.memory_mib as f64 / 1024.0;
    let price = f64::from(limits.cpu_count) * prices.cpu_second
        + gib * prices.memory_gib_second
        + prices.sandbox_second;
    #[expect(clippy::cast_possible_truncation, reason = "prices are bounded, and so is a life")]
    let cost_nanos = (price * seconds * 1e9).round() as i64;
    Amounts {
        running_ms: ms,
        cpu_ms: ms.saturating_mul(i64::from(limits.cpu_count)),
        memory_mib_ms: ms.saturating_mul(i64::try_from(limits.memory_mib).unwrap_or(i64::MAX)),
        cpu_used_us: 0,
        cost_nanos,
    }
}

/// The days (UTC, from 1970-01-01) between two times, with the milliseconds of each.
fn days(from_ms: Millis, to_ms: Millis) -> Vec<(i64, i64)> {
    let mut parts = Vec::new();
    let mut from = from_ms;
    while from < to_ms {
        let day = from.div_euclid(DAY_MS);
        let end = to_ms.min((day + 1) * DAY_MS);
        parts.push((day, end - from));
        from = end;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_belongs_to_the_day_that_it_passed_on() {
        assert_eq!(days(5, 5), []);
        assert_eq!(days(9, 5), [], "a clock that jumped back");
        assert_eq!(days(DAY_MS - 1000, DAY_MS + 2000), [(0, 1000), (1, 2000)]);
        assert_eq!(days(0, 2 * DAY_MS), [(0, DAY_MS), (1, DAY_MS)]);
    }

    #[test]
    fn cost_is_of_what_was_set_aside() {
        let prices = UsageSettings {
            cpu_second: 0.5,
            memory_gib_second: 0.25,
            sandbox_second: 1.0,
            ..UsageSettings::default()
        };
        let limits = Limits { cpu_count: 2, memory_mib: 2048, ..Limits::default() };
        let used = amounts(limits, 10_000, &prices);
        assert_eq!(used.cost_nanos, 25_000_000_000);
        assert_eq!((used.cpu_ms, used.memory_mib_ms), (20_000, 20_480_000));
    }
}
