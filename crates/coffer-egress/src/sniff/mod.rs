//! Reads the server name from the first bytes of a connection.
//!
//! The bytes come from a sandbox and are hostile: everything is bounded, nothing panics, and an ambiguous
//! hello has no name. Having no name is safe, because then only the address decides.

mod http;
mod sniffed;
mod tls;

pub use sniffed::{MOST_BYTES, Sniffed};

/// Reads the first bytes of a connection, and keeps them to send on.
#[derive(Debug, Default)]
pub struct Sniffer {
    bytes: Vec<u8>,
    at_least: usize,
    searched: usize,
    /// Once known, the result does not change.
    found: Option<Sniffed>,
}

impl Sniffer {
    /// Takes the next bytes and returns the current result.
    pub fn push(&mut self, bytes: &[u8]) -> Sniffed {
        self.bytes.extend_from_slice(bytes);
        if let Some(found) = &self.found {
            return found.clone();
        }
        if self.bytes.len() < self.at_least {
            return Sniffed::Unfinished { at_least: self.at_least };
        }
        let sniffed = match self.bytes.first() {
            None => Sniffed::Unfinished { at_least: 1 },
            Some(&tls::HANDSHAKE) => tls::read(&self.bytes),
            Some(b'A'..=b'Z') => http::read(&self.bytes, &mut self.searched),
            Some(_) => Sniffed::Nameless,
        };
        match sniffed {
            Sniffed::Unfinished { at_least } if at_least <= MOST_BYTES => {
                self.at_least = at_least;
                Sniffed::Unfinished { at_least }
            }
            Sniffed::Unfinished { .. } => self.found.insert(Sniffed::Nameless).clone(),
            known => self.found.insert(known).clone(),
        }
    }

    /// How many more bytes can be taken.
    pub fn room(&self) -> usize {
        MOST_BYTES.saturating_sub(self.bytes.len())
    }

    /// All bytes that were read, to send on.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests;
