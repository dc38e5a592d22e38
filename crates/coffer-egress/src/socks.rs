//! Asks a SOCKS5 proxy (RFC 1928, RFC 1929) for a connection.
//!
//! The proxy belongs to the sandbox's owner: its answer is read exactly to its end, so that no later byte is
//! lost, and nothing else of it is trusted.

use std::io;
use std::net::{IpAddr, SocketAddr};

use coffer_core::network::Login;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const VERSION: u8 = 5;
const LOGIN_VERSION: u8 = 1;
const NO_LOGIN: u8 = 0;
const BY_PASSWORD: u8 = 2;
const CONNECT: u8 = 1;
const GRANTED: u8 = 0;
const V4: u8 = 1;
const NAME: u8 = 3;
const V6: u8 = 4;

/// Connects `stream`, which leads to a proxy, to `to`.
pub(crate) async fn connect(stream: &mut TcpStream, login: Option<&Login>, to: SocketAddr) -> io::Result<()> {
    let methods: &[u8] = if login.is_some() { &[NO_LOGIN, BY_PASSWORD] } else { &[NO_LOGIN] };
    let offered = u8::try_from(methods.len()).expect("two at most");
    stream.write_all(&[&[VERSION, offered], methods].concat()).await?;
    let mut chosen = [0; 2];
    stream.read_exact(&mut chosen).await?;
    match (chosen, login) {
        ([VERSION, NO_LOGIN], _) => {}
        ([VERSION, BY_PASSWORD], Some(login)) => log_in(stream, login).await?,
        ([VERSION, _], _) => return Err(refused("the proxy requires another authentication method")),
        _ => return Err(refused("the proxy does not speak SOCKS5")),
    }
    let mut request = vec![VERSION, CONNECT, 0];
    match to.ip() {
        IpAddr::V4(address) => {
            request.push(V4);
            request.extend(address.octets());
        }
        IpAddr::V6(address) => {
            request.push(V6);
            request.extend(address.octets());
        }
    }
    request.extend(to.port().to_be_bytes());
    stream.write_all(&request).await?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await?;
    let [version, granted, _, kind] = answer;
    if version != VERSION || granted != GRANTED {
        return Err(refused("the proxy could not connect"));
    }
    // The proxy's own address is ignored, but comes before the first byte of data.
    let length = match kind {
        V4 => 4,
        V6 => 16,
        NAME => usize::from(stream.read_u8().await?),
        _ => return Err(refused("the proxy does not speak SOCKS5")),
    };
    let mut bound = [0; 255 + 2];
    stream.read_exact(&mut bound[..length + 2]).await?;
    Ok(())
}

async fn log_in(stream: &mut TcpStream, login: &Login) -> io::Result<()> {
    let mut request = vec![LOGIN_VERSION];
    for text in [login.username(), login.password()] {
        let length = u8::try_from(text.len()).map_err(|_| refused("the login is too long"))?;
        request.push(length);
        request.extend(text.as_bytes());
    }
    stream.write_all(&request).await?;
    let mut answer = [0; 2];
    stream.read_exact(&mut answer).await?;
    if answer[1] == GRANTED { Ok(()) } else { Err(refused("the proxy refuses the login")) }
}

fn refused(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}
