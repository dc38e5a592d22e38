//! Answers a sandbox's questions, by UDP and TCP.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use coffer_core::network::{
    Class, Decision, GATE_ADDRESS, HostName, MODEL_ADDRESS, Rule, may_ask, may_ask_mirror,
};
use hickory_proto::op::ResponseCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::message::{Asked, NoQuery, Query};
use super::{Family, LookupError};
use crate::gate;
use crate::refusal::{Cause, Refused};
use crate::sandbox::Sandbox;
use crate::socket;

/// The longest accepted question.
const LARGEST_QUESTION: usize = 2048;
/// More addresses than any client tries.
const MOST_ADDRESSES: usize = 32;
/// A route may be gone soon.
const GATE_TTL_S: u32 = 5;
/// Mirrors change only with the settings.
const MIRROR_TTL_S: u32 = 60;
const TCP_IDLE: Duration = Duration::from_secs(10);

/// Answers questions that come by UDP until the sandbox is removed.
pub(crate) async fn serve_udp(sandbox: Arc<Sandbox>, socket: UdpSocket, tasks: TaskTracker) {
    let socket = Arc::new(socket);
    let mut buffer = [0; LARGEST_QUESTION];
    loop {
        let (length, asker) = tokio::select! {
            biased;
            () = sandbox.stop.cancelled() => return,
            received = socket.recv_from(&mut buffer) => match received {
                Ok(received) => received,
                // A client that is already gone shows as an error here; ignore it.
                Err(error) => {
                    tracing::debug!(%error, "could not receive a question");
                    tokio::time::sleep(socket::PAUSE_AFTER_ERROR).await;
                    continue;
                }
            },
        };
        match begin(&sandbox, &buffer[..length]) {
            Begun::Silence => {}
            // Never waits: a sandbox that does not read its answers loses them.
            Begun::Answer(answer) => drop(socket.try_send_to(&answer, asker)),
            Begun::LookUp(question) => {
                let (socket, sandbox) = (Arc::clone(&socket), Arc::clone(&sandbox));
                tasks.spawn(async move {
                    let size = question.query.udp_size();
                    let answer = tokio::select! {
                        () = sandbox.stop.cancelled() => return,
                        answer = look_up(&sandbox, &question, size) => answer,
                    };
                    drop(socket.try_send_to(&answer, asker));
                });
            }
        }
    }
}

/// Answers questions that come by TCP until the sandbox is removed.
pub(crate) async fn serve_tcp(sandbox: Arc<Sandbox>, listener: TcpListener, tasks: TaskTracker) {
    while let Some(stream) = socket::accept(&listener, &sandbox.stop).await {
        let Ok(permit) = Arc::clone(&sandbox.dns_connections).try_acquire_owned() else {
            sandbox.refuse(Refused::question(None), &Cause::QuestionLimit);
            socket::abort(&stream);
            continue;
        };
        let sandbox = Arc::clone(&sandbox);
        tasks.spawn(async move {
            tokio::select! {
                () = sandbox.stop.cancelled() => {}
                // The connection ends with the conversation.
                _ended = converse(&sandbox, stream) => {}
            }
            drop(permit);
        });
    }
}

async fn converse(sandbox: &Arc<Sandbox>, mut stream: TcpStream) -> std::io::Result<()> {
    let slow = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
    loop {
        let mut message = [0; LARGEST_QUESTION];
        let read = async {
            let length = usize::from(stream.read_u16().await?);
            let message = message.get_mut(..length).ok_or(std::io::ErrorKind::InvalidData)?;
            stream.read_exact(message).await?;
            Ok::<usize, std::io::Error>(length)
        };
        let length = timeout(TCP_IDLE, read).await.map_err(slow)??;
        let answer = match begin(sandbox, &message[..length]) {
            Begun::Silence => return Ok(()),
            Begun::Answer(answer) => answer,
            Begun::LookUp(question) => look_up(sandbox, &question, usize::from(u16::MAX)).await,
        };
        let length = u16::try_from(answer.len()).expect("an answer was bounded to what TCP can carry");
        let answer = [&length.to_be_bytes()[..], &answer].concat();
        timeout(TCP_IDLE, stream.write_all(&answer)).await.map_err(slow)??;
    }
}

enum Begun {
    Silence,
    Answer(Vec<u8>),
    LookUp(Question),
}

/// A question to look up, and its place among the sandbox's concurrent ones.
struct Question {
    query: Query,
    name: HostName,
    family: Family,
    _place: tokio::sync::OwnedSemaphorePermit,
}

/// Everything that needs no waiting: parses the question, and decides whether the name may be looked up.
fn begin(sandbox: &Arc<Sandbox>, message: &[u8]) -> Begun {
    let query = match Query::read(message) {
        Ok(query) => query,
        Err(NoQuery::Ignore) => return Begun::Silence,
        Err(NoQuery::Answer(answer)) => return Begun::Answer(answer),
    };
    sandbox.count_question();
    let Some(name) = query.name.clone() else {
        sandbox.refuse(Refused::question(None), &Cause::NotAHostName);
        return Begun::Answer(query.empty_answer(ResponseCode::Refused));
    };
    let policy = sandbox.policy();
    let gate = match () {
        () if gate::is_asked(&policy, &name) => Some(GATE_ADDRESS),
        () if gate::model::is_asked(&policy, &name) => Some(MODEL_ADDRESS),
        () => None,
    };
    if let Some(address) = gate {
        // No resolver is asked: the name is the gate's.
        let known = [IpAddr::V4(address)];
        let addresses = if query.asked == Asked::Addresses(Family::V4) { &known[..] } else { &[] };
        return Begun::Answer(query.answer(ResponseCode::NoError, addresses, GATE_TTL_S, query.udp_size()));
    }
    let mirror = may_ask_mirror(&sandbox.policy(), &sandbox.walls(), &name);
    if let Some((stand_in, Decision::Allow { .. })) = mirror {
        // No resolver is asked: the sandbox does not learn where the mirror is, or whether it is.
        let known = [IpAddr::V4(stand_in)];
        let addresses = if query.asked == Asked::Addresses(Family::V4) { &known[..] } else { &[] };
        return Begun::Answer(query.answer(ResponseCode::NoError, addresses, MIRROR_TTL_S, query.udp_size()));
    }
    let decision = mirror.map_or_else(|| may_ask(&sandbox.policy(), &name), |(_, decision)| decision);
    if let Decision::Refuse { rule } = decision {
        sandbox.refuse(Refused::question(Some(name)), &Cause::Rule(rule));
        return Begun::Answer(query.empty_answer(ResponseCode::Refused));
    }
    let Asked::Addresses(family) = query.asked else {
        return Begun::Answer(query.empty_answer(ResponseCode::NoError));
    };
    match Arc::clone(&sandbox.questions).try_acquire_owned() {
        Ok(place) => Begun::LookUp(Question { query, name, family, _place: place }),
        Err(_) => {
            sandbox.refuse(Refused::question(Some(name)), &Cause::QuestionLimit);
            Begun::Answer(query.empty_answer(ResponseCode::ServFail))
        }
    }
}

/// Answers with those addresses that a connection may use, so that a name cannot point to our own networks.
async fn look_up(sandbox: &Arc<Sandbox>, question: &Question, size: usize) -> Vec<u8> {
    let Question { query, name, family, .. } = question;
    let found = match sandbox.look_up(name, *family).await {
        Ok(found) => found,
        Err(LookupError::NoSuchName) => return query.empty_answer(ResponseCode::NXDomain),
        Err(LookupError::Failed) => return query.empty_answer(ResponseCode::ServFail),
    };
    let walls = sandbox.walls();
    let mut walled: Option<(IpAddr, Class)> = None;
    let mut passed = Vec::new();
    for address in found.addresses.iter().take(MOST_ADDRESSES) {
        match walls.pass(*address) {
            // A NAT64 address passes as its IPv4 address, which does not answer a question for IPv6.
            Ok(plain) if Family::of(plain) == *family => passed.push(plain),
            Ok(_) => {}
            Err(class) => walled = Some((*address, class)),
        }
    }
    if let Some((address, class)) = walled {
        let refused = Refused { address: Some(address), ..Refused::question(Some(name.clone())) };
        sandbox.refuse(refused, &Cause::Rule(Rule::Never(class)));
        if passed.is_empty() {
            return query.empty_answer(ResponseCode::Refused);
        }
    }
    let ttl_s = u32::try_from(found.ttl.as_secs()).unwrap_or(u32::MAX);
    query.answer(ResponseCode::NoError, &passed, ttl_s, size)
}
