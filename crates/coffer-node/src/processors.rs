//! Which processors a sandbox with fewer than all of them runs on.

use coffer_core::sync::Mutex;

/// Counts the sandboxes on each processor, so that new ones get the least used. A program that asks for the
/// number of processors then sees the sandbox's share.
#[derive(Debug)]
pub(crate) struct Processors {
    /// Each usable processor, with the number of sandboxes kept to it.
    loads: Mutex<Vec<(usize, u32)>>,
}

impl Processors {
    /// The processors that this process may use.
    pub(crate) fn of_this_process() -> std::io::Result<Self> {
        let set = rustix::thread::sched_getaffinity(None)?;
        let usable = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
        Ok(Self::new(usable))
    }

    fn new(usable: impl Iterator<Item = usize>) -> Self {
        Self { loads: Mutex::new(usable.map(|cpu| (cpu, 0)).collect()) }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.loads.lock().len()).unwrap_or(u32::MAX)
    }

    /// The least used processors; empty means all.
    pub(crate) fn take(&self, count: u32) -> Vec<usize> {
        let count = count.max(1) as usize;
        let mut loads = self.loads.lock();
        if count >= loads.len() {
            return Vec::new();
        }
        let mut order: Vec<_> = (0..loads.len()).collect();
        order.sort_by_key(|&at| loads[at].1);
        order.truncate(count);
        for &at in &order {
            loads[at].1 += 1;
        }
        order.iter().map(|&at| loads[at].0).collect()
    }

    /// Counts the processors of an adopted sandbox.
    pub(crate) fn take_again(&self, cpus: &[usize]) {
        self.change(cpus, |load| load + 1);
    }

    pub(crate) fn give_back(&self, cpus: &[usize]) {
        self.change(cpus, |load| load.saturating_sub(1));
    }

    fn change(&self, cpus: &[usize], change: impl Fn(u32) -> u32) {
        for (cpu, load) in self.loads.lock().iter_mut() {
            if cpus.contains(cpu) {
                *load = change(*load);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandboxes_spread_over_processors() {
        let processors = Processors::new([0, 2, 4, 6].into_iter());
        let first = processors.take(2);
        let second = processors.take(2);
        assert!(first.iter().all(|cpu| !second.contains(cpu)), "{first:?} {second:?}");
        assert_eq!(processors.take(4), Vec::<usize>::new());
        processors.give_back(&second);
        let mut third = processors.take(2);
        third.sort_unstable();
        assert_eq!(third, second);
    }
}
