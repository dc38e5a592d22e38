//! The resolver client, against fake resolvers.

use std::net::SocketAddr;
use std::time::Duration;

use coffer_core::network::HostName;
use coffer_egress::{Family, LookupError, Resolver, Upstream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinHandle;

const QUICK: Duration = Duration::from_millis(300);

/// The question of a message, without the header and what follows.
fn question(message: &[u8]) -> &[u8] {
    let name = message[12..].iter().position(|byte| *byte == 0).unwrap();
    &message[12..12 + name + 5]
}

/// An answer of IPv4 addresses.
fn answer(message: &[u8], flags: u16, addresses: &[[u8; 4]]) -> Vec<u8> {
    let count = u16::try_from(addresses.len()).unwrap();
    let mut out = message[..2].to_vec();
    out.extend([flags, 1, count, 0, 0].iter().flat_map(|n| n.to_be_bytes()));
    out.extend(question(message));
    for address in addresses {
        out.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 90, 0, 4]);
        out.extend(address);
    }
    out
}

/// A resolver that answers each UDP question with `replies(question)`.
async fn server(replies: fn(&[u8]) -> Vec<Vec<u8>>) -> (SocketAddr, JoinHandle<()>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let mut buffer = [0; 2048];
        loop {
            let (length, asker) = socket.recv_from(&mut buffer).await.unwrap();
            for reply in replies(&buffer[..length]) {
                socket.send_to(&reply, asker).await.unwrap();
            }
        }
    });
    (address, task)
}

fn name() -> HostName {
    "www.example.com".parse().unwrap()
}

#[tokio::test]
async fn an_answer_is_found_behind_forged_ones() {
    let (address, _task) = server(|message| {
        let good = answer(message, 0x8180, &[[1, 1, 1, 1]]);
        let mut other_id = answer(message, 0x8180, &[[6, 6, 6, 6]]);
        other_id[1] ^= 1;
        let mut other_name = answer(message, 0x8180, &[[6, 6, 6, 6]]);
        other_name[13] = b'x';
        let mut other_kind = answer(message, 0x8180, &[[6, 6, 6, 6]]);
        let at = 12 + question(message).len() - 3;
        other_kind[at] = 28;
        vec![vec![], vec![0; 5], other_id, other_name, other_kind, message.to_vec(), good]
    })
    .await;
    let found = Upstream::new(vec![address]).addresses(&name(), Family::V4).await.unwrap();
    assert_eq!(found.addresses, ["1.1.1.1".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(found.ttl, Duration::from_secs(90));
}

#[tokio::test]
async fn the_next_server_is_asked_where_one_is_silent_or_broken() {
    let (silent, _one) = server(|_| vec![]).await;
    let (broken, _two) = server(|message| vec![answer(message, 0x8182, &[])]).await;
    let (garbled, _three) = server(|message| {
        let mut reply = answer(message, 0x8180, &[[1, 1, 1, 1]]);
        reply.pop();
        vec![reply]
    })
    .await;
    let (good, _four) = server(|message| vec![answer(message, 0x8180, &[[1, 1, 1, 1], [1, 0, 0, 1]])]).await;
    let upstream = Upstream::new(vec![silent, broken, garbled, good]).patience(QUICK);
    assert_eq!(upstream.addresses(&name(), Family::V4).await.unwrap().addresses.len(), 2);
    let upstream = Upstream::new(vec![silent, broken]).patience(QUICK);
    assert_eq!(upstream.addresses(&name(), Family::V4).await, Err(LookupError::Failed));
    assert_eq!(Upstream::new(vec![]).addresses(&name(), Family::V4).await, Err(LookupError::Failed));
}

#[tokio::test]
async fn no_such_name_is_an_answer() {
    let (address, _task) = server(|message| vec![answer(message, 0x8183, &[])]).await;
    let upstream = Upstream::new(vec![address]).patience(QUICK);
    assert_eq!(upstream.addresses(&name(), Family::V6).await, Err(LookupError::NoSuchName));
}

#[tokio::test]
async fn a_long_answer_is_fetched_by_tcp() {
    // A port that is free for UDP may be another test's for TCP.
    let (address, _task, listener) = loop {
        let (address, task) = server(|message| vec![answer(message, 0x8380, &[])]).await;
        if let Ok(listener) = TcpListener::bind(address).await {
            break (address, task, listener);
        }
    };
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut message = vec![0; stream.read_u16().await.unwrap().into()];
        stream.read_exact(&mut message).await.unwrap();
        let many: Vec<[u8; 4]> = (0..100).map(|last| [1, 1, 1, last]).collect();
        let reply = answer(&message, 0x8180, &many);
        stream.write_u16(u16::try_from(reply.len()).unwrap()).await.unwrap();
        stream.write_all(&reply).await.unwrap();
    });
    let found = Upstream::new(vec![address]).addresses(&name(), Family::V4).await.unwrap();
    assert_eq!(found.addresses.len(), 100);
    serving.await.unwrap();
}

#[tokio::test]
async fn where_ipv6_leads_nowhere_no_name_has_it() {
    let (address, _task) = server(|message| vec![answer(message, 0x8183, &[])]).await;
    let upstream = Upstream::new(vec![address]).patience(QUICK);
    upstream.clone().use_v4_alone(true);
    assert!(upstream.addresses(&name(), Family::V6).await.unwrap().addresses.is_empty());
    assert_eq!(upstream.addresses(&name(), Family::V4).await, Err(LookupError::NoSuchName), "it is asked");
    upstream.use_v4_alone(false);
    assert_eq!(upstream.addresses(&name(), Family::V6).await, Err(LookupError::NoSuchName), "again");
}
