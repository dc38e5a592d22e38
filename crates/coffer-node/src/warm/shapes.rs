//! The shapes that slots are kept for, and how many of each.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use coffer_core::network::Policy;
use coffer_core::{Limits, ProjectId, SandboxId, SnapshotId};
use coffer_wire::node::CreateSandbox;
use serde::{Deserialize, Serialize};

use crate::WarmChoice;

/// Keep as many slots as were requested in this time.
const WINDOW: Duration = Duration::from_secs(10);
/// A shape that is not requested is kept this long, unless it is the last one of a template of the host.
const MEMORY: Duration = Duration::from_secs(600);

/// The properties shared by all sandboxes that may come from the same slot. The limits are among them: they
/// are in force from the first process on, and a claim does not change them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shape {
    template: String,
    /// For a project's template, which is a snapshot. No project can request another's: the server finds it by name
    /// within the project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    snapshot: Option<SnapshotId>,
    /// Whether its processes continue from the snapshot's memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    memory: bool,
    /// The project of the template; nothing for the host's and those of all projects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<ProjectId>,
    limits: Limits,
}

impl Shape {
    /// Each field of a request is either part of the shape or set by a claim. `None` for a request with volumes,
    /// which cannot be prepared in advance, and for one from a snapshot that is no template: few sandboxes start
    /// from it.
    pub(crate) fn of(spec: &CreateSandbox) -> Option<Self> {
        let CreateSandbox {
            sandbox: _,
            template,
            hostname: _,
            limits,
            network: _,
            snapshot,
            from_template,
            template_owner,
            memory,
            volumes,
        } = spec;
        let fits = if snapshot.is_none() { !memory } else { *from_template };
        (fits && volumes.is_empty()).then(|| Self {
            template: template.clone(),
            snapshot: *snapshot,
            memory: *memory,
            owner: *template_owner,
            limits: *limits,
        })
    }

    pub(crate) fn snapshot(&self) -> Option<SnapshotId> {
        self.snapshot
    }

    /// Whether its slots are restored with processes.
    pub(crate) fn has_processes(&self) -> bool {
        self.memory
    }

    pub(super) fn owner(&self) -> Option<ProjectId> {
        self.owner
    }

    /// The request that creates a slot of this shape.
    pub(crate) fn slot(&self) -> CreateSandbox {
        let sandbox = SandboxId::generate();
        CreateSandbox {
            sandbox,
            template: self.template.clone(),
            // No file of a template has this name by chance: a claim replaces it where it finds it.
            hostname: format!("slot-{sandbox}"),
            limits: self.limits,
            network: Policy::default(),
            snapshot: self.snapshot,
            from_template: self.snapshot.is_some(),
            template_owner: self.owner,
            memory: self.memory,
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

/// How many slots each shape should have, the last requested first. Together at most the maximum. Every shape in use
/// gets a few before any gets more: one that is requested often leaves something to the others.
pub(super) fn targets<'a>(
    demands: impl Iterator<Item = &'a Demand>,
    WarmChoice { min, max, .. }: WarmChoice,
    now: Instant,
) -> Vec<usize> {
    let mut left = max;
    let mut first_of_host = true;
    let few = |demand: &'a Demand| {
        // The first of the host's is most likely the next to be requested, however long that takes. A project's
        // template is kept ready only while it is used.
        let stays = demand.shape.snapshot.is_none() && std::mem::take(&mut first_of_host);
        let few = if stays || !demand.is_forgotten(now) { min.min(left) } else { 0 };
        left -= few;
        (demand, few)
    };
    let least: Vec<_> = demands.map(few).collect();
    let more = |(demand, few): (&Demand, usize)| {
        let asked = demand.asks.iter().filter(|&&ask| now.duration_since(ask) <= WINDOW).count();
        let more = asked.saturating_sub(few).min(left);
        left -= more;
        few + more
    };
    least.into_iter().map(more).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHOICE: WarmChoice = WarmChoice { min: 2, max: 16, memory: 0 };

    fn shape(template: &str) -> Shape {
        Shape {
            template: template.into(),
            snapshot: None,
            memory: false,
            owner: None,
            limits: Limits::default(),
        }
    }

    fn built(snapshot: SnapshotId) -> Shape {
        Shape { snapshot: Some(snapshot), ..shape("base") }
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
        assert_eq!(targets(demands.iter(), CHOICE, now), [12, 2, 2]);
        assert_eq!(targets(demands.iter(), WarmChoice { max: 3, ..CHOICE }, now), [2, 1, 0]);
        assert_eq!(targets(demands.iter(), WarmChoice { max: 0, ..CHOICE }, now), [0, 0, 0]);
        assert_eq!(targets(demands.iter(), CHOICE, now + MEMORY * 2), [2, 0, 0]);
    }

    #[test]
    fn the_host_name_is_no_part_of_a_shape_and_the_limits_are() {
        let slot = shape("a").slot();
        let named = CreateSandbox { hostname: "x".into(), sandbox: SandboxId::generate(), ..slot.clone() };
        assert_eq!(Shape::of(&named), Some(shape("a")));
        let limits = Limits { memory_mib: 1, ..Limits::default() };
        assert_ne!(Shape::of(&CreateSandbox { limits, ..slot.clone() }), Some(shape("a")));
        assert_ne!(Shape::of(&CreateSandbox { template: "b".into(), ..slot }), Some(shape("a")));
    }
    #[test]
    fn a_template_of_a_project_is_kept_while_it_is_used() {
        let then = Instant::now();
        let mut used = Demand::new(built(SnapshotId::generate()));
        (0..5).for_each(|_| used.count(then));
        let demands = [used, asked("a", 0, then)];
        let target = |after| targets(demands.iter(), CHOICE, then + after);
        assert_eq!(target(Duration::ZERO), [5, 2]);
        assert_eq!(target(WINDOW * 2), [2, 2]);
        assert_eq!(target(MEMORY * 2), [0, 2], "the host's last shape stays ready");
    }

    #[test]
    fn only_a_template_s_snapshot_is_a_shape_and_only_its_own() {
        let snapshot = SnapshotId::generate();
        let slot = built(snapshot).slot();
        assert_eq!(Shape::of(&slot), Some(built(snapshot)));
        assert_ne!(Shape::of(&slot), Some(built(SnapshotId::generate())));
        assert_ne!(Shape::of(&slot), Some(shape("base")));
        let fork = CreateSandbox { from_template: false, ..slot.clone() };
        assert_eq!(Shape::of(&fork), None, "few sandboxes start from it");
        let restored = CreateSandbox { memory: true, ..slot.clone() };
        assert_ne!(Shape::of(&restored), Some(built(snapshot)), "its processes continue");
        assert_eq!(Shape::of(&Shape::of(&restored).unwrap().slot()), Shape::of(&restored));
        let of_fork = CreateSandbox { memory: true, from_template: false, ..slot.clone() };
        assert_eq!(Shape::of(&of_fork), None);
        assert_eq!(Shape::of(&CreateSandbox { memory: true, snapshot: None, ..slot }), None);
    }
}
