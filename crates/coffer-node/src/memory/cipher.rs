//! Files of an image on disk: encrypted under a key per image.
//!
//! AES-256-GCM over pieces of one mebibyte, each followed by its tag. A nonce consists of the file's number,
//! the piece's, and whether it is the last, so pieces can be neither exchanged nor left out; each image has
//! its own key.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, MAX_TAG_LEN, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};

const PIECE: usize = 1 << 20;
const KEY_LENGTH: usize = 32;

pub(super) struct Key(LessSafeKey);

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Key")
    }
}

impl Key {
    /// Creates a key and writes it to disk, readable only by root.
    pub(super) fn make(path: &Path) -> io::Result<Self> {
        destroy(path)?;
        let mut bytes = [0; KEY_LENGTH];
        SystemRandom::new()
            .fill(&mut bytes)
            .map_err(|_| io::Error::other("could not read random numbers"))?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        if let Some(directory) = path.parent() {
            File::open(directory)?.sync_all()?;
        }
        Self::of(&bytes)
    }

    pub(super) fn read(path: &Path) -> io::Result<Self> {
        Self::of(&fs::read(path)?)
    }

    fn of(bytes: &[u8]) -> io::Result<Self> {
        let key = UnboundKey::new(&AES_256_GCM, bytes);
        let key = key.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "its key is damaged"))?;
        Ok(Self(LessSafeKey::new(key)))
    }

    /// Encrypts the file `number` of an image; returns its length.
    pub(super) fn encrypt(&self, number: u32, from: &Path, to: &Path) -> io::Result<u64> {
        let mut from = File::open(from)?;
        let length = from.metadata()?.len();
        let mut to = File::create_new(to)?;
        let mut buffer = Vec::with_capacity(PIECE + MAX_TAG_LEN);
        for piece in Pieces::of(length, PIECE) {
            buffer.resize(piece.length, 0);
            from.read_exact(&mut buffer)?;
            let sealed = self.0.seal_in_place_append_tag(piece.nonce(number), Aad::empty(), &mut buffer);
            sealed.map_err(|_| io::Error::other("could not encrypt a chunk"))?;
            to.write_all(&buffer)?;
        }
        Ok(length)
    }

    /// Undoes [`encrypt`](Self::encrypt), into a world-readable file; the directory above restricts access.
    pub(super) fn decrypt(&self, number: u32, from: &Path, to: &Path, length: u64) -> io::Result<()> {
        let mut from = File::open(from)?;
        let mut to = OpenOptions::new().write(true).create_new(true).mode(0o444).open(to)?;
        let mut buffer = Vec::with_capacity(PIECE + MAX_TAG_LEN);
        for piece in Pieces::of(length, PIECE) {
            buffer.resize(piece.length + MAX_TAG_LEN, 0);
            from.read_exact(&mut buffer)?;
            let opened = self.0.open_in_place(piece.nonce(number), Aad::empty(), &mut buffer);
            to.write_all(opened.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?)?;
        }
        Ok(())
    }
}

/// Overwrites a key before removing it, so that no free block holds it; succeeds if there is none.
pub(super) fn destroy(path: &Path) -> io::Result<()> {
    let mut file = match OpenOptions::new().write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    file.write_all(&[0; KEY_LENGTH])?;
    file.sync_all()?;
    fs::remove_file(path)
}

struct Piece {
    number: u64,
    length: usize,
    is_last: bool,
}

impl Piece {
    fn nonce(&self, file: u32) -> Nonce {
        let mut bytes = [0; NONCE_LEN];
        bytes[..4].copy_from_slice(&file.to_be_bytes());
        bytes[4..].copy_from_slice(&self.number.to_be_bytes());
        // No file has 2^56 pieces.
        bytes[4] = u8::from(self.is_last);
        Nonce::assume_unique_for_key(bytes)
    }
}

/// The pieces of a file; an empty file has one empty piece.
struct Pieces {
    left: u64,
    size: usize,
    next: Option<u64>,
}

impl Pieces {
    fn of(length: u64, size: usize) -> Self {
        Self { left: length, size, next: Some(0) }
    }
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let number = self.next?;
        let length = usize::try_from(self.left).unwrap_or(usize::MAX).min(self.size);
        self.left -= length as u64;
        let is_last = self.left == 0;
        self.next = (!is_last).then_some(number + 1);
        Some(Piece { number, length, is_last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_back_and_nothing_of_them_is_on_disk() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        let key = Key::make(&at("key")).unwrap();
        for length in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE] {
            let plain: Vec<u8> = b"a secret ".iter().copied().cycle().take(length).collect();
            fs::write(at("plain"), &plain).unwrap();
            assert_eq!(key.encrypt(3, &at("plain"), &at("sealed")).unwrap(), length as u64);
            let sealed = fs::read(at("sealed")).unwrap();
            assert!(!sealed.windows(8).any(|window| window == b"a secret"));
            // With the key from its file, as another node has it.
            let key = Key::read(&at("key")).unwrap();
            key.decrypt(3, &at("sealed"), &at("back"), length as u64).unwrap();
            assert!(fs::read(at("back")).unwrap() == plain);
            fs::remove_file(at("back")).unwrap();
            assert!(key.decrypt(4, &at("sealed"), &at("back"), length as u64).is_err(), "another file");
            fs::remove_file(at("back")).unwrap();
            if length > PIECE {
                // Cut off between two pieces.
                assert!(key.decrypt(3, &at("sealed"), &at("back"), PIECE as u64).is_err());
                fs::remove_file(at("back")).unwrap();
            }
            fs::remove_file(at("sealed")).unwrap();
        }
    }

    #[test]
    fn a_key_that_was_destroyed_is_nowhere() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("key");
        Key::make(&path).unwrap();
        let held = File::open(&path).unwrap();
        let mut left = Vec::new();
        destroy(&path).unwrap();
        (&held).read_to_end(&mut left).unwrap();
        assert_eq!(left, [0; KEY_LENGTH], "an open descriptor reads zeros");
        assert!(Key::read(&path).is_err());
        destroy(&path).unwrap();
    }
}
