//! Text that clients may print on a terminal: without escape sequences and control characters.

/// Removes escape sequences (colours, titles, links, the clipboard) whole, and all other control characters except line
/// ends and tabs. Characters that change the direction of text go too: they make text look like other text.
pub(crate) fn plain(text: &str) -> String {
    if !text.chars().any(is_unwanted) {
        return text.to_string();
    }
    let mut kept = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(letter) = rest.next() {
        match letter {
            '\u{1b}' => match rest.next() {
                // CSI: parameters, then one final letter.
                Some('[') => while rest.next().is_some_and(|part| !('\u{40}'..='\u{7e}').contains(&part)) {},
                // OSC and other strings: to BEL or ESC \.
                Some(']' | 'P' | '_' | '^' | 'X') => {
                    while let Some(part) = rest.next() {
                        if part == '\u{7}' || (part == '\u{1b}' && rest.next_if_eq(&'\\').is_some()) {
                            break;
                        }
                    }
                }
                // Two characters, or one of the sets of characters.
                Some('(' | ')' | '#' | '%') => drop(rest.next()),
                _ => {}
            },
            '\u{9b}' => while rest.next().is_some_and(|part| !('\u{40}'..='\u{7e}').contains(&part)) {},
            '\r' if rest.peek() == Some(&'\n') => {}
            // A progress bar that overwrites itself.
            '\r' => kept.push('\n'),
            letter if is_unwanted(letter) => {}
            letter => kept.push(letter),
        }
    }
    kept
}

fn is_unwanted(letter: char) -> bool {
    let turns = matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || (letter.is_control() && letter != '\n' && letter != '\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_go_and_text_stays() {
        assert_eq!(plain("\u{1b}[1;31mred\u{1b}[0m\ttext\n"), "red\ttext\n");
        assert_eq!(plain("a\u{1b}]52;c;aGk=\u{7}b\u{1b}]8;;http://x\u{1b}\\c"), "abc");
        assert_eq!(plain("10%\r50%\r\ndone\u{0}\u{8}"), "10%\n50%\ndone");
        assert_eq!(plain("\u{9b}2Jx\u{202e}y\u{1b}(Bz"), "xyz");
        assert_eq!(plain("ü 漢 🦀"), "ü 漢 🦀");
        assert_eq!(plain("cut \u{1b}]0;never ends"), "cut ");
    }
}
