//! How templates share the places of the warm pool, and the memory of slots that were restored with processes.
//!
//! A template belongs to a project, or to all of them together. What is scarce is taken from the one that has most.

use coffer_core::ProjectId;

use super::row::Row;
use super::slot::Slot;

/// Takes rows until at most `most` fulfil the condition: of the owner with most of them, the one that was not requested
/// for longest. The last requested comes first.
pub(super) fn drop_rows(rows: &mut Vec<Row>, most: usize, counts: impl Fn(&Row) -> bool) -> Vec<Row> {
    let mut dropped = Vec::new();
    loop {
        let owners: Vec<_> = rows.iter().filter(|row| counts(row)).map(owner).collect();
        if owners.len() <= most {
            return dropped;
        }
        let has = |row: &Row| owners.iter().filter(|&&one| one == owner(row)).count();
        // Of several that are equal it is the last.
        let victim = rows.iter().enumerate().filter(|(_, row)| counts(row)).max_by_key(|(_, row)| has(row));
        let Some((at, _)) = victim else { return dropped };
        dropped.push(rows.remove(at));
    }
}

fn owner(row: &Row) -> Option<ProjectId> {
    row.demand.shape.owner()
}

/// Memory of all slots that were restored with processes.
pub(super) fn used(rows: &[Row]) -> u64 {
    rows.iter().flat_map(|row| &row.ready).map(|slot| slot.bytes).sum()
}

/// Whether another slot of this row is within the memory for all.
pub(super) fn fits(row: &Row, used: u64, memory: u64) -> bool {
    !row.demand.shape.has_processes() || used.saturating_add(row.bytes.unwrap_or(0)) <= memory
}

/// Slots of an owner that were restored with processes.
fn held(rows: &[Row], of: Option<ProjectId>) -> usize {
    rows.iter()
        .filter(|row| row.demand.shape.has_processes() && owner(row) == of)
        .map(|row| row.ready.len())
        .sum()
}

/// Takes slots that use too much memory, and one for a template for which there is none left: from an owner, or of the same
/// owner from a template, that has at least two more. `targets` is how many slots each row is to have.
pub(super) fn make_room(rows: &mut [Row], targets: &[usize], memory: u64) -> Vec<Slot> {
    let mut taken = Vec::new();
    while used(rows) > memory
        && let Some(slot) = take_from_most(rows, |row| !row.ready.is_empty())
    {
        taken.push(slot);
    }
    let used = used(rows);
    let lacking = rows.iter().zip(targets).filter(|(row, target)| {
        let lacks = row.demand.shape.has_processes() && row.ready.len() < **target;
        lacks && row.bytes.is_some_and(|bytes| bytes <= memory) && !fits(row, used, memory)
    });
    let poorest = lacking
        .map(|(row, _)| (held(rows, owner(row)), row.ready.len(), owner(row)))
        .min_by_key(|&(all, own, _)| (all, own));
    if let Some((all, own, of)) = poorest {
        let rich: Vec<_> = rows
            .iter()
            .map(|row| match owner(row) == of {
                true => row.ready.len() >= own + 2,
                false => held(rows, owner(row)) >= all + 2,
            })
            .collect();
        let mut rich = rich.into_iter();
        taken.extend(take_from_most(rows, |_| rich.next().unwrap_or(false)));
    }
    taken
}

/// Takes the newest slot of the row with most of them, of those that `may_give`, which is asked for every row in order.
fn take_from_most(rows: &mut [Row], mut may_give: impl FnMut(&Row) -> bool) -> Option<Slot> {
    let most = rows.iter_mut().filter(|row| may_give(row) && row.demand.shape.has_processes());
    most.max_by_key(|row| row.ready.len())?.ready.pop_back()
}
