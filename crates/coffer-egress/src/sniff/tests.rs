use super::*;
use proptest::prelude::*;

fn block8(bytes: &[u8]) -> Vec<u8> {
    [&[u8::try_from(bytes.len()).unwrap()][..], bytes].concat()
}

fn block16(bytes: &[u8]) -> Vec<u8> {
    [&u16::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat()
}

fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &block16(body)].concat()
}

fn names(kind: u8, name: &[u8]) -> Vec<u8> {
    extension(0, &block16(&[&[kind][..], &block16(name)].concat()))
}

/// A ClientHello message with these extensions.
fn message(extensions: &[Vec<u8>]) -> Vec<u8> {
    let body = [
        &[3, 3][..],
        &[7; 32],
        &block8(&[9; 32]),
        &block16(&[0x0a, 0x0a, 0x13, 0x01, 0x13, 0x02]),
        &block8(&[0]),
        &block16(&extensions.concat()),
    ]
    .concat();
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[1][..], &length[1..], &body].concat()
}

fn records(message: &[u8], piece: usize) -> Vec<u8> {
    message.chunks(piece).flat_map(|part| [&[22, 3, 1][..], &block16(part)].concat()).collect()
}

/// GREASE, an encrypted hello, supported versions and a large key share, as browsers send them.
fn browser(name: &str) -> Vec<Vec<u8>> {
    vec![
        extension(0x2a2a, &[]),
        extension(0xfe0d, &[1; 250]),
        names(0, name.as_bytes()),
        extension(51, &[5; 1216]),
        extension(43, &[6, 0xda, 0xda, 3, 4, 3, 3]),
        extension(0xfafa, &[0]),
    ]
}

fn sniff(bytes: &[u8]) -> Sniffed {
    Sniffer::default().push(bytes)
}

fn name(text: &str) -> Sniffed {
    Sniffed::Name(text.parse().unwrap())
}

#[test]
fn the_name_of_a_hello_is_read() {
    assert_eq!(sniff(&records(&message(&browser("Example.COM")), 16384)), name("example.com"));
}

#[test]
fn a_hello_may_be_cut_into_many_records() {
    let message = message(&browser("example.com"));
    for piece in [1, 2, 3, 5, 100, 1000] {
        assert_eq!(sniff(&records(&message, piece)), name("example.com"), "{piece}");
    }
}

#[test]
fn no_beginning_of_a_hello_has_a_name() {
    for piece in [7, 16384] {
        let whole = records(&message(&browser("example.com")), piece);
        for end in 0..whole.len() {
            assert!(
                matches!(sniff(&whole[..end]), Sniffed::Unfinished { at_least } if at_least > end && at_least <= whole.len()),
                "{end}"
            );
        }
    }
}

#[test]
fn what_follows_a_hello_does_not_matter() {
    let mut bytes = records(&message(&browser("example.com")), 16384);
    bytes.extend([20, 3, 3, 0, 1, 1, 23, 3]);
    assert_eq!(sniff(&bytes), name("example.com"));
}

#[test]
fn a_doubtful_hello_has_no_name() {
    let two_names =
        extension(0, &block16(&[&[0][..], &block16(b"a.com"), &[0], &block16(b"b.com")].concat()));
    let mut trailing = message(&browser("a.com"));
    trailing.push(0);
    trailing[3] = trailing[3].wrapping_add(1);
    let mut server_hello = message(&browser("a.com"));
    server_hello[0] = 2;
    for (what, message) in [
        ("no extensions", message(&[])),
        ("no server name", message(&[extension(43, &[2, 3, 4])])),
        ("empty server name", message(&[extension(0, &[])])),
        ("two extensions", message(&[names(0, b"a.com"), names(0, b"b.com")])),
        ("the same twice", message(&[names(0, b"a.com"), names(0, b"a.com")])),
        ("two names", message(&[two_names])),
        ("another kind of name", message(&[names(1, b"a.com")])),
        ("an address", message(&[names(0, b"127.0.0.1")])),
        ("a number", message(&[names(0, b"2130706433")])),
        ("an IPv6 address", message(&[names(0, b"::1")])),
        ("a zero byte", message(&[names(0, b"a.com\0.b.com")])),
        ("not text", message(&[names(0, b"\xff\xfe")])),
        ("a list shorter than it says", message(&[extension(0, &[0, 9, 0, 0, 1, b'a'])])),
        ("an extension longer than the rest", message(&[vec![0, 0, 0xff, 0xff, 1]])),
        ("bytes after the extensions", trailing),
        ("a server's hello", server_hello),
    ] {
        assert_eq!(sniff(&records(&message, 16384)), Sniffed::Nameless, "{what}");
    }
    let good = records(&message(&browser("a.com")), 16384);
    for (at, byte, what) in [(1, 2, "version"), (3, 0xff, "a record too long")] {
        let mut bytes = good.clone();
        bytes[at] = byte;
        assert_eq!(sniff(&bytes), Sniffed::Nameless, "{what}");
    }
    assert_eq!(sniff(&[22, 3, 1, 0, 0]), Sniffed::Nameless, "an empty record");
    assert_eq!(sniff(&[22, 3, 1, 0, 4, 1, 0xff, 0xff, 0xff]), Sniffed::Nameless, "a hello of 16 MiB");
    let mut mixed = records(&message(&browser("a.com")), 100);
    mixed[105] = 23;
    assert_eq!(sniff(&mixed), Sniffed::Nameless, "application data amid the hello");
}

#[test]
fn a_hello_without_end_is_given_up() {
    let mut sniffer = Sniffer::default();
    let header = [22, 3, 1, 0, 5, 1, 0, 0x7f, 0x00, 0];
    assert!(matches!(sniffer.push(&header), Sniffed::Unfinished { .. }));
    let mut last = Sniffed::Nameless;
    for _ in 0..MOST_BYTES {
        last = sniffer.push(&[22, 3, 1, 0, 1, 0]);
        if last == Sniffed::Nameless {
            break;
        }
    }
    assert_eq!(last, Sniffed::Nameless);
    assert!(sniffer.into_bytes().len() <= MOST_BYTES + 6);
}

#[test]
fn the_host_of_a_request_is_read() {
    for (head, host) in [
        ("GET / HTTP/1.1\r\nHost: Example.com\r\n\r\n", "example.com"),
        (
            "POST /a?b=c:d HTTP/1.1\r\nA: b\r\nhOsT:example.com:8080 \r\n\r\nHost: b.com\r\n\r\n",
            "example.com",
        ),
        ("M-SEARCH * HTTP/1.1\r\nHost: example.com.\r\n\r\n", "example.com"),
        ("GET http://example.com/x HTTP/1.1\r\nHost: example.com\r\n\r\n", "example.com"),
        ("GET http://EXAMPLE.com:80?x HTTP/1.0\r\nHost: example.com\r\n\r\n", "example.com"),
        ("GET / HTTP/1.1\r\nEmpty:\r\nTab:\ta\tb\r\nHost: a_b.example\r\n\r\n", "a_b.example"),
    ] {
        assert_eq!(sniff(head.as_bytes()), name(host), "{head:?}");
        let end = head.find("\r\n\r\n").unwrap() + 4;
        for cut in 0..end {
            assert!(matches!(sniff(&head.as_bytes()[..cut]), Sniffed::Unfinished { .. }), "{head:?} {cut}");
        }
    }
}

#[test]
fn a_doubtful_request_has_no_name() {
    for head in [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost:\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.com\r\nHost: b.com\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.com\r\nhost: a.com\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : a.com\r\n\r\n",
        "GET / HTTP/1.1\r\n Host: a.com\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.com\r\n folded\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.com\nHost: b.com\r\n\r\n",
        "GET / HTTP/1.1\nHost: a.com\n\r\n\r\n",
        "GET / HTTP/1.1\r\nX: \rHost: b.com\r\nHost: a.com\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.com, b.com\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.com@b.com\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: u:p@b.com\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.com:80:90\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: [::1]\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 0x7f.1\r\n\r\n",
        "GET / HTTP/1.1\r\nno colon\r\nHost: a.com\r\n\r\n",
        "GET / HTTP/2.0\r\nHost: a.com\r\n\r\n",
        "GET / HTTP/1.1 x\r\nHost: a.com\r\n\r\n",
        "GET /\r\nHost: a.com\r\n\r\n",
        "GET http://b.com/ HTTP/1.1\r\nHost: a.com\r\n\r\n",
        "GET http://a.com@b.com/ HTTP/1.1\r\nHost: a.com\r\n\r\n",
        "GET b.com HTTP/1.1\r\nHost: a.com\r\n\r\n",
        "CONNECT a.com:443 HTTP/1.1\r\nHost: a.com\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "SSH-2.0-OpenSSH_9.2\r\n",
        "get / HTTP/1.1\r\nHost: a.com\r\n\r\n",
        "ABCDEFGHIJKLMNOPQRSTUVWXYZ / HTTP/1.1\r\nHost: a.com\r\n\r\n",
        "\r\nGET / HTTP/1.1\r\nHost: a.com\r\n\r\n",
        "\0",
        "EHLO\r\n",
    ] {
        assert_eq!(sniff(head.as_bytes()), Sniffed::Nameless, "{head:?}");
    }
}

#[test]
fn a_head_without_end_is_given_up() {
    let mut sniffer = Sniffer::default();
    sniffer.push(b"GET / HTTP/1.1\r\nHost: a.com\r\n");
    let mut pushed = 0;
    while sniffer.push(b"X: y\r\n") != Sniffed::Nameless {
        pushed += 1;
        assert!(pushed < MOST_BYTES);
    }
    assert_eq!(sniffer.room(), 0);
    assert_eq!(sniffer.push(b"\r\n"), Sniffed::Nameless, "an answer does not change");
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        sniff(&bytes);
    }

    #[test]
    fn no_damaged_hello_panics_or_gains_another_name(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8), piece in 1usize..400,
    ) {
        let mut bytes = records(&message(&browser("example.com")), piece);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        // A changed letter makes another name of the same length, nothing longer.
        if let Sniffed::Name(name) = sniff(&bytes) {
            prop_assert!(name.as_str().len() <= "example.com".len());
        }
    }

    #[test]
    fn no_damaged_request_panics(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = b"GET http://example.com/a HTTP/1.1\r\nAccept: */*\r\nHost: example.com\r\n\r\n".to_vec();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        sniff(&bytes);
    }

    #[test]
    fn pieces_and_the_whole_read_alike(
        tls: bool, bytes in proptest::collection::vec(any::<u8>(), 0..80),
        cuts in proptest::collection::vec(1usize..200, 1..40),
        change in proptest::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let mut whole = if tls {
            records(&message(&browser("example.com")), 300)
        } else {
            b"GET / HTTP/1.1\r\nAccept: */*\r\nHost: example.com\r\n\r\n".to_vec()
        };
        if let Some((at, byte)) = change {
            let at = at.index(whole.len());
            whole[at] = byte;
        }
        whole.extend(&bytes);
        let mut sniffer = Sniffer::default();
        let mut rest = &whole[..];
        let mut last = sniffer.push(&[]);
        for cut in cuts.iter().cycle() {
            let (piece, after) = rest.split_at((*cut).min(rest.len()));
            last = sniffer.push(piece);
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(last, sniff(&whole));
        prop_assert_eq!(sniffer.into_bytes(), whole);
    }
}
