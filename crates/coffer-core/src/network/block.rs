//! Blocks of addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::{normalise, parse_address};

/// A CIDR block. The bits after its length are zero, so equal blocks compare equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Block {
    first: IpAddr,
    length: u8,
}

/// The text is neither an address nor a block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an address or CIDR block")]
pub struct BadBlock;

impl Block {
    /// Every IPv4 address.
    pub const ALL_V4: Self = Self { first: IpAddr::V4(Ipv4Addr::UNSPECIFIED), length: 0 };
    /// Every IPv6 address.
    pub const ALL_V6: Self = Self { first: IpAddr::V6(Ipv6Addr::UNSPECIFIED), length: 0 };

    /// Creates the block of `length` leading bits that contains `address`.
    ///
    /// A block of IPv4-mapped addresses becomes the corresponding IPv4 block, because addresses are compared
    /// in that form.
    pub fn new(address: IpAddr, length: u8) -> Result<Self, BadBlock> {
        if length > width(address) {
            return Err(BadBlock);
        }
        if let (IpAddr::V6(_), plain @ IpAddr::V4(_)) = (address, normalise(address))
            && length >= 96
        {
            return Self::new(plain, length - 96);
        }
        let first = match address {
            IpAddr::V4(v4) => IpAddr::V4(Ipv4Addr::from_bits(leading_v4(v4, length))),
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(leading_v6(v6, length))),
        };
        Ok(Self { first, length })
    }

    /// Returns whether `address`, normalised first, is in the block.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.first, normalise(address)) {
            (IpAddr::V4(first), IpAddr::V4(v4)) => leading_v4(v4, self.length) == first.to_bits(),
            (IpAddr::V6(first), IpAddr::V6(v6)) => leading_v6(v6, self.length) == first.to_bits(),
            _ => false,
        }
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn leading_v4(address: Ipv4Addr, length: u8) -> u32 {
    address.to_bits() & u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0)
}

fn leading_v6(address: Ipv6Addr, length: u8) -> u128 {
    address.to_bits() & u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

impl FromStr for Block {
    type Err = BadBlock;

    fn from_str(text: &str) -> Result<Self, BadBlock> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address = parse_address(address).ok_or(BadBlock)?;
        let length = match length {
            None => width(address),
            // `parse` would also accept "+8" and "008".
            Some(digits)
                if digits.len() <= 3
                    && digits.bytes().all(|b| b.is_ascii_digit())
                    && (digits.len() == 1 || !digits.starts_with('0')) =>
            {
                digits.parse().map_err(|_| BadBlock)?
            }
            Some(_) => return Err(BadBlock),
        };
        Self::new(address, length)
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.length == width(self.first) {
            return write!(f, "{}", self.first);
        }
        write!(f, "{}/{}", self.first, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block(text: &str) -> Block {
        text.parse().unwrap()
    }

    #[test]
    fn blocks_hold_what_they_say() {
        for (text, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("10.1.2.3", "10.1.2.3", "10.1.2.4"),
            ("0.0.0.0/0", "255.255.255.255", "::1"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::"),
            ("::/0", "2001:db8::1", "1.2.3.4"),
            ("::ffff:10.0.0.0/104", "10.9.9.9", "11.0.0.0"),
            ("10.0.0.0/8", "::ffff:10.0.0.1", "::ffff:11.0.0.1"),
        ] {
            assert!(block(text).contains(inside.parse().unwrap()), "{text} {inside}");
            assert!(!block(text).contains(outside.parse().unwrap()), "{text} {outside}");
        }
    }

    #[test]
    fn host_bits_do_not_matter() {
        assert_eq!(block("10.1.2.3/8"), block("10.0.0.0/8"));
        assert_eq!(block("1.2.3.4/32").to_string(), "1.2.3.4");
        assert_eq!(block("2001:db8::1/64").to_string(), "2001:db8::/64");
    }

    #[test]
    fn odd_spellings_are_refused() {
        for text in [
            "",
            "/8",
            "10.0.0.0/",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/+8",
            "10.0.0.0/08",
            "10.0.0.0/8/8",
            "10/8",
            "010.0.0.0/8",
            "0x0a.0.0.0",
            "10.1",
            "167772160",
            "fe80::1%eth0",
            "[::1]",
            " 10.0.0.1",
            "10.0.0.1 ",
        ] {
            assert_eq!(text.parse::<Block>(), Err(BadBlock), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_block_holds_its_address_and_survives_text(bits: u128, v4: bool, length in 0u8..=128) {
            #[expect(clippy::cast_possible_truncation, reason = "any 32 bits will do")]
            let address =
                if v4 { IpAddr::V4((bits as u32).into()) } else { IpAddr::V6(bits.into()) };
            let length = length.min(width(address));
            let block = Block::new(address, length).unwrap();
            // A mapped IPv6 block shorter than 96 contains no IPv4.
            if normalise(address).is_ipv4() == block.first.is_ipv4() {
                prop_assert!(block.contains(address));
            }
            prop_assert_eq!(block.to_string().parse::<Block>(), Ok(block));
        }
    }
}
