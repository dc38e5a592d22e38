//! Reads a tar archive: headers of any dialect to members, in bounded memory.
//!
//! The crate `tar` knows the layout of headers. What follows a header is read here: its own iterator takes
//! names of any length into memory, ends at a newline in an attribute, and takes sizes of files above 8 GiB
//! from the wrong place.

use std::io::{self, Read};

use tar::{EntryType, Header};

use super::fault::Fault;
use super::records::{Records, Xattrs, number};

const BLOCK: usize = 512;

/// A name and its NUL must fit into the kernel's PATH_MAX.
pub(super) const LONGEST_NAME: usize = 4095;

/// The longest header that holds names or records instead of a member.
const LONGEST_EXTENSION: u64 = 1 << 20;

/// Zeros after the end; tools fill up to a multiple of their block size.
const LONGEST_TAIL: u64 = 16 << 20;

/// Headers without a member in a row.
const MOST_EXTENSIONS: u32 = 16;

/// What a member is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
    Symlink(Vec<u8>),
    /// Another name of an earlier member, which is the text here.
    HardLink(Vec<u8>),
    Fifo,
    Device,
}

/// One member; the contents of a file are read from the archive before the next one.
#[derive(Debug)]
pub(super) struct Member {
    /// As in the archive: may be absolute, climb, or be empty.
    pub(super) name: Vec<u8>,
    pub(super) kind: Kind,
    /// Permission bits, set-uid, set-gid and sticky.
    pub(super) mode: u32,
    pub(super) uid: u64,
    pub(super) gid: u64,
    /// Seconds and nanoseconds.
    pub(super) mtime: (i64, u32),
    /// Of any namespace.
    pub(super) xattrs: Xattrs,
}

/// How an archive must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// With a block of zeros.
    Marked,
    /// Some tools that make images leave it out; the digest of a layer shows that it is complete.
    MayBeUnmarked,
}

pub(super) struct Archive<R> {
    source: R,
    end: End,
    begun: bool,
    /// Bytes of the current file that were not read yet, and those that fill its last block.
    left: u64,
    padding: u64,
}

impl<R: Read> Archive<R> {
    pub(super) fn new(source: R, end: End) -> Self {
        Self { source, end, begun: false, left: 0, padding: 0 }
    }

    /// The next member; `None` after the last, when everything was read.
    pub(super) fn next(&mut self) -> Result<Option<Member>, Fault> {
        self.skip(self.left + self.padding)?;
        (self.left, self.padding) = (0, 0);
        let mut long_name = None;
        let mut long_link = None;
        let mut records = None;
        for _ in 0..MOST_EXTENSIONS {
            let Some(block) = self.header()? else {
                return match (&long_name, &long_link, &records) {
                    (None, None, None) => Ok(None),
                    _ => Err(Fault::new("the archive is truncated")),
                };
            };
            let header = Header::from_byte_slice(&block);
            let once = match header.entry_type() {
                EntryType::GNULongName => long_name.replace(terminated(self.extension(header)?)).is_none(),
                EntryType::GNULongLink => long_link.replace(terminated(self.extension(header)?)).is_none(),
                EntryType::XHeader => records.replace(Records::parse(&self.extension(header)?)?).is_none(),
                // Of comments and revisions, not of members.
                EntryType::XGlobalHeader => {
                    self.extension(header)?;
                    true
                }
                _ => {
                    let records = records.unwrap_or_default();
                    return self.member(header, long_name, long_link, records).map(Some);
                }
            };
            if !once {
                break;
            }
        }
        Err(Fault::new("the archive is corrupt: headers without a member"))
    }

    /// Contents of the current file; 0 at its end.
    pub(super) fn read(&mut self, into: &mut [u8]) -> Result<usize, Fault> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
        if most == 0 {
            return Ok(0);
        }
        let length = read_some(&mut self.source, &mut into[..most])?;
        if length == 0 {
            return Err(Fault::reading(&io::ErrorKind::UnexpectedEof.into()));
        }
        self.left -= length as u64;
        Ok(length)
    }

    /// The next block that is a header; `None` at the end.
    fn header(&mut self) -> Result<Option<[u8; BLOCK]>, Fault> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match read_some(&mut self.source, &mut block[filled..])? {
                0 if filled == 0 && self.begun && self.end == End::MayBeUnmarked => return Ok(None),
                0 if filled == 0 && !self.begun => return Err(Fault::new("the archive is empty")),
                0 => return Err(Fault::reading(&io::ErrorKind::UnexpectedEof.into())),
                length => filled += length,
            }
        }
        self.begun = true;
        if block.iter().all(|byte| *byte == 0) {
            self.tail()?;
            return Ok(None);
        }
        let header = Header::from_byte_slice(&block);
        // The checksum counts as blanks in itself. Old tools added the bytes as signed numbers.
        let others = block.iter().enumerate().filter(|(at, _)| !(148..156).contains(at));
        let (unsigned, signed) = others.fold((256_u64, 256_i64), |(unsigned, signed), (_, byte)| {
            (unsigned + u64::from(*byte), signed + i64::from(byte.cast_signed()))
        });
        let expected = number(&header.as_old().cksum);
        if expected != Some(unsigned) && (expected.is_none() || expected != u64::try_from(signed).ok()) {
            return Err(Fault::new(
                "the archive is corrupt: a header's checksum is wrong, or it is no tar archive",
            ));
        }
        Ok(Some(block))
    }

    /// Reads to the end, which also checks the sums of compressed data.
    fn tail(&mut self) -> Result<(), Fault> {
        let mut buffer = [0; 4096];
        let mut total = 0;
        loop {
            let length = read_some(&mut self.source, &mut buffer)?;
            total += length as u64;
            if buffer[..length].iter().any(|byte| *byte != 0) || total > LONGEST_TAIL {
                return Err(Fault::new("the archive is corrupt: data follows its end"));
            }
            if length == 0 {
                return Ok(());
            }
        }
    }

    /// The text of a header that extends the next one.
    fn extension(&mut self, header: &Header) -> Result<Vec<u8>, Fault> {
        let size = size_of(header)?;
        if size > LONGEST_EXTENSION {
            return Err(Fault::new(format!(
                "a header of the archive has {size} bytes, more than {LONGEST_EXTENSION}"
            )));
        }
        let mut text = Vec::new();
        self.source.by_ref().take(size).read_to_end(&mut text).map_err(|error| Fault::reading(&error))?;
        if (text.len() as u64) < size {
            return Err(Fault::reading(&io::ErrorKind::UnexpectedEof.into()));
        }
        self.skip(padding(size))?;
        Ok(text)
    }

    fn member(
        &mut self,
        header: &Header,
        long_name: Option<Vec<u8>>,
        long_link: Option<Vec<u8>>,
        records: Records,
    ) -> Result<Member, Fault> {
        let name = records.path.or(long_name).unwrap_or_else(|| header.path_bytes().into_owned());
        let link = records.link.or(long_link);
        let link = || link.unwrap_or_else(|| header.link_name_bytes().unwrap_or_default().into_owned());
        let odd = |what: &str| Err(Fault::member(&name, what));
        if name.len() > LONGEST_NAME {
            return odd("has a name that is too long");
        }
        if records.sparse {
            return odd("is a sparse file, which is not supported; pack it without --sparse");
        }
        let kind = match header.entry_type() {
            // Before POSIX, a directory was a file with a final slash.
            EntryType::Regular if header.as_old().linkflag == [0] && name.ends_with(b"/") => Kind::Directory,
            EntryType::Regular | EntryType::Continuous => Kind::File,
            EntryType::Directory => Kind::Directory,
            EntryType::Symlink => Kind::Symlink(link()),
            EntryType::Link => Kind::HardLink(link()),
            EntryType::Fifo => Kind::Fifo,
            EntryType::Char | EntryType::Block => Kind::Device,
            EntryType::GNUSparse => {
                return odd("is a sparse file, which is not supported; pack it without --sparse");
            }
            other => {
                let byte = [other.as_byte()];
                return odd(&format!("has the unknown type '{}'", byte.escape_ascii()));
            }
        };
        if let Kind::Symlink(target) | Kind::HardLink(target) = &kind
            && (target.is_empty() || target.len() > LONGEST_NAME || target.contains(&0))
        {
            return odd("is a link whose target is empty, too long, or no path");
        }
        // Only files have contents, whatever the headers of others say.
        if kind == Kind::File {
            self.left = records.size.map_or_else(|| size_of(header), Ok)?;
            self.padding = padding(self.left);
        }
        let field = |bytes: &[u8]| number(bytes).unwrap_or_default();
        let old = header.as_old();
        Ok(Member {
            kind,
            mode: u32::try_from(field(&old.mode) & 0o7777).unwrap_or_default(),
            uid: records.uid.unwrap_or_else(|| field(&old.uid)),
            gid: records.gid.unwrap_or_else(|| field(&old.gid)),
            mtime: records.mtime.unwrap_or_else(|| (field(&old.mtime).cast_signed(), 0)),
            xattrs: records.xattrs,
            name,
        })
    }

    fn skip(&mut self, length: u64) -> Result<(), Fault> {
        let skipped = io::copy(&mut self.source.by_ref().take(length), &mut io::sink());
        if skipped.map_err(|error| Fault::reading(&error))? < length {
            return Err(Fault::reading(&io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(())
    }
}

fn read_some(source: &mut impl Read, into: &mut [u8]) -> Result<usize, Fault> {
    loop {
        match source.read(into) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result.map_err(|error| Fault::reading(&error)),
        }
    }
}

/// A size that fits into a file's, so that sums of sizes do not overflow.
fn size_of(header: &Header) -> Result<u64, Fault> {
    number(&header.as_old().size)
        .filter(|size| i64::try_from(*size).is_ok())
        .ok_or_else(|| Fault::new("the archive is corrupt: the size of a member is not a number"))
}

fn padding(size: u64) -> u64 {
    size.next_multiple_of(BLOCK as u64) - size
}

/// GNU's long names end with a NUL.
fn terminated(mut text: Vec<u8>) -> Vec<u8> {
    if let Some(end) = text.iter().position(|byte| *byte == 0) {
        text.truncate(end);
    }
    text
}
