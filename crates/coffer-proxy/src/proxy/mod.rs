//! Traffic to sandboxes; see `routing` for the interface to the rest of the server.
//!
//! ```text
//! client ──TCP──► listener ──► Proxy ──┬─ port 49983: Unix socket, HTTP/1.1 ──────► agentd
//!                                      └─ other ports: CONNECT over that socket ──► server inside
//! ```
//!
//! hyper parses both sides, so no byte of one is ever taken for framing by the other. Bodies stream with back
//! pressure and are never collected. What a sandbox sends is bounded in size and time, but a silent stream is
//! left alone: many are silent for minutes on purpose.
//!
//! When a sandbox ends or pauses while it answers, its clients are reset: SDKs tell by that a sandbox that
//! died from a stream that ended. Before an answer has begun the client gets a 502.

mod address;
mod answer;
mod cookies;
mod directory;
#[cfg(any(test, fuzzing))]
mod fuzz;
mod guesses;
mod head;
mod inward;
mod lane;
mod origin;
mod relay;
mod signed;
mod starts;
mod tls;
mod upgrade;
mod upload;
mod upstream;

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use coffer_core::{ProjectId, SandboxId};
use coffer_shares::{Shares, pool};
use coffer_wire::agentd;
use http::header::{CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING};
use http::{Method, Request, Response, StatusCode, request};
use hyper::body::{Body as _, Incoming};
use subtle::ConstantTimeEq;
use tokio_util::sync::CancellationToken;

pub use self::answer::allow_preflight;
pub use self::cookies::{KEY_PROTOCOL, PLAIN_COOKIE, SECURE_COOKIE, SESSION_HEADER, SESSION_PROTOCOL};
pub use self::directory::{Directory, Gate, Guard};
#[cfg(any(test, fuzzing))]
pub use self::fuzz::fuzz_address;

use self::address::{Address, address, is_by_host};
use self::answer::{Reader, Refusal};
use self::guesses::Guesses;
use self::lane::{Lanes, Slot};
use self::origin::Named;
use self::relay::Relay;
use self::upload::{DRAINED, Source, Start, Upload};
use self::upstream::{Exchange, Speaks};
use crate::connection::Drains;
use crate::connection::{Client, Midway};
use coffer_core::command;
use coffer_guest::{Route, Target, Wake, interpreter};
use coffer_shares::PoolSettings;

/// With `never`, a request does not wake a paused sandbox, whatever its policy: for clients that reconnect by
/// themselves when a pause breaks their streams.
const WAKE: &str = "x-coffer-wake";

/// Carries requests to sandboxes.
#[derive(Debug)]
pub struct Proxy {
    directory: Arc<dyn Directory>,
    lanes: Arc<Lanes>,
    guesses: Guesses,
    drains: Drains,
    gate: Arc<dyn Gate>,
    looks: Shares<ProjectId>,
}

impl Proxy {
    pub fn new(directory: Arc<dyn Directory>, gate: Arc<dyn Gate>, pools: &PoolSettings) -> Self {
        Self {
            gate,
            looks: pools.shares(pool::COMMAND_STARTS),
            directory,
            lanes: Arc::default(),
            guesses: Guesses::new(Instant::now()),
            drains: Drains::default(),
        }
    }

    /// Ends connections that left HTTP, and everything else that outlives a request.
    pub async fn finish(&self) {
        self.lanes.finish().await;
        self.drains.finish().await;
    }

    /// Drains the rest of bodies, for all connections of the port.
    pub fn drains(&self) -> &Drains {
        &self.drains
    }

    /// Whether a request is sandbox traffic, well-formed or not; the rest is the API's.
    pub fn claims<B>(&self, request: &Request<B>) -> bool {
        address(request) != Address::Elsewhere
    }

    /// Answers a request that [`claims`](Self::claims) took.
    pub async fn serve(&self, request: Request<Incoming>) -> Response<Body> {
        let (sandbox, port, named) = match address(&request) {
            Address::Port { sandbox, port } => {
                (sandbox, port, (!is_by_host(&request)).then_some(Named::Headers))
            }
            Address::Signed => match self.signer(&request) {
                Ok(sandbox) => (sandbox.to_string(), agentd::PORT, Some(Named::Signature)),
                Err(refusal) => return self.refuse(refusal, request, None, None),
            },
            Address::Preflight => return answer::allow_preflight(request.headers()),
            Address::Malformed(why) => return self.refuse(Refusal::Malformed(why), request, None, None),
            Address::Elsewhere => return self.refuse(Refusal::NoSuchRoute, request, None, None),
        };
        if let Some(Err(refusal)) = named.map(|named| origin::check(&request, named, port)) {
            return self.refuse(refusal, request, None, None);
        }
        let target = match self.directory.route(&sandbox, wake(&request, port)).await {
            Route::Running(target) => target,
            Route::NotFound => return self.refuse(Refusal::NotFound, request, Some(&sandbox), None),
            Route::Transitioning => {
                return self.refuse(Refusal::Transitioning, request, Some(&sandbox), None);
            }
            Route::Busy => return self.refuse(Refusal::NoRoom, request, Some(&sandbox), None),
        };
        if let Err(refusal) = admit(&request, &target, port) {
            return self.refuse(refusal, request, Some(&sandbox), Some(port));
        }
        let counted =
            request.extensions().get::<Client>().map(|client| client.count_for(Some(target.project)));
        if let Some(Err(_)) = counted {
            return self.refuse(Refusal::ProjectConnections, request, Some(&sandbox), Some(port));
        }
        if port == interpreter::PORT
            && *request.method() == Method::POST
            && self.forbids_code(&request, &target).await
        {
            return self.refuse(Refusal::CodeForbidden, request, Some(&sandbox), Some(port));
        }
        let Ok(slot) = self.lanes.enter(&target) else {
            return self.refuse(Refusal::TooManyConnections, request, Some(&sandbox), Some(port));
        };
        target.activity.note();
        let read = (port == agentd::PORT).then(|| reads(&request)).flatten();
        let id = target.sandbox;
        let looked = if port == agentd::PORT && starts::could_start(request.uri().path()) {
            self.look(request, &target).await
        } else {
            Ok(request.map(Source::Client))
        };
        let mut answer = match looked {
            Ok(request) => forward(request, target, port, slot, self.drains.clone()).await,
            Err(answer) => *answer,
        };
        if let Some(action) = read.filter(|_| answer.status() != StatusCode::UNAUTHORIZED) {
            self.gate.read(id, action, answer.status().as_u16());
        }
        if let Some(named) = named {
            origin::guard(answer.headers_mut(), named);
        }
        answer
    }

    /// Whether a policy keeps clients from the code interpreter. A request does not say which language its context has, so
    /// all must be permitted.
    async fn forbids_code<B>(&self, request: &Request<B>, target: &Target) -> bool {
        let Some(guard) = self.gate.guard(target.sandbox) else { return false };
        let permit = |language: &str| self.gate.permit(target.project, &command::code(language));
        let Some(refused) = command::LANGUAGES.into_iter().find_map(|language| permit(language).err()) else {
            return false;
        };
        // Strangers could fill the log.
        if starts::has_token(request.headers(), &guard) {
            self.gate.refused(target.sandbox, &refused).await;
        }
        true
    }

    /// Asks the gate about a request that could start a command.
    async fn look(
        &self,
        request: Request<Incoming>,
        target: &Target,
    ) -> Result<Request<Source>, Box<Response<Body>>> {
        // agentd starts commands only for this method.
        let guard = self.gate.guard(target.sandbox).filter(|_| *request.method() == Method::POST);
        let Some(guard) = guard else { return Ok(request.map(Source::Client)) };
        let (parts, mut body) = request.into_parts();
        let client = parts.extensions.get::<Client>().cloned().unwrap_or_else(detached);
        let waits = parts.headers.contains_key(EXPECT);
        let (gate, looks) = ((&*self.gate, &guard), (target.project, &self.looks));
        let refused = match starts::look(parts, &mut body, gate, looks).await {
            Ok(request) => return Ok(request.map(Source::Whole)),
            Err(refused) => refused,
        };
        if !waits {
            self.drains.drain(body, DRAINED, &client);
        }
        if let Some(what) = &refused.what {
            self.gate.refused(target.sandbox, what).await;
        }
        Err(refused.answer)
    }

    /// Answers for the sandbox.
    fn refuse(
        &self,
        refusal: Refusal,
        request: Request<Incoming>,
        sandbox: Option<&str>,
        port: Option<u16>,
    ) -> Response<Body> {
        let (mut parts, body) = request.into_parts();
        let client = parts.extensions.remove::<Client>().unwrap_or_else(detached);
        // Reading the body of a client that waits for `100 Continue` would make it send it.
        if !parts.headers.contains_key(EXPECT) {
            self.drains.drain(body, DRAINED, &client);
        }
        refusal.answer(Reader::of(&parts.headers), sandbox, port)
    }

    /// The sandbox whose token made a signature.
    fn signer<B>(&self, request: &Request<B>) -> Result<SandboxId, Refusal> {
        let peer = request.extensions().get::<Client>().map_or(detached().peer, |client| client.peer).ip();
        if !self.guesses.allows(peer, Instant::now()) {
            return Err(Refusal::TooManyGuesses);
        }
        let secured = self.directory.secured();
        let compared = secured.len();
        signed::signer(request, secured).ok_or_else(|| {
            self.guesses.failed(peer, compared, Instant::now());
            Refusal::BadSignature
        })
    }
}

/// Whether a request wakes a sandbox that is paused, or will be when the request has waited for the pause.
fn wake<B>(request: &Request<B>, port: u16) -> Wake {
    let only_asks = port == agentd::PORT && request.uri().path() == "/health";
    let declines = request.headers().get(WAKE).is_some_and(|value| value == "never");
    if only_asks || declines { Wake::Never } else { Wake::ByPolicy }
}

/// What a request to agentd reads from the sandbox, as named in the audit log.
fn reads<B>(request: &Request<B>) -> Option<&'static str> {
    match (request.method().as_str(), request.uri().path()) {
        ("GET" | "HEAD", "/files") => Some("GET /files"),
        ("POST", "/filesystem.Filesystem/ListDir") => Some("POST /filesystem.Filesystem/ListDir"),
        ("POST", "/process.Process/List") => Some("POST /process.Process/List"),
        ("POST", "/process.Process/Connect") => Some("POST /process.Process/Connect"),
        _ => None,
    }
}

/// Whether this request may go to this port.
fn admit<B>(request: &Request<B>, target: &Target, port: u16) -> Result<(), Refusal> {
    // Tunnels are for the server itself; clients may not request one.
    if request.method() == Method::CONNECT {
        return Err(Refusal::NoSuchRoute);
    }
    if port == agentd::PORT {
        return if head::is_control(request.uri().path()) { Err(Refusal::NoSuchRoute) } else { Ok(()) };
    }
    let Some(token) = &target.traffic_token else {
        return Ok(());
    };
    let mut given = request.headers().get_all(head::TRAFFIC_TOKEN).iter();
    match (given.next(), given.next()) {
        (None, _) => Err(Refusal::TokenMissing),
        (Some(given), None) if bool::from(given.as_bytes().ct_eq(token.as_bytes())) => Ok(()),
        _ => Err(Refusal::TokenWrong),
    }
}

/// Sends an admitted request inside and returns the response.
async fn forward(
    mut request: Request<Source>,
    target: Target,
    port: u16,
    slot: Slot,
    drains: Drains,
) -> Response<Body> {
    let outside = hyper::upgrade::on(&mut request);
    let (mut parts, body) = request.into_parts();
    let client = parts.extensions.remove::<Client>().unwrap_or_else(detached);
    let upgrading = port != agentd::PORT && head::wants_upgrade(&parts);
    let (reader, sandbox) = (Reader::of(&parts.headers), target.sandbox);
    let refused = |refusal: Refusal| refusal.answer(reader, Some(&sandbox.to_string()), Some(port));

    let asked = inward(&mut parts, &target, port, client.peer.ip());
    if let Err(refusal) = asked {
        return refused(refusal);
    }
    let start = if parts.headers.contains_key(EXPECT) && !body.is_end_stream() {
        Start::OnContinue
    } else {
        Start::AtOnce
    };
    let (upload, progress) = Upload::new(body, target.activity.clone(), start, drains, client.clone());
    let mut request = Request::from_parts(parts, upload);
    if start == Start::OnContinue {
        let progress = progress.clone();
        hyper::ext::on_informational(&mut request, move |response| {
            if response.status() == StatusCode::CONTINUE {
                progress.wanted();
            }
        });
    }

    let exchange = if port == agentd::PORT {
        upstream::ask_agentd(&slot, &target, request, &progress).await
    } else {
        let speaks = if target.https_ports.contains(&port) { Speaks::Tls } else { Speaks::Plain };
        upstream::ask_port(&slot, &target.socket, port, speaks, request, &progress).await
    };
    let Exchange { mut response, link } = match exchange {
        Ok(exchange) => exchange,
        Err(refusal) => return refused(refusal),
    };

    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        if !upgrading {
            return refused(Refusal::NotHttp);
        }
        let inside = hyper::upgrade::on(&mut response);
        let tasks = slot.tasks();
        tasks.spawn(upgrade::join(outside, inside, client, target.activity, link, slot));
        let (mut parts, _) = response.into_parts();
        head::toward_client(&mut parts);
        return Response::from_parts(parts, Body::empty());
    }
    let (mut parts, body) = response.into_parts();
    let until_close =
        !parts.headers.contains_key(CONTENT_LENGTH) && !parts.headers.contains_key(TRANSFER_ENCODING);
    head::toward_client(&mut parts);
    let relay = Relay::new(body, until_close, client, target.activity, progress, link, slot);
    Response::from_parts(parts, Body::new(relay))
}

fn inward(parts: &mut request::Parts, target: &Target, port: u16, peer: IpAddr) -> Result<(), Refusal> {
    if port == agentd::PORT {
        head::toward_agentd(parts);
        return Ok(());
    }
    head::toward_port(parts, port, target.mask_host.as_deref(), peer)
}

/// Replaces the connection of a request that came from no listener.
fn detached() -> Client {
    Client::new(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), CancellationToken::new(), Midway::default())
}
