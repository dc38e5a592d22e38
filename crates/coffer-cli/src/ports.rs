//! `ports`: what listens in a sandbox, and forwarding of local ports to it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use clap::Args;
use coffer_client::{Body, Client};
use http::header::{CONNECTION, HOST, HeaderName, UPGRADE};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::{printer, sandboxes};

/// agentd, and the ways out to names and to the net: ours, not the sandbox's work.
const OWN: [u16; 3] = [49983, 64053, 64443];
const LONGEST_TABLE: usize = 4 << 20;
/// Connections that are forwarded at once.
const MOST_CONNECTIONS: usize = 512;

/// List the ports that are open in a sandbox, or forward local ports to them
///
/// `coffer ports box` lists. `coffer ports box 8080` serves port 8080 of the sandbox (HTTP and WebSockets) at 127.0.0.1:8080
/// until Ctrl-C; `9000:8080` serves it at 9000.
#[derive(Debug, Args)]
pub struct Ports {
    /// The sandbox
    sandbox: String,
    /// Ports to forward; 0 is any free local port
    #[arg(value_name = "[LOCAL:]PORT", value_parser = pair)]
    forward: Vec<(u16, u16)>,
}

fn pair(text: &str) -> Result<(u16, u16), String> {
    let (local, remote) = text.split_once(':').unwrap_or((text, text));
    let number = |text: &str| text.parse::<u16>().map_err(|_| format!("'{text}' is not a port"));
    let (local, remote) = (number(local)?, number(remote)?);
    if remote == 0 { Err("a sandbox has no port 0".into()) } else { Ok((local, remote)) }
}

impl Ports {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let id = sandboxes::resolve(context, &self.sandbox).await?;
        if self.forward.is_empty() {
            let me = context.client.me().await?;
            let open = open_ports(&context.client, &id).await?;
            let rows: Vec<_> = open
                .into_iter()
                .map(|port| {
                    let url = me.domain.as_ref().map(|domain| format!("https://{port}-{id}.{domain}/"));
                    serde_json::json!({"port": port, "url": url})
                })
                .collect();
            context.printer.list(&rows, &["port", "url"])?;
            return Ok(0);
        }
        let mut forwards = JoinSet::new();
        for (local, remote) in self.forward {
            let address = SocketAddr::from(([127, 0, 0, 1], local));
            let taken = |error| {
                Failure::new(format!("could not listen on {address}: {error}"))
                    .hint("name another port: LOCAL:PORT")
            };
            let listener = TcpListener::bind(address).await.map_err(taken)?;
            printer::note(&format!("http://{} -> {id} port {remote}", listener.local_addr()?));
            forwards.spawn(forward(listener, context.client.clone(), id.clone(), remote));
        }
        while let Some(ended) = forwards.join_next().await {
            ended.map_err(|error| Failure::new(error.to_string()))??;
        }
        Ok(0)
    }
}

/// Ports in state LISTEN, from the kernel's own tables.
async fn open_ports(client: &Client, id: &str) -> Result<BTreeSet<u16>, Failure> {
    let mut ports = BTreeSet::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = client.watch_file(id, table, LONGEST_TABLE).await?;
        ports.extend(listening(&String::from_utf8_lossy(&text)));
    }
    ports.retain(|port| !OWN.contains(port));
    Ok(ports)
}

fn listening(table: &str) -> impl Iterator<Item = u16> {
    table.lines().skip(1).filter_map(|line| {
        let mut words = line.split_whitespace();
        let (local, state) = (words.nth(1)?, words.nth(1)?);
        if state != "0A" {
            return None;
        }
        u16::from_str_radix(local.rsplit(':').next()?, 16).ok()
    })
}

async fn forward(listener: TcpListener, client: Client, id: String, port: u16) -> Result<(), Failure> {
    let target = Arc::new((client, id, port));
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await?;
        while connections.try_join_next().is_some() {}
        if connections.len() >= MOST_CONNECTIONS {
            // Closed at once: the client sees it, and the others go on.
            continue;
        }
        let target = target.clone();
        connections.spawn(async move {
            let service = hyper::service::service_fn(move |request| relay(target.clone(), request));
            let served =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            let _ended = served.with_upgrades().await;
        });
    }
}

type Answer = Response<UnsyncBoxBody<Bytes, std::io::Error>>;

/// Sends one request on to the sandbox, with the headers by which the server knows it.
async fn relay(
    target: Arc<(Client, String, u16)>,
    mut request: Request<Incoming>,
) -> Result<Answer, std::convert::Infallible> {
    let (client, id, port) = &*target;
    let upgrade = request.headers().get(UPGRADE).cloned();
    let here = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_string();
    let (head, body) = request.into_parts();
    let mut headers = head.headers;
    for name in
        [HOST, CONNECTION, HeaderName::from_static("keep-alive"), HeaderName::from_static("x-api-key")]
    {
        headers.remove(name);
    }
    headers.insert("e2b-sandbox-id", HeaderValue::from_str(id).unwrap_or(HeaderValue::from_static("")));
    headers.insert("e2b-sandbox-port", HeaderValue::from(*port));
    if let Some(protocol) = upgrade {
        headers.insert(UPGRADE, protocol);
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
    let body: Body = body.map_err(std::io::Error::other).boxed_unsync();
    let mut answer = match client.send_raw(head.method, &path, headers, body).await {
        Ok(answer) => answer,
        Err(error) => {
            let text = format!("coffer: {}\n", Failure::from(error).message);
            let mut answer =
                Response::new(Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync());
            *answer.status_mut() = StatusCode::BAD_GATEWAY;
            return Ok(answer);
        }
    };
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Some(here) = here
    {
        let there = hyper::upgrade::on(&mut answer);
        let (head, flow) = answer.into_parts();
        #[expect(
            clippy::disallowed_methods,
            reason = "ends with either side of the connection, or with the program"
        )]
        tokio::spawn(async move {
            // The flow holds the connection to the server.
            let _flow = flow;
            if let (Ok(here), Ok(there)) = tokio::join!(here, there) {
                let (mut here, mut there) = (TokioIo::new(here), TokioIo::new(there));
                let _ended = tokio::io::copy_bidirectional(&mut here, &mut there).await;
            }
        });
        let empty = Full::new(Bytes::new()).map_err(|never| match never {}).boxed_unsync();
        return Ok(Response::from_parts(head, empty));
    }
    let (mut head, flow) = answer.into_parts();
    for name in
        [CONNECTION, HeaderName::from_static("keep-alive"), HeaderName::from_static("transfer-encoding")]
    {
        head.headers.remove(name);
    }
    let pieces = futures_util::stream::unfold(Some(flow), async |flow| {
        let mut flow = flow?;
        match flow.next().await {
            Ok(None) => None,
            Ok(Some(piece)) => Some((Ok(Frame::data(piece)), Some(flow))),
            Err(error) => Some((Err(std::io::Error::other(error)), None)),
        }
    });
    Ok(Response::from_parts(head, http_body_util::StreamBody::new(pieces).boxed_unsync()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_ports_are_read_from_the_kernels_table() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
                     0: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n\
                     1: 0100007F:1F91 0100007F:0016 01 00000000:00000000\n\
                     2: garbage\n";
        assert_eq!(listening(table).collect::<Vec<_>>(), [8080]);
    }

    #[test]
    fn ports_are_pairs() {
        assert_eq!(
            (pair("8080"), pair("9000:8080"), pair("0:80")),
            (Ok((8080, 8080)), Ok((9000, 8080)), Ok((0, 80)))
        );
        assert!(pair("x").is_err() && pair("80:0").is_err() && pair("70000").is_err());
    }
}
