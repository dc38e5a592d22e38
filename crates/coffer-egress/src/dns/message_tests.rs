use std::net::Ipv6Addr;

use super::*;
use proptest::prelude::*;

fn host(text: &str) -> HostName {
    text.parse().unwrap()
}

fn wire(name: &str) -> Vec<u8> {
    let labels = name.split('.').filter(|label| !label.is_empty());
    let mut out: Vec<u8> = labels
        .flat_map(|label| [&[u8::try_from(label.len()).unwrap()][..], label.as_bytes()].concat())
        .collect();
    out.push(0);
    out
}

fn record(owner: &[u8], kind: u16, ttl_s: u32, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len()).unwrap().to_be_bytes();
    [owner, &kind.to_be_bytes(), &[0, 1], &ttl_s.to_be_bytes(), &length, data].concat()
}

fn reply(id: u16, flags: u16, name: &str, kind: u16, records: &[Vec<u8>]) -> Vec<u8> {
    let count = u16::try_from(records.len()).unwrap();
    let mut out: Vec<u8> = [id, flags, 1, count, 0, 0].iter().flat_map(|n| n.to_be_bytes()).collect();
    out.extend(wire(name));
    out.extend(kind.to_be_bytes());
    out.extend([0, 1]);
    out.extend(records.concat());
    out
}

#[test]
fn our_own_question_can_be_read_and_its_answer_too() {
    for family in [Family::V4, Family::V6] {
        let query = Query::read(&ask(77, &host("a.example.com"), family)).unwrap();
        assert_eq!(query.name, Some(host("a.example.com")));
        assert_eq!(query.asked, Asked::Addresses(family));
        assert_eq!(query.udp_size(), 1232);
        let addresses: Vec<IpAddr> = match family {
            Family::V4 => vec!["1.1.1.1".parse().unwrap(), "1.0.0.1".parse().unwrap()],
            Family::V6 => vec!["2606:4700::1".parse().unwrap()],
        };
        let answer = query.answer(ResponseCode::NoError, &addresses, 30, query.udp_size());
        assert_eq!(
            read_reply(&answer, 77, &host("a.example.com"), family),
            Some(Reply::Addresses { addresses, ttl_s: 30 })
        );
    }
}

#[test]
fn letter_case_comes_back_as_it_was_sent() {
    let mut message = ask(1, &host("example.com"), Family::V4);
    message[13] = b'E';
    message[15] = b'A';
    let query = Query::read(&message).unwrap();
    assert_eq!(query.name, Some(host("example.com")));
    let answer = query.empty_answer(ResponseCode::Refused);
    assert_eq!(answer[12..message.len() - 11], message[12..message.len() - 11]);
    assert_eq!(answer[3] & 15, 5);
}

#[test]
fn an_answer_fits_or_says_that_it_does_not() {
    let mut message = ask(1, &host("example.com"), Family::V6);
    // If the client states no size, the limit is 512 bytes.
    message.truncate(message.len() - 11);
    message[11] = 0;
    let query = Query::read(&message).unwrap();
    assert_eq!(query.udp_size(), 512);
    let addresses: Vec<IpAddr> =
        (0..30u16).map(|n| Ipv6Addr::new(0x2606, 0, 0, 0, 0, 0, 0, n).into()).collect();
    let answer = query.answer(ResponseCode::NoError, &addresses, 1, 512);
    assert!(answer.len() <= 512 && answer.len() > 450, "{}", answer.len());
    assert_eq!(read_reply(&answer, 1, &host("example.com"), Family::V6), Some(Reply::Truncated));
    let whole = query.answer(ResponseCode::NoError, &addresses, 1, usize::MAX);
    assert_eq!(
        read_reply(&whole, 1, &host("example.com"), Family::V6),
        Some(Reply::Addresses { addresses, ttl_s: 1 })
    );
}

#[test]
fn what_is_no_question_gets_an_error_or_silence() {
    let good = ask(5, &host("a.com"), Family::V4);
    let changed = |at: usize, byte: u8| {
        let mut message = good.clone();
        message[at] = byte;
        Query::read(&message)
    };
    let code = |result: Result<Query, NoQuery>| match result {
        Err(NoQuery::Answer(answer)) => answer[3] & 15,
        other => panic!("{other:?}"),
    };
    assert_eq!(Query::read(&[]), Err(NoQuery::Ignore));
    assert_eq!(Query::read(&good[..11]), Err(NoQuery::Ignore));
    assert_eq!(changed(2, 0x81), Err(NoQuery::Ignore), "an answer");
    assert_eq!(code(changed(2, 0x29)), 4, "an update");
    assert_eq!(code(changed(5, 0)), 1, "no question");
    assert_eq!(code(changed(5, 2)), 1, "two questions");
    assert_eq!(code(changed(12, 0xc0)), 1, "a pointer");
    assert_eq!(code(changed(12, 64)), 1, "a label too long");
    assert_eq!(code(changed(6, 0xff)), 1, "65,280 answers");
    for end in 12..good.len() {
        assert_eq!(code(Query::read(&good[..end])), 1, "{end}");
    }
    let long = [&good[..12], &wire(&"abcdefg.".repeat(32)), &[0, 1, 0, 1]].concat();
    assert_eq!(code(Query::read(&long)), 1, "a name too long");
}

#[test]
fn a_name_that_no_host_has_is_no_name() {
    for name in [&b"\x04a.co"[..], b"\x03a\0b", b"\x03\xffab", b"", b"\x03127\x010\x010\x011"] {
        let mut message = ask(5, &host("x.com"), Family::V4)[..12].to_vec();
        message[11] = 0;
        message.extend(name);
        message.extend([0, 0, 1, 0, 1]);
        assert_eq!(Query::read(&message).unwrap().name, None, "{name:?}");
    }
}

#[test]
fn other_records_and_classes_are_known_as_other() {
    for (kind, class) in [(65, 1), (15, 1), (16, 1), (255, 1), (1, 3)] {
        let mut message = ask(5, &host("x.com"), Family::V4);
        let at = message.len() - 11;
        message[at - 3] = kind;
        message[at - 1] = class;
        assert_eq!(Query::read(&message).unwrap().asked, Asked::Other);
    }
}

#[test]
fn aliases_are_followed_and_strangers_left_out() {
    let question = [0xc0, 12];
    let alias = record(&question, 5, 60, &wire("cdn.net"));
    let address = |owner: &[u8], last: u8| record(owner, 1, 20, &[1, 1, 1, last]);
    let message = reply(
        9,
        0x8180,
        "a.com",
        1,
        &[
            alias,
            address(&wire("evil.com"), 9),
            address(&wire("CDN.net"), 1),
            address(&wire("cdn.net"), 2),
            address(&question, 8),
        ],
    );
    let expected = Reply::Addresses {
        addresses: vec!["1.1.1.1".parse().unwrap(), "1.1.1.2".parse().unwrap()],
        ttl_s: 20,
    };
    assert_eq!(read_reply(&message, 9, &host("a.com"), Family::V4), Some(expected));
}

#[test]
fn a_reply_to_another_question_is_none() {
    let message = reply(9, 0x8180, "a.com", 1, &[]);
    assert!(read_reply(&message, 9, &host("a.com"), Family::V4).is_some());
    assert_eq!(read_reply(&message, 8, &host("a.com"), Family::V4), None);
    assert_eq!(read_reply(&message, 9, &host("b.com"), Family::V4), None);
    assert_eq!(read_reply(&message, 9, &host("a.com"), Family::V6), None);
    assert_eq!(read_reply(&reply(9, 0x0180, "a.com", 1, &[]), 9, &host("a.com"), Family::V4), None);
}

#[test]
fn errors_of_a_resolver_are_told_apart() {
    let read = |flags| read_reply(&reply(9, flags, "a.com", 1, &[]), 9, &host("a.com"), Family::V4).unwrap();
    assert_eq!(read(0x8183), Reply::NoSuchName);
    assert_eq!(read(0x8182), Reply::Failed);
    assert_eq!(read(0x8185), Reply::Failed);
    assert_eq!(read(0x8380), Reply::Truncated);
    assert_eq!(read(0x8180), Reply::Addresses { addresses: vec![], ttl_s: u32::MAX });
}

#[test]
fn pointers_that_loop_or_lead_forward_fail() {
    for pointer in [[0xc0, 23], [0xc0, 40], [0xff, 0xff]] {
        let message = reply(9, 0x8180, "a.com", 1, &[record(&pointer, 1, 1, &[1, 1, 1, 1])]);
        assert_eq!(read_reply(&message, 9, &host("a.com"), Family::V4), Some(Reply::Failed), "{pointer:?}");
    }
    let odd = reply(9, 0x8180, "a.com", 1, &[record(&[0xc0, 12], 1, 1, &[1, 1, 1])]);
    assert_eq!(read_reply(&odd, 9, &host("a.com"), Family::V4), Some(Reply::Failed));
}

proptest! {
    #[test]
    fn no_message_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300), id: u16) {
        let _ = Query::read(&bytes);
        let _ = read_reply(&bytes, id, &host("a.com"), Family::V4);
    }

    #[test]
    fn no_damaged_message_panics(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6), size in 0usize..600,
    ) {
        let records = [record(&[0xc0, 12], 5, 60, &[1, b'b', 0xc0, 14]), record(&wire("b.com"), 28, 20, &[7; 16])];
        for mut message in [reply(9, 0x8180, "a.com", 28, &records), ask(9, &host("a.com"), Family::V6)] {
            for (at, byte) in &changes {
                let at = at.index(message.len());
                message[at] = *byte;
            }
            let _ = read_reply(&message, 9, &host("a.com"), Family::V6);
            if let Ok(query) = Query::read(&message) {
                let answer = query.answer(ResponseCode::NoError, &["::1".parse().unwrap(); 20], 1, size);
                prop_assert!(answer.len() <= size.max(12 + 255 + 4 + 11));
            }
        }
    }

    #[test]
    fn every_host_name_survives_the_wire(name in "[a-z0-9_]{1,20}(\\.[a-z][a-z0-9]{0,20}){1,4}") {
        let query = Query::read(&ask(1, &host(&name), Family::V4)).unwrap();
        prop_assert_eq!(query.name, Some(host(&name)));
    }
}
