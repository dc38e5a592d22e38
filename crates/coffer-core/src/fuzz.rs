//! What fuzzing calls: readers of hostile bytes, with what must hold of whatever they read.

use crate::agent::{AgentReader, OutputFormat};

/// Reads output of an agent: the first byte says of which, and how it is cut.
pub fn agent_output(data: &[u8]) {
    let Some((&first, bytes)) = data.split_first() else { return };
    let format = OutputFormat::ALL[usize::from(first) % OutputFormat::ALL.len()];
    let mut whole = AgentReader::new(format);
    let mut told = 0usize;
    whole.push(bytes, &mut |_| told += 1);
    let whole = whole.finish(&mut |_| told += 1);
    let mut pieces = AgentReader::new(format);
    let mut told_in_pieces = 0usize;
    for piece in bytes.chunks(1 + usize::from(first / 8)) {
        pieces.push(piece, &mut |_| told_in_pieces += 1);
    }
    let pieces = pieces.finish(&mut |_| told_in_pieces += 1);
    assert_eq!((&whole, told), (&pieces, told_in_pieces), "how it is cut must not matter");
    assert!(whole.cost_nanos.is_none_or(|nanos| nanos >= 0), "nobody earns by working");
    assert!(whole.summary.is_none_or(|text| text.len() <= 16 * 1024));
}

#[cfg(test)]
#[path = "../../../fuzz/seeded.rs"]
mod seeded;

#[cfg(test)]
mod tests {
    use super::seeded;

    #[test]
    fn outputs_of_agents() {
        seeded::run("agent_output", super::agent_output);
    }
}
