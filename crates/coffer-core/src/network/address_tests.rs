use super::*;
use crate::network::{Block, Mirror, Walls};
use proptest::prelude::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Every row of IANA's IPv4 and IPv6 special-purpose registries, and of the multicast ones.
///
/// Those marked public are services that the registries call globally reachable and that are ordinary hosts
/// for us; all others are unreachable, including the few reachable protocol assignments.
const REGISTRIES: &[(&str, Class)] = &[
    ("0.0.0.0/8", Class::Reserved),
    ("0.0.0.0/32", Class::Unspecified),
    ("10.0.0.0/8", Class::Private),
    ("100.64.0.0/10", Class::CarrierShared),
    ("127.0.0.0/8", Class::Loopback),
    ("169.254.0.0/16", Class::LinkLocal),
    ("172.16.0.0/12", Class::Private),
    ("192.0.0.0/24", Class::Reserved),
    ("192.0.0.0/29", Class::Reserved),
    ("192.0.0.8/32", Class::Reserved),
    ("192.0.0.9/32", Class::Reserved),
    ("192.0.0.10/32", Class::Reserved),
    ("192.0.0.170/32", Class::Reserved),
    ("192.0.0.171/32", Class::Reserved),
    ("192.0.2.0/24", Class::Documentation),
    ("192.31.196.0/24", Class::Public),
    ("192.52.193.0/24", Class::Public),
    ("192.88.99.0/24", Class::Transition),
    ("192.168.0.0/16", Class::Private),
    ("192.175.48.0/24", Class::Public),
    ("198.18.0.0/15", Class::Benchmarking),
    ("198.51.100.0/24", Class::Documentation),
    ("203.0.113.0/24", Class::Documentation),
    ("224.0.0.0/4", Class::Multicast),
    ("240.0.0.0/4", Class::Reserved),
    ("255.255.255.255/32", Class::Broadcast),
    ("::1/128", Class::Loopback),
    ("::/128", Class::Unspecified),
    ("64:ff9b:1::/48", Class::Transition),
    ("100::/64", Class::Reserved),
    ("100:0:0:1::/64", Class::Reserved),
    ("2001::/23", Class::Reserved),
    ("2001::/32", Class::Transition),
    ("2001:1::1/128", Class::Reserved),
    ("2001:1::2/128", Class::Reserved),
    ("2001:1::3/128", Class::Reserved),
    ("2001:2::/48", Class::Benchmarking),
    ("2001:3::/32", Class::Reserved),
    ("2001:4:112::/48", Class::Reserved),
    ("2001:10::/28", Class::Reserved),
    ("2001:20::/28", Class::Reserved),
    ("2001:30::/28", Class::Reserved),
    ("2001:db8::/32", Class::Documentation),
    ("2002::/16", Class::Transition),
    ("2620:4f:8000::/48", Class::Public),
    ("3fff::/20", Class::Documentation),
    ("5f00::/16", Class::Reserved),
    ("fc00::/7", Class::UniqueLocal),
    ("fe80::/10", Class::LinkLocal),
    ("fec0::/10", Class::SiteLocal),
    ("ff00::/8", Class::Multicast),
];

fn first_and_last(block: &str) -> (IpAddr, IpAddr) {
    let (address, length) = block.split_once('/').unwrap();
    let length: u32 = length.parse().unwrap();
    match ip(address) {
        IpAddr::V4(v4) => {
            let host = u32::MAX.checked_shr(length).unwrap_or(0);
            (IpAddr::V4(v4), IpAddr::V4((v4.to_bits() | host).into()))
        }
        IpAddr::V6(v6) => {
            let host = u128::MAX.checked_shr(length).unwrap_or(0);
            (IpAddr::V6(v6), IpAddr::V6((v6.to_bits() | host).into()))
        }
    }
}

/// The class of the narrowest registry row that contains `address`.
fn registered(address: IpAddr) -> Option<Class> {
    let length = |row: &str| row.split_once('/').unwrap().1.parse::<u8>().unwrap();
    REGISTRIES
        .iter()
        .filter(|(row, _)| row.parse::<Block>().unwrap().contains(address))
        .max_by_key(|(row, _)| length(row))
        .map(|(_, class)| *class)
}

#[test]
fn the_registries_hold_at_both_ends_of_every_row() {
    for (row, _) in REGISTRIES {
        let (first, last) = first_and_last(row);
        for address in [first, last] {
            assert_eq!(Some(classify(address)), registered(address), "{address} of {row}");
        }
    }
}

#[test]
fn the_neighbours_of_every_row_belong_to_another() {
    let step = |address: IpAddr, by: i8| match address {
        IpAddr::V4(v4) => v4.to_bits().checked_add_signed(by.into()).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(v6) => v6.to_bits().checked_add_signed(by.into()).map(|bits| IpAddr::V6(bits.into())),
    };
    for (row, _) in REGISTRIES {
        let (first, last) = first_and_last(row);
        for address in [step(first, -1), step(last, 1)].into_iter().flatten() {
            let expected = match (registered(address), address) {
                (Some(class), _) => class,
                (None, IpAddr::V4(_)) => Class::Public,
                (None, IpAddr::V6(v6)) if v6.segments()[0] >> 13 == 1 => Class::Public,
                // Right after ::1 begin the IPv4-compatible addresses; the rest of IPv6 is not allocated.
                (None, IpAddr::V6(v6)) if v6.to_bits() < 1 << 32 => Class::Transition,
                (None, IpAddr::V6(_)) => Class::Reserved,
            };
            assert_eq!(classify(address), expected, "{address} beside {row}");
        }
    }
}

#[test]
fn metadata_services_are_known_by_name() {
    for text in [
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "::ffff:a9fe:a9fe",
        "64:ff9b::169.254.169.254",
        "169.254.170.2",
        "fd00:ec2::254",
        "fd20:ce::254",
        "fd00:c1::a9fe:a9fe",
        "100.100.100.200",
        "192.0.0.192",
        "168.63.129.16",
    ] {
        assert_eq!(classify(ip(text)), Class::Metadata, "{text}");
    }
}

#[test]
fn ordinary_addresses_are_public() {
    for text in [
        "1.1.1.1",
        "8.8.8.8",
        "140.82.121.4",
        "172.15.255.255",
        "172.32.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "11.0.0.0",
        "223.255.255.255",
        "2606:4700::1111",
        "2a00:1450::1",
        "2001:200::1",
        "2001:4860:4860::8888",
        "64:ff9b::1.1.1.1",
        "::ffff:1.1.1.1",
        "3ffe::1",
        "2400::1",
    ] {
        assert_eq!(classify(ip(text)), Class::Public, "{text}");
    }
}

#[test]
fn private_ipv4_inside_ipv6_stays_out_of_reach() {
    for v4 in
        ["127.0.0.1", "10.0.0.1", "169.254.169.254", "192.168.1.1", "0.0.0.0", "224.0.0.1", "100.64.0.1"]
    {
        let [a, b, c, d] = v4.parse::<Ipv4Addr>().unwrap().octets();
        let hex = format!("{a:02x}{b:02x}:{c:02x}{d:02x}");
        let flipped = format!("{:02x}{:02x}:{:02x}{:02x}", !a, !b, !c, !d);
        for text in [
            format!("::ffff:{v4}"),
            format!("::{v4}"),
            format!("::ffff:0:{v4}"),
            format!("64:ff9b::{v4}"),
            format!("64:ff9b:1::{v4}"),
            format!("2002:{hex}::1"),
            format!("2001:0:4136:e378:8000:63bf:{flipped}"),
            format!("2001:0:{hex}:8000:63bf:3fff:fdd2"),
            format!("2606:4700::5efe:{hex}"),
            format!("2606:4700::200:5efe:{hex}"),
            format!("fe80::5efe:{hex}"),
        ] {
            assert_ne!(classify(ip(&text)), Class::Public, "{text}");
        }
    }
}

#[test]
fn only_the_full_form_is_read_from_text() {
    for text in [
        "127.1",
        "127.0.1",
        "2130706433",
        "0x7f.0.0.1",
        "0x7f000001",
        "0177.0.0.1",
        "010.0.0.1",
        "127.0.0.01",
        "127.0.0.1.",
        " 127.0.0.1",
        "127.0.0.1\n",
        "127.0.0.1:80",
        "[::1]",
        "fe80::1%eth0",
        "fe80::1%1",
        "::1/128",
        "1.2.3.4.5",
        "256.0.0.1",
        ":::1",
        "1::2::3",
        "",
        "١٢٧.٠.٠.١",
        "127。0。0。1",
    ] {
        assert_eq!(parse_address(text), None, "{text:?}");
    }
    assert_eq!(parse_address("0:0:0:0:0:FFFF:7F00:1").map(classify), Some(Class::Loopback));
}

#[test]
fn the_machine_itself_is_out_of_reach_in_every_spelling() {
    let walls = Walls::new([ip("8.8.4.4"), ip("2606:4700::7"), ip("::ffff:9.9.9.9")]);
    for text in ["8.8.4.4", "::ffff:8.8.4.4", "64:ff9b::8.8.4.4", "2606:4700:0:0::7", "9.9.9.9"] {
        assert_eq!(walls.pass(ip(text)), Err(Class::Host), "{text}");
    }
    assert_eq!(walls.pass(ip("::ffff:8.8.8.8")), Ok(ip("8.8.8.8")));
}

#[test]
fn a_host_of_the_site_s_own_may_be_private_but_not_where_credentials_are() {
    for text in ["10.1.2.3", "192.168.0.1", "127.0.0.1", "100.64.0.1", "fd12::1", "::1", "8.8.8.8"] {
        assert_eq!(pass_on_site(ip(text)), Ok(ip(text)));
    }
    assert_eq!(pass_on_site(ip("::ffff:10.0.0.1")), Ok(ip("10.0.0.1")));
    for text in
        ["169.254.169.254", "100.100.100.200", "169.254.1.1", "0.0.0.0", "224.0.0.1", "fe80::1", "192.0.2.80"]
    {
        assert!(pass_on_site(ip(text)).is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn normalising_twice_changes_nothing(bits: u128) {
        let once = normalise(IpAddr::V6(bits.into()));
        prop_assert_eq!(normalise(once), once);
        prop_assert_eq!(classify(once), classify(IpAddr::V6(bits.into())));
    }

    #[test]
    fn every_ipv4_has_one_class_by_any_spelling(bits: u32) {
        let v4 = Ipv4Addr::from_bits(bits);
        let class = classify(IpAddr::V4(v4));
        prop_assert_eq!(classify(IpAddr::V6(v4.to_ipv6_mapped())), class);
        let nat64 = Ipv6Addr::from_bits(0x64_ff9b << 96 | u128::from(bits));
        prop_assert_eq!(classify(IpAddr::V6(nat64)), class);
        prop_assert!(registered(IpAddr::V4(v4)).is_none_or(|known| known == class || class == Class::Metadata));
        let std_private = v4.is_private() || v4.is_loopback() || v4.is_link_local() || v4.is_multicast()
            || v4.is_broadcast() || v4.is_documentation() || v4.is_unspecified();
        prop_assert!(!(std_private && class == Class::Public));
    }

    #[test]
    fn ipv6_outside_the_public_eighth_is_never_public(bits: u128) {
        let address = Ipv6Addr::from_bits(bits);
        if classify(IpAddr::V6(address)) == Class::Public && normalise(IpAddr::V6(address)).is_ipv6() {
            prop_assert_eq!(bits >> 125, 1);
        }
    }
}

#[test]
fn a_mirror_may_be_private_but_this_machine_only_by_its_address() {
    let walls = Walls::new(["10.0.0.9", "198.41.0.4"].map(|own| own.parse().unwrap()));
    let by_name = Mirror { name: "m.test".parse().unwrap(), ports: [80].into(), address: None };
    let by_address = Mirror { address: "127.0.0.1".parse().ok(), ..by_name.clone() };
    for (address, named, addressed) in [
        ("1.1.1.1", "1.1.1.1", "1.1.1.1"),
        ("10.0.0.1", "10.0.0.1", "10.0.0.1"),
        ("::ffff:192.168.0.1", "192.168.0.1", "192.168.0.1"),
        ("100.64.0.1", "100.64.0.1", "100.64.0.1"),
        ("fd00::1", "fd00::1", "fd00::1"),
        ("203.0.113.7", "203.0.113.7", "203.0.113.7"),
        ("2001:db8::7", "2001:db8::7", "2001:db8::7"),
        ("10.0.0.9", "host", "10.0.0.9"),
        ("198.41.0.4", "host", "198.41.0.4"),
        ("127.0.0.1", "loopback", "127.0.0.1"),
        ("::1", "loopback", "::1"),
        ("169.254.169.254", "metadata", "metadata"),
        ("100.100.100.200", "metadata", "metadata"),
        ("fd00:ec2::254", "metadata", "metadata"),
        ("169.254.1.1", "link-local", "link-local"),
        ("fe80::1", "link-local", "link-local"),
        ("0.0.0.0", "unspecified", "unspecified"),
        ("198.19.0.1", "benchmarking", "benchmarking"),
        ("2002:a00:1::", "transition", "transition"),
    ] {
        let passed = |mirror| match walls.pass_mirror(mirror, address.parse().unwrap()) {
            Ok(address) => address.to_string(),
            Err(class) => class.to_string(),
        };
        assert_eq!(
            (passed(&by_name).as_str(), passed(&by_address).as_str()),
            (named, addressed),
            "{address}"
        );
    }
}
