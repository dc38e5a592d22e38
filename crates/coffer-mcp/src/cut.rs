//! Cuts text to fit a model's context: its beginning and its end stay.

use std::collections::VecDeque;

/// Keeps the first and the last bytes of what is added, in bounded memory.
#[derive(Debug)]
pub(crate) struct Cut {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    head_room: usize,
    tail_room: usize,
    total: u64,
}

impl Cut {
    /// Keeps `most` bytes: a third of them from the beginning, because errors are mostly at the end.
    pub(crate) fn new(most: usize) -> Self {
        let head_room = most / 3;
        Self { head: Vec::new(), tail: VecDeque::new(), head_room, tail_room: most - head_room, total: 0 }
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let (first, rest) = bytes.split_at(bytes.len().min(self.head_room - self.head.len()));
        self.head.extend_from_slice(first);
        let rest = &rest[rest.len().saturating_sub(self.tail_room)..];
        let over = (self.tail.len() + rest.len()).saturating_sub(self.tail_room);
        self.tail.drain(..over);
        self.tail.extend(rest);
    }

    /// How many bytes were added.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    fn left_out(&self) -> u64 {
        self.total - (self.head.len() + self.tail.len()) as u64
    }

    /// The offset of the first byte that is left out.
    pub(crate) fn gap(&self) -> Option<u64> {
        (self.left_out() > 0).then_some(self.head.len() as u64)
    }

    /// The text, with a line that says how much is left out.
    pub(crate) fn text(mut self) -> String {
        let left_out = self.left_out();
        let tail = self.tail.make_contiguous();
        if left_out == 0 {
            self.head.extend_from_slice(tail);
            return String::from_utf8_lossy(&self.head).into_owned();
        }
        // Characters that the cut went through are left out too.
        let begin = tail.iter().take(3).position(|&byte| byte & 0xC0 != 0x80).unwrap_or(0);
        let (head, tail) = (whole(&self.head), String::from_utf8_lossy(&tail[begin..]));
        format!("{head}\n[… {left_out} bytes left out …]\n{tail}")
    }
}

/// Text without a character that is not complete at its end.
fn whole(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    let end = match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => bytes.len(),
    };
    String::from_utf8_lossy(&bytes[..end])
}

/// A text that is complete, cut.
pub(crate) fn text(text: &str, most: usize) -> String {
    let mut cut = Cut::new(most);
    cut.add(text.as_bytes());
    cut.text()
}

/// How many of these bytes are whole characters.
pub(crate) fn whole_length(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginning_and_end_stay_however_the_text_comes() {
        let long: String = (0..2000).map(|number| format!("line {number}\n")).collect();
        for size in [1, 7, 300, long.len()] {
            let mut cut = Cut::new(300);
            long.as_bytes().chunks(size).for_each(|piece| cut.add(piece));
            assert_eq!((cut.total(), cut.gap()), (long.len() as u64, Some(100)));
            let text = cut.text();
            assert!(text.starts_with("line 0\n") && text.ends_with("line 1999\n"), "{text}");
            assert!(text.contains(&format!("{} bytes left out", long.len() - 300)));
        }
    }

    #[test]
    fn short_text_stays_as_it_is() {
        assert_eq!(text("ü\n", 30), "ü\n");
        let mut cut = Cut::new(4);
        cut.add(b"abcd");
        assert_eq!((cut.gap(), cut.text().as_str()), (None, "abcd"));
    }

    #[test]
    fn no_character_is_cut_in_two() {
        let long = "ü".repeat(100);
        for most in 3..40 {
            assert!(!text(&long, most).contains('\u{fffd}'), "{most}");
        }
    }
}
