//! The fields of requests, and what they share with answers.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// The largest request and answer, as in OpenSSH.
pub(super) const LARGEST: usize = 256 << 10;

/// A request that is not what it says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Reads fields from the front.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn number(&mut self) -> Result<u32, Malformed> {
        let bytes = self.take(4)?.first_chunk().ok_or(Malformed)?;
        Ok(u32::from_be_bytes(*bytes))
    }

    pub(super) fn long(&mut self) -> Result<u64, Malformed> {
        let bytes = self.take(8)?.first_chunk().ok_or(Malformed)?;
        Ok(u64::from_be_bytes(*bytes))
    }

    pub(super) fn string(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.number()?).map_err(|_| Malformed)?;
        self.take(length)
    }

    pub(super) fn path(&mut self) -> Result<&'a Path, Malformed> {
        Ok(Path::new(OsStr::from_bytes(self.string()?)))
    }
}

pub(super) fn string(body: &mut Vec<u8>, text: &[u8]) {
    body.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
    body.extend_from_slice(text);
}
