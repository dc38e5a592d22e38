//! What a connection calls its other end, read from its first bytes.
//!
//! The bytes come from a sandbox and are hostile: all is bounded, nothing panics, and a doubtful hello
//! has no name. Having no name is safe, because then the address alone decides.

mod http;
mod tls;

use coffer_core::network::HostName;

/// The most bytes that are read in search of a name.
pub const MOST_BYTES: usize = 32 * 1024;

/// How far the reading of a name has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sniffed {
    /// Nothing can be said before there are `at_least` bytes in all.
    Unfinished { at_least: usize },
    /// The connection is TLS or HTTP for that name.
    Name(HostName),
    /// It has no name that could be relied on.
    Nameless,
}

/// Reads the first bytes of a connection as they come, and keeps them for whoever is dialled.
#[derive(Debug, Default)]
pub struct Sniffer {
    bytes: Vec<u8>,
    at_least: usize,
    searched: usize,
    /// Once known, an answer does not change.
    found: Option<Sniffed>,
}

impl Sniffer {
    /// Takes the next bytes and says what is known now.
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

    /// How many more bytes may be taken.
    pub fn room(&self) -> usize {
        MOST_BYTES.saturating_sub(self.bytes.len())
    }

    /// All that was read, to be sent on as it came.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests;
