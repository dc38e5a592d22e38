//! The sandbox's variables, as agentd tells them to a caller that has the access token.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coffer_core::sync::Mutex;
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::language::Variables;
use crate::place::Place;
use crate::task;

const LIMIT: usize = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(3);

/// Variables of the sandbox that we are in, once somebody with its token has called.
#[derive(Debug, Default)]
pub(crate) struct Envs {
    known: Mutex<Option<(String, Arc<Variables>)>>,
}

impl Envs {
    /// What is known already, for the sandbox of this name.
    pub(crate) fn known(&self, identity: &str) -> Option<Arc<Variables>> {
        let known = self.known.lock();
        known.as_ref().filter(|(of, _)| of == identity).map(|(_, variables)| Arc::clone(variables))
    }

    /// Asks agentd if need be. Nothing if it does not answer, or not to this token.
    pub(crate) async fn get(
        &self,
        place: &Place,
        identity: &str,
        token: Option<&HeaderValue>,
    ) -> Option<Arc<Variables>> {
        if let Some(known) = self.known(identity) {
            return Some(known);
        }
        let asked = tokio::time::timeout(PATIENCE, ask(place.agentd, token)).await;
        let variables = Arc::new(asked.ok()?.ok()?);
        *self.known.lock() = Some((identity.to_string(), Arc::clone(&variables)));
        Some(variables)
    }
}

async fn ask(port: u16, token: Option<&HeaderValue>) -> io::Result<Variables> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    task::spawn(async move {
        // Its errors are those of the request.
        let _ended = connection.await;
    });
    let mut request = Request::get("/envs").header("Host", "localhost");
    if let Some(token) = token {
        request = request.header("X-Access-Token", token);
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(io::Error::other)?;
    let answer = sender.send_request(request).await.map_err(io::Error::other)?;
    if answer.status() != StatusCode::OK {
        return Err(io::Error::other(answer.status().to_string()));
    }
    let body = Limited::new(answer.into_body(), LIMIT).collect().await.map_err(io::Error::other)?;
    Ok(serde_json::from_slice(&body.to_bytes())?)
}
