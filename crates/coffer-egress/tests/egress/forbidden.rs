//! Refused plain HTTP gets the reason.

use coffer_core::network::Base;
use tokio::io::AsyncWriteExt;

use crate::world::{World, assert_reset, client_hello, end, policy};

/// The answer to a request to port 80 of `to`.
async fn answer(world: &World, to: &str, request: &[u8]) -> String {
    let mut stream = world.connect(to).await;
    stream.write_all(request).await.unwrap();
    String::from_utf8(end(&mut stream).await.unwrap()).unwrap()
}

#[tokio::test]
async fn refused_http_hears_the_rule() {
    // With names in the list the request was read before it was refused; without, it was not.
    for (allow, rule) in [(&["good.com"][..], "deny:0.0.0.0/0"), (&[], "deny:0.0.0.0/0")] {
        let world = World::new(policy(Base::Public, allow, &["0.0.0.0/0"])).await;
        let heard = answer(&world, "1.2.3.4:80", b"GET / HTTP/1.1\r\nHost: bad.com\r\n\r\n").await;
        let (head, body) = heard.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{head}");
        assert!(head.contains(&format!("X-Coffer-Rule: {rule}")), "{head}");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
        assert!(body.contains("bad.com") && body.contains("allow_out"), "{body}");
        assert_eq!(world.rules(1).await, [rule]);
        assert!(world.internet.dialled().is_empty());
    }
    let world = World::new(policy(Base::None, &[], &[])).await;
    let heard = answer(&world, "[2606:4700::1]:80", b"HEAD / HTTP/1.1\r\nHost: bad.com\r\n\r\n").await;
    assert!(heard.contains("X-Coffer-Rule: base:none\r\n") && heard.ends_with("\r\n\r\n"), "{heard}");
    // The answer arrives in spite of an unread body.
    let post = [b"POST / HTTP/1.1\r\nHost: bad.com\r\nContent-Length: 100000\r\n\r\n", &[b'x'; 100_000][..]];
    assert!(answer(&world, "1.2.3.4:80", &post.concat()).await.starts_with("HTTP/1.1 403 "));
}

#[tokio::test]
async fn everything_else_is_reset() {
    let world = World::new(policy(Base::None, &[], &[])).await;
    let request = b"GET / HTTP/1.1\r\nHost: bad.com\r\n\r\n";
    let hello = client_hello("bad.com");
    let cases: [(&str, &[u8]); 6] = [
        ("10.0.0.1:80", request),
        ("169.254.169.254:80", request),
        ("1.2.3.4:81", request),
        ("1.2.3.4:80", &hello),
        ("1.2.3.4:80", b"GET / HTTP/1.1\r\nHost: bad.com\r\nHost: good.com\r\n\r\n"),
        ("1.2.3.4:80", b""),
    ];
    for (to, bytes) in cases {
        let mut stream = world.connect(to).await;
        // It may be reset before all was written.
        let _ = stream.write_all(bytes).await;
        assert_reset(&mut stream).await;
    }
    assert_eq!(world.refusals().len(), cases.len());
}
