//! Entry points for fuzzing: parsers of hostile bytes, with the properties that must hold for every input.

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
