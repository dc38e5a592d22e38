//! Adapts an image for another sandbox than its source.
//!
//! An image uses the sandbox's own ids, except for one small file: the map from those to the host's. A fork
//! has its own range, so it gets its own copy of that file and shares all others.

use std::fs;
use std::io;
use std::path::Path;

use super::image::{self, Image};

/// CRIU's name of the file: `userns-<number>.img`.
const MAP: &str = "userns-";
/// Two magic numbers and the length of the payload that follows.
const HEAD: usize = 12;
/// Both maps of one range each take 28 bytes.
const LONGEST_MAP: usize = 4096;

/// Prepares the image in `from` at `to`, for a sandbox with the range at `uid_base`.
pub(super) fn lay_out(image: &Image, from: &Path, to: &Path, uid_base: u32) -> io::Result<()> {
    image::make_directory(to)?;
    for name in image.names() {
        let (source, copy) = (from.join(name), to.join(name));
        if name.starts_with(MAP) {
            fs::write(copy, moved(&fs::read(source)?, image.uid_base, uid_base)?)?;
        } else {
            crate::files::link(&source, &copy)?;
        }
    }
    Ok(())
}

/// The same map onto another range of the host's ids. They are varints; those of all our ranges have the same
/// length.
fn moved(map: &[u8], from: u32, to: u32) -> io::Result<Vec<u8>> {
    let strange = || io::Error::other("its image has an unexpected id map");
    if map.len() < HEAD || map.len() > LONGEST_MAP {
        return Err(strange());
    }
    let (old, new) = (varint(from), varint(to));
    // Of an extent: the first id inside, the first on the host, how many.
    let extent = |base: &[u8]| [&[0x08, 0, 0x10], base, &[0x18, 0x80, 0x80, 0x04]].concat();
    let (old, new) = (extent(&old), extent(&new));
    let places: Vec<_> = (HEAD..map.len()).filter(|&at| map[at..].starts_with(&old)).collect();
    if places.len() != 2 || old.len() != new.len() {
        return Err(strange());
    }
    let mut map = map.to_vec();
    for at in places {
        map[at..at + new.len()].copy_from_slice(&new);
    }
    Ok(map)
}

fn varint(mut value: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = u8::try_from(value & 0x7f).unwrap_or_default();
        value >>= 7;
        if value == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As CRIU 4.2 wrote it.
    const WRITTEN: &str = "19435654064947551c0000000a0c0800108080809a0718808004120c0800108080809a0718808004";

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn a_map_moves_to_another_range_and_back() {
        let map = bytes(WRITTEN);
        let there = moved(&map, 0x7340_0000, 0x7001_0000).unwrap();
        assert_ne!(there, map);
        assert_eq!(there.len(), map.len());
        assert_eq!(moved(&there, 0x7001_0000, 0x7340_0000).unwrap(), map);
        assert_eq!(moved(&map, 0x7340_0000, 0x7340_0000).unwrap(), map);
    }

    #[test]
    fn a_map_that_is_not_ours_is_refused() {
        assert!(moved(&bytes(WRITTEN), 0x7000_0000, 0x7001_0000).is_err());
        assert!(moved(&bytes(&WRITTEN[..60]), 0x7340_0000, 0x7001_0000).is_err());
        assert!(moved(b"short", 0x7340_0000, 0x7001_0000).is_err());
    }
}
