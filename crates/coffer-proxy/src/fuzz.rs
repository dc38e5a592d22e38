//! What fuzzing calls: readers of hostile bytes, with what must hold of whatever they read.

pub use crate::proxy::fuzz_address as address;

#[cfg(test)]
#[path = "../../../fuzz/seeded.rs"]
mod seeded;

#[cfg(test)]
mod tests {
    use super::seeded;

    #[test]
    fn addresses() {
        seeded::run("address", super::address);
    }
}
