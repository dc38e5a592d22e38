//! The slots of one shape.

use std::collections::VecDeque;
use std::time::Instant;

use super::shapes::Demand;
use super::slot::Slot;

#[derive(Debug)]
pub(super) struct Row {
    pub(super) demand: Demand,
    pub(super) ready: VecDeque<Slot>,
    /// After a failure to create a slot.
    pub(super) not_before: Option<Instant>,
    /// What a slot takes that is restored with processes, once that is known.
    pub(super) bytes: Option<u64>,
}

impl Row {
    pub(super) fn new(demand: Demand) -> Self {
        let bytes = if demand.shape.has_processes() { None } else { Some(0) };
        Self { demand, ready: VecDeque::new(), not_before: None, bytes }
    }
}
