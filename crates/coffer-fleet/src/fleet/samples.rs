//! Recent resource usage of a sandbox: a bounded ring of samples.

use std::collections::VecDeque;

use coffer_core::{Limits, Millis};
use coffer_engine::Sample;
use coffer_wire::e2b::Metric;

use coffer_core::clock::rfc3339;

/// Half an hour with a sample every five seconds.
const MOST: usize = 360;

/// The newest samples of one sandbox, oldest first.
#[derive(Debug, Default)]
pub struct Samples {
    ring: VecDeque<Point>,
    /// Processor time at a moment, to compare the next sample with.
    last: Option<(Millis, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    time_ms: Millis,
    cpu_pct: f32,
    used_bytes: u64,
    cache_bytes: u64,
    disk_bytes: u64,
}

impl Samples {
    /// Adds a sample. `started_ms` is when the run began, from which the first sample counts.
    pub fn add(&mut self, sample: &Sample, started_ms: Millis, cpu_count: u32) {
        let (before_ms, before_us) = match self.last {
            // A smaller counter means a new run with new cgroups.
            Some((ms, us)) if us <= sample.cpu_us && ms < sample.time_ms => (ms, us),
            _ => (started_ms, 0),
        };
        let elapsed_us = sample.time_ms.saturating_sub(before_ms).max(1) as f64 * 1000.0;
        let used_us = (sample.cpu_us - before_us) as f64;
        let pct = (used_us / elapsed_us / f64::from(cpu_count.max(1)) * 100.0).clamp(0.0, 100.0);
        self.last = Some((sample.time_ms, sample.cpu_us));
        if self.ring.len() == MOST {
            self.ring.pop_front();
        }
        #[expect(clippy::cast_possible_truncation, reason = "a percentage needs no more")]
        let cpu_pct = pct as f32;
        self.ring.push_back(Point {
            time_ms: sample.time_ms,
            cpu_pct,
            used_bytes: sample.memory_bytes.saturating_sub(sample.cache_bytes),
            cache_bytes: sample.cache_bytes,
            disk_bytes: sample.disk_bytes,
        });
    }

    /// Samples between two times, both included, oldest first.
    pub fn between(&self, from_ms: Millis, to_ms: Millis, limits: Limits) -> Vec<Metric> {
        let within = self.ring.iter().filter(|point| (from_ms..=to_ms).contains(&point.time_ms));
        within.map(|point| point.metric(limits)).collect()
    }

    /// The newest sample.
    pub fn newest(&self, limits: Limits) -> Option<Metric> {
        self.ring.back().map(|point| point.metric(limits))
    }
}

impl Point {
    fn metric(&self, limits: Limits) -> Metric {
        Metric {
            timestamp: rfc3339(self.time_ms),
            timestamp_unix: self.time_ms.div_euclid(1000),
            cpu_count: limits.cpu_count,
            cpu_used_pct: (f64::from(self.cpu_pct) * 100.0).round() / 100.0,
            mem_used: self.used_bytes,
            mem_total: limits.memory_bytes(),
            mem_cache: self.cache_bytes,
            disk_used: self.disk_bytes,
            disk_total: limits.disk_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coffer_core::SandboxId;

    fn sample(time_ms: Millis, cpu_us: u64) -> Sample {
        Sample {
            sandbox: SandboxId::generate(),
            time_ms,
            cpu_us,
            memory_bytes: 300,
            cache_bytes: 100,
            disk_bytes: 7,
            processes: 1,
            traffic: coffer_core::network::Traffic::default(),
        }
    }

    fn percentages(samples: &Samples) -> Vec<f64> {
        let all = samples.between(0, Millis::MAX, Limits::default());
        all.iter().map(|metric| metric.cpu_used_pct).collect()
    }

    #[test]
    fn processor_use_is_the_share_of_all_processors_since_the_sample_before() {
        let mut samples = Samples::default();
        samples.add(&sample(1_000, 1_000_000), 0, 2);
        samples.add(&sample(2_000, 1_500_000), 0, 2);
        samples.add(&sample(3_000, 3_500_000), 0, 2);
        assert_eq!(percentages(&samples), [50.0, 25.0, 100.0]);
    }

    #[test]
    fn a_counter_that_starts_anew_is_not_negative() {
        let mut samples = Samples::default();
        samples.add(&sample(10_000, 9_000_000), 0, 1);
        samples.add(&sample(20_000, 500_000), 19_000, 1);
        assert_eq!(percentages(&samples), [90.0, 50.0]);
    }

    #[test]
    fn memory_in_use_leaves_out_the_cache() {
        let mut samples = Samples::default();
        samples.add(&sample(1_000, 0), 0, 1);
        let metric = samples.newest(Limits::default()).unwrap();
        assert_eq!((metric.mem_used, metric.mem_cache, metric.disk_used), (200, 100, 7));
    }

    #[test]
    fn the_ring_is_bounded_and_keeps_the_newest() {
        let mut samples = Samples::default();
        for second in 0..1000 {
            samples.add(&sample(second * 1000, 0), 0, 1);
        }
        let all = samples.between(0, Millis::MAX, Limits::default());
        assert_eq!(all.len(), MOST);
        assert_eq!(all.last().map(|metric| metric.timestamp_unix), Some(999));
        assert!(samples.between(0, 10_000, Limits::default()).is_empty());
    }
}
