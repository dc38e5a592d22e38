//! `agentd dial HOST PORT` and `agentd dial PATH`: a connection from inside the sandbox, on stdin and stdout.
//!
//! The first byte of stdout says that it is connected. SSH clients forward ports this way; the connection has the user's
//! rights and the sandbox's network, no more.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// For each address of the name.
const CONNECT_WITHIN: Duration = Duration::from_secs(15);

pub(crate) fn connect(mut words: impl Iterator<Item = OsString>) -> io::Result<()> {
    let usage = || io::Error::other("usage: coffer-agentd dial HOST PORT | PATH");
    let target = words.next().ok_or_else(usage)?;
    match words.next() {
        None => {
            let stream = UnixStream::connect(&target)?;
            let (reader, writer) = (stream.try_clone()?, stream.try_clone()?);
            carry(reader, writer, move || stream.shutdown(Shutdown::Write))
        }
        Some(port) => {
            let host = target.to_str().ok_or_else(usage)?;
            let port = port.to_str().and_then(|port| port.parse().ok()).ok_or_else(usage)?;
            let stream = dial(host, port)?;
            stream.set_nodelay(true)?;
            let (reader, writer) = (stream.try_clone()?, stream.try_clone()?);
            carry(reader, writer, move || stream.shutdown(Shutdown::Write))
        }
    }
}

fn dial(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_WITHIN) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Ends when the other side does: the client learns that from our exit. Half of a connection stays open only the other
/// way round, when the client has said all.
fn carry(
    mut reader: impl Read,
    mut writer: impl Write + Send + 'static,
    end: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(&[0])?;
    stdout.flush()?;
    std::thread::spawn(move || {
        let _ended = copy(&mut io::stdin().lock(), &mut writer);
        let _gone = end();
    });
    copy(&mut reader, &mut stdout)
}

/// Passes every piece on at once.
fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => {
                to.write_all(&buffer[..length])?;
                to.flush()?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
