//! SSH's data types (RFC 4251, section 5): numbers, strings, lists of names.

use crate::error::Error;

/// Reads fields from the front.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

const SHORT: Error = Error::Protocol("a message that ends too early");

impl<'a> Fields<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(SHORT)?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn skip(&mut self, length: usize) -> Result<(), Error> {
        self.take(length).map(drop)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Error> {
        Ok(self.take(1)?[0])
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Error> {
        Ok(self.byte()? != 0)
    }

    pub(crate) fn number(&mut self) -> Result<u32, Error> {
        let bytes = self.take(4)?;
        Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    pub(crate) fn string(&mut self) -> Result<&'a [u8], Error> {
        let length = usize::try_from(self.number()?).map_err(|_| SHORT)?;
        self.take(length)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, Error> {
        std::str::from_utf8(self.string()?).map_err(|_| Error::Protocol("a text that is not UTF-8"))
    }
}

/// Appends fields.
pub(crate) trait Append {
    fn number(&mut self, value: u32);
    fn string(&mut self, value: &[u8]);
    /// A positive number of any length, without leading zeros.
    fn big(&mut self, value: &[u8]);
}

impl Append for Vec<u8> {
    fn number(&mut self, value: u32) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn string(&mut self, value: &[u8]) {
        // Everything that is sent is far shorter.
        self.number(u32::try_from(value.len()).unwrap_or(u32::MAX));
        self.extend_from_slice(value);
    }

    fn big(&mut self, value: &[u8]) {
        let zeros = value.iter().take_while(|byte| **byte == 0).count();
        let value = &value[zeros..];
        if value.first().is_some_and(|byte| byte & 0x80 != 0) {
            self.string(&[&[0], value].concat());
        } else {
            self.string(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_and_end() {
        let mut written = vec![7];
        written.number(0x0102_0304);
        written.string(b"name");
        let mut fields = Fields::of(&written);
        assert_eq!(fields.byte().unwrap(), 7);
        assert_eq!(fields.number().unwrap(), 0x0102_0304);
        assert_eq!(fields.text().unwrap(), "name");
        assert!(fields.byte().is_err());
        assert!(Fields::of(&[0, 0, 0, 9, 1]).string().is_err());
        assert!(Fields::of(&[0, 0, 0, 1, 0xff]).text().is_err());
    }

    #[test]
    fn big_numbers_are_as_the_standard_shows_them() {
        let big = |value: &[u8]| {
            let mut written = Vec::new();
            written.big(value);
            written
        };
        assert_eq!(big(&[]), [0, 0, 0, 0]);
        assert_eq!(big(&[0, 0]), [0, 0, 0, 0]);
        assert_eq!(big(&[0x80]), [0, 0, 0, 2, 0, 0x80]);
        assert_eq!(big(&[0, 0x09, 0xa3]), [0, 0, 0, 2, 0x09, 0xa3]);
    }
}
