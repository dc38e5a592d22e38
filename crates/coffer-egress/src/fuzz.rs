//! Fuzz targets: parsers of hostile bytes, with the properties of their results.

use crate::sniff::{MOST_BYTES, Sniffed, Sniffer};

pub use crate::dns::fuzz_dns as dns;

/// The commands of a push, whole and in pieces.
pub fn push(data: &[u8]) {
    crate::gate::fuzz::commands(data);
}

/// The first bytes of a connection, whole and in pieces.
pub fn sniff(data: &[u8]) {
    let Some((piece, bytes)) = data.split_first() else { return };
    let mut sniffer = Sniffer::default();
    let mut last = sniffer.push(&[]);
    let mut pushed = 0;
    for part in bytes.chunks(usize::from(*piece).max(1)) {
        let before = last.clone();
        last = sniffer.push(part);
        pushed += part.len();
        match &last {
            Sniffed::Unfinished { at_least } => {
                assert!(*at_least > pushed && *at_least <= MOST_BYTES, "{at_least} wanted of {pushed}");
            }
            Sniffed::Name(name) => {
                // A parsed name parses again to itself.
                assert_eq!(name.as_str().parse().as_ref(), Ok(name));
                assert_eq!(name.as_str(), name.as_str().to_ascii_lowercase());
                // Its letters occur in that order, though record headers may come between them.
                let mut lower = bytes.iter().map(u8::to_ascii_lowercase);
                assert!(
                    name.as_str().bytes().all(|letter| lower.any(|byte| byte == letter)),
                    "{name:?} was made up"
                );
            }
            Sniffed::Nameless => {}
        }
        if !matches!(before, Sniffed::Unfinished { .. }) {
            assert_eq!(before, last, "an answer changed");
        }
    }
    assert_eq!(sniffer.room(), MOST_BYTES.saturating_sub(bytes.len()));
    assert_eq!(sniffer.into_bytes(), bytes, "what is sent on is what came");
    if bytes.len() < MOST_BYTES {
        assert_eq!(Sniffer::default().push(bytes), last, "pieces of {piece} read otherwise");
    }
}

#[cfg(test)]
#[path = "../../../fuzz/seeded.rs"]
mod seeded;

#[cfg(test)]
mod tests {
    use super::seeded;

    #[test]
    fn first_bytes() {
        seeded::run("sniff", super::sniff);
    }

    #[test]
    fn names_and_answers() {
        seeded::run("dns", super::dns);
    }

    #[test]
    fn commands_of_pushes() {
        seeded::run("push", super::push);
    }
}
