//! Clients' metadata of files: extended attributes below `user.e2b.`.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::AsFd;
use std::path::Path;

use http::HeaderMap;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

const PREFIX: &str = "user.e2b.";
const HEADER_PREFIX: &str = "x-metadata-";

/// An attribute's name holds 255 bytes, of which the prefix takes nine.
const KEY_LIMIT: usize = 246;

/// Keys and values together; filesystems keep all attributes of a file in about one block.
const TOTAL_LIMIT: usize = 4096;

/// Most bytes of attribute names that are read.
const LIST_LIMIT: usize = 64 << 10;

pub(super) type Metadata = BTreeMap<String, String>;

/// The metadata a request carries in its headers.
pub(super) fn from_headers(headers: &HeaderMap) -> Result<Metadata, String> {
    let mut metadata = Metadata::new();
    let mut total = 0;
    for (name, value) in headers {
        // Header names are lower-case already.
        let Some(key) = name.as_str().strip_prefix(HEADER_PREFIX) else {
            continue;
        };
        let value = value.to_str().map_err(|_| format!("metadata '{key}' is not printable ASCII"))?;
        if key.is_empty() || key.len() > KEY_LIMIT {
            return Err(format!("metadata keys have 1 to {KEY_LIMIT} bytes"));
        }
        if !value.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
            return Err(format!("metadata '{key}' is not printable ASCII"));
        }
        total += key.len() + value.len();
        if total > TOTAL_LIMIT {
            return Err(format!("metadata is larger than {TOTAL_LIMIT} bytes"));
        }
        metadata.insert(key.to_owned(), value.to_owned());
    }
    Ok(metadata)
}

/// The metadata of the file itself; empty if the file system has no attributes.
pub(super) fn read(path: &Path) -> Metadata {
    let mut names = vec![0; 1024];
    let listed = loop {
        match rustix::fs::llistxattr(path, &mut names) {
            Ok(length) => break length,
            Err(Errno::RANGE) if names.len() < LIST_LIMIT => names.resize(names.len() * 4, 0),
            Err(_) => return Metadata::new(),
        }
    };
    let mut value = [0; TOTAL_LIMIT];
    keys(&names[..listed])
        .filter_map(|key| {
            let name = attribute(key)?;
            let length = rustix::fs::lgetxattr(path, &name, &mut value).ok()?;
            let text = String::from_utf8_lossy(&value[..length]).into_owned();
            Some((key.to_owned(), text))
        })
        .collect()
}

/// Replaces all metadata. A file that has none and gets none is not touched.
pub(super) fn replace(file: impl AsFd, metadata: &Metadata) -> Result<(), Errno> {
    let mut names = vec![0; LIST_LIMIT];
    let listed = match rustix::fs::flistxattr(&file, &mut names) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) if metadata.is_empty() => return Ok(()),
        Err(error) => return Err(error),
    };
    for key in keys(&names[..listed]) {
        if !metadata.contains_key(key)
            && let Some(name) = attribute(key)
        {
            rustix::fs::fremovexattr(&file, &name)?;
        }
    }
    for (key, value) in metadata {
        if let Some(name) = attribute(key) {
            rustix::fs::fsetxattr(&file, &name, value.as_bytes(), XattrFlags::empty())?;
        }
    }
    Ok(())
}

fn keys(names: &[u8]) -> impl Iterator<Item = &str> {
    names
        .split(|byte| *byte == 0)
        .filter_map(|name| std::str::from_utf8(name).ok()?.strip_prefix(PREFIX))
        .filter(|key| !key.is_empty())
}

fn attribute(key: &str) -> Option<CString> {
    CString::new(format!("{PREFIX}{key}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_become_metadata_within_limits() {
        let mut headers = HeaderMap::new();
        headers.insert("x-metadata-author", "mish".parse().unwrap());
        headers.insert("x-other", "no".parse().unwrap());
        assert_eq!(from_headers(&headers), Ok(Metadata::from([("author".into(), "mish".into())])));
        headers.insert("x-metadata-big", "v".repeat(4096).parse().unwrap());
        assert!(from_headers(&headers).is_err());
        headers.insert("x-metadata-big", http::HeaderValue::from_bytes(b"\xff").unwrap());
        assert!(from_headers(&headers).is_err());
    }
}
