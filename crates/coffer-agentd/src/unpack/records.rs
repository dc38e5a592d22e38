//! The records of PAX headers, and the numbers of all headers.

use super::fault::Fault;

/// Extended attributes: names and values.
pub(super) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// What the records of one PAX header say of the next member.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Records {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u64>,
    pub(super) gid: Option<u64>,
    pub(super) mtime: Option<(i64, u32)>,
    pub(super) xattrs: Xattrs,
    pub(super) sparse: bool,
}

impl Records {
    /// Reads `<length> <key>=<value>\n` again and again. Values are taken by length, as attributes hold any byte.
    pub(super) fn parse(mut text: &[u8]) -> Result<Self, Fault> {
        let mut records = Self::default();
        while !text.is_empty() {
            let (key, value, rest) =
                split(text).ok_or_else(|| Fault::new("the archive is corrupt: a record of a PAX header"))?;
            records.take(key, value)?;
            text = rest;
        }
        Ok(records)
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), Fault> {
        let bad = || Fault::new(format!("the archive is corrupt: record '{}'", key.escape_ascii()));
        let whole = || decimal(value).filter(|number| i64::try_from(*number).is_ok()).ok_or_else(bad);
        match key {
            b"path" => self.path = Some(value.to_vec()),
            b"linkpath" => self.link = Some(value.to_vec()),
            b"size" => self.size = Some(whole()?),
            b"uid" => self.uid = Some(whole()?),
            b"gid" => self.gid = Some(whole()?),
            b"mtime" => self.mtime = Some(time(value).ok_or_else(bad)?),
            _ if key.starts_with(b"GNU.sparse.") => self.sparse = true,
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.xattrs.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        Ok(())
    }
}

/// The first record's key and value, and what follows it.
fn split(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    // More digits than a header may have bytes.
    let blank = text.iter().take(8).position(|byte| *byte == b' ')?;
    let length = usize::try_from(decimal(&text[..blank])?).ok()?;
    let record = text.get(blank + 1..length)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some((&record[..equals], &record[equals + 1..], &text[length..]))
}

fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Seconds with a fraction, before 1970 with a sign.
fn time(text: &[u8]) -> Option<(i64, u32)> {
    let (negative, text) = text.strip_prefix(b"-").map_or((false, text), |rest| (true, rest));
    let dot = text.iter().position(|byte| *byte == b'.').unwrap_or(text.len());
    let seconds = i64::try_from(decimal(&text[..dot])?).ok()?;
    let fraction = text.get(dot + 1..).unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    let nanoseconds = digits.fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'));
    Some(match (negative, nanoseconds) {
        (false, _) => (seconds, nanoseconds),
        (true, 0) => (-seconds, 0),
        (true, _) => (-seconds - 1, 1_000_000_000 - nanoseconds),
    })
}

/// A number of a header: octal digits between blanks and NULs, or GNU's binary form. Blank means 0.
pub(super) fn number(field: &[u8]) -> Option<u64> {
    let (&first, rest) = field.split_first()?;
    if first & 0x80 != 0 {
        // A negative one, as GNU tar writes times before 1970, becomes a negative one by sign.
        let start =
            if first & 0x40 == 0 { u64::from(first & 0x3f) } else { u64::MAX << 6 | u64::from(first & 0x3f) };
        return rest.iter().try_fold(start, |sum, byte| {
            let fits = sum >> 55 == 0 || sum >> 55 == (1 << 9) - 1;
            fits.then_some(sum << 8 | u64::from(*byte))
        });
    }
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    let digits = field[..end].trim_ascii();
    digits.iter().try_fold(0_u64, |sum, digit| match digit {
        b'0'..=b'7' => sum.checked_mul(8)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_may_hold_newlines_and_later_records_win() {
        let records = Records::parse(
            b"31 SCHILY.xattr.user.a=1\n2\n\0\xff=\n12 path=a/b\n10 path=c\n21 mtime=-1.25000000\n",
        )
        .unwrap();
        assert_eq!(records.xattrs, [(b"user.a".to_vec(), b"1\n2\n\0\xff=".to_vec())]);
        assert_eq!(records.path.as_deref(), Some(&b"c"[..]));
        assert_eq!(records.mtime, Some((-2, 750_000_000)));
    }

    #[test]
    fn broken_records_are_refused() {
        for text in [
            &b"x"[..],
            b"0 path=a\n",
            b"11 path=a\n",
            b"8 path=a\n",
            b"99999999999 path=a\n",
            b"10 path=ab",
            b"8 path\n\n",
            b"10 size=-\n",
            b"28 size=9999999999999999999\n",
            b"12 mtime=.\n",
            b" path=a\n",
        ] {
            assert!(Records::parse(text).is_err(), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn numbers_have_three_forms() {
        let cases: [(&[u8], Option<u64>); 9] = [
            (b"0000644\0", Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"        ", Some(0)),
            (b"12x\0", None),
            (b"9\0", None),
            (b"\x80\0\0\0\0\0\0\0\0\0\x01\0", Some(256)),
            (b"\x80\0\0\x01\0\0\0\0\0\0\0\0", None),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe", Some(u64::MAX - 1)),
        ];
        for (field, expected) in cases {
            assert_eq!(number(field), expected, "{}", field.escape_ascii());
        }
    }
}
