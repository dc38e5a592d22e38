//! The shapes that slots are kept for, and how many of each.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use coffer_core::network::Policy;
use coffer_core::{Limits, SandboxId};
use coffer_wire::node::CreateSandbox;
use serde::{Deserialize, Serialize};

use crate::WarmChoice;

/// Keep as many slots as were requested in this time.
const WINDOW: Duration = Duration::from_secs(10);
/// A shape that is not requested is kept this long, unless it is the only one.
const MEMORY: Duration = Duration::from_secs(600);

/// The properties shared by all sandboxes that may come from the same slot. The limits are among them: they
/// are in force from the first process on, and a claim does not change them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shape {
    template: String,
    limits: Limits,
}

impl Shape {
    /// Each field of a request is either part of the shape or set by a claim. `None` for a request from a
    /// snapshot or with volumes, which cannot be prepared in advance.
    pub(crate) fn of(spec: &CreateSandbox) -> Option<Self> {
        let CreateSandbox {
            sandbox: _,
            template,
            hostname: _,
            limits,
            network: _,
            snapshot,
            memory: _,
            volumes,
        } = spec;
        (snapshot.is_none() && volumes.is_empty())
            .then(|| Self { template: template.clone(), limits: *limits })
    }

    /// The request that creates a slot of this shape.
    pub(crate) fn slot(&self) -> CreateSandbox {
        CreateSandbox {
            sandbox: SandboxId::generate(),
            template: self.template.clone(),
            hostname: "sandbox".into(),
            limits: self.limits,
            network: Policy::default(),
            snapshot: None,
            memory: false,
            volumes: Vec::new(),
        }
    }
}

/// A shape and when it was requested.
#[derive(Debug)]
pub(super) struct Demand {
    pub(super) shape: Shape,
    last: Instant,
    /// The latest times, no more than there can be slots.
    asks: VecDeque<Instant>,
}

impl Demand {
    /// More would not change any number of slots.
    const COUNTED: usize = 64;

    pub(super) fn new(shape: Shape) -> Self {
        Self { shape, last: Instant::now(), asks: VecDeque::new() }
    }

    pub(super) fn count(&mut self, now: Instant) {
        self.last = now;
        self.asks.push_back(now);
        if self.asks.len() > Self::COUNTED {
            self.asks.pop_front();
        }
    }

    pub(super) fn is_recent(&self, now: Instant) -> bool {
        now.duration_since(self.last) <= WINDOW
    }

    pub(super) fn is_forgotten(&self, now: Instant) -> bool {
        now.duration_since(self.last) > MEMORY
    }
}

/// How many slots each shape should have, the last requested first. Together at most the maximum.
pub(super) fn targets<'a>(
    demands: impl Iterator<Item = &'a Demand>,
    WarmChoice { min, max }: WarmChoice,
    now: Instant,
) -> Vec<usize> {
    let mut left = max;
    let target = |(place, demand): (usize, &Demand)| {
        let asked = demand.asks.iter().filter(|&&ask| now.duration_since(ask) <= WINDOW).count();
        // The first is most likely the next to be requested, however long that takes.
        let least = if place == 0 || !demand.is_forgotten(now) { min } else { 0 };
        let target = asked.max(least).min(left);
        left -= target;
        target
    };
    demands.enumerate().map(target).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHOICE: WarmChoice = WarmChoice { min: 2, max: 16 };

    fn shape(template: &str) -> Shape {
        Shape { template: template.into(), limits: Limits::default() }
    }

    fn asked(template: &str, times: usize, at: Instant) -> Demand {
        let mut demand = Demand::new(shape(template));
        (0..times).for_each(|_| demand.count(at));
        demand
    }

    #[test]
    fn targets_follow_what_was_asked_for_lately() {
        let then = Instant::now();
        let target = |times, after| targets([asked("a", times, then)].iter(), CHOICE, then + after)[0];
        assert_eq!(target(0, Duration::ZERO), 2);
        assert_eq!(target(1, Duration::ZERO), 2);
        assert_eq!(target(7, Duration::ZERO), 7);
        assert_eq!(target(500, Duration::ZERO), 16);
        assert_eq!(target(500, WINDOW * 2), 2);
        assert_eq!(target(500, MEMORY * 2), 2, "the last shape stays ready");
    }

    #[test]
    fn all_shapes_together_stay_within_the_bound() {
        let now = Instant::now();
        let demands = [asked("a", 12, now), asked("b", 12, now), asked("c", 1, now)];
        assert_eq!(targets(demands.iter(), CHOICE, now), [12, 4, 0]);
        assert_eq!(targets(demands.iter(), WarmChoice { min: 2, max: 0 }, now), [0, 0, 0]);
        assert_eq!(targets(demands.iter(), CHOICE, now + MEMORY * 2), [2, 0, 0]);
    }

    #[test]
    fn the_host_name_is_no_part_of_a_shape_and_the_limits_are() {
        let slot = shape("a").slot();
        let named = CreateSandbox { hostname: "x".into(), sandbox: SandboxId::generate(), ..slot.clone() };
        assert_eq!(Shape::of(&named), Some(shape("a")));
        let limits = Limits { memory_mib: 1, ..Limits::default() };
        assert_ne!(Shape::of(&CreateSandbox { limits, ..slot.clone() }), Some(shape("a")));
        let snapshot = Some(coffer_core::SnapshotId::generate());
        assert_eq!(Shape::of(&CreateSandbox { snapshot, ..slot.clone() }), None);
        assert_ne!(Shape::of(&CreateSandbox { template: "b".into(), ..slot }), Some(shape("a")));
    }
}
