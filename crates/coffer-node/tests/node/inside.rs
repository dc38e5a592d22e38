//! Process 1 of the test's sandboxes: runs the test's scripts from the socket that agentd would have.
//!
//! A connection carries one script, up to the end of the input; the answer is the exit code on a line and
//! then the output. Process 1 itself runs scripts that begin with `!`.

use std::io::{Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream, ToSocketAddrs as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use coffer_wire::agentd::CONTROL_SOCKET;
use rustix::event::{PollFd, PollFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

pub(crate) fn run() -> ! {
    // SAFETY: the node promises that descriptor 3 is the listening socket, and no other code uses it.
    let mut listener = Some(unsafe { UnixListener::from_raw_fd(3) });
    if let Some(listener) = &listener {
        rustix::io::fcntl_setfd(listener, rustix::io::FdFlags::CLOEXEC).unwrap();
    }
    let name = SocketAddr::from_abstract_name(CONTROL_SOCKET).unwrap();
    let control = UnixListener::bind_addr(&name).unwrap();
    loop {
        let mut polled = vec![PollFd::new(&control, PollFlags::IN)];
        polled.extend(listener.as_ref().map(|listener| PollFd::new(listener, PollFlags::IN)));
        if rustix::event::poll(&mut polled, None).is_err() {
            continue;
        }
        let [ordered, asked] = [0, 1].map(|at| polled.get(at).is_some_and(|fd| !fd.revents().is_empty()));
        if ordered && let Ok((stream, _)) = control.accept() {
            take_order(stream, &mut listener);
        } else if asked && let Some(Ok((stream, _))) = listener.as_ref().map(UnixListener::accept) {
            std::thread::spawn(move || answer(stream));
        }
    }
}

/// Handles agentd's orders about its listener, and nothing else.
fn take_order(mut stream: UnixStream, listener: &mut Option<UnixListener>) {
    let mut order = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [std::io::IoSliceMut::new(&mut order)];
    let received = rustix::net::recvmsg(&stream, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC);
    let handed = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    if received.is_ok_and(|received| received.bytes == 1) {
        *listener = handed.map(UnixListener::from);
        let _ = stream.write_all(&order);
    }
}

fn answer(mut stream: UnixStream) {
    let mut script = String::new();
    if stream.read_to_string(&mut script).is_err() {
        return;
    }
    let (code, output) = match script.strip_prefix('!') {
        Some(order) => (0, obey(order).into_bytes()),
        None => {
            let shell = Command::new("/bin/sh").arg("-c").arg(&script).stdin(Stdio::null()).output();
            match shell {
                Ok(done) => (done.status.code().unwrap_or(-1), [done.stdout, done.stderr].concat()),
                Err(error) => (-1, error.to_string().into_bytes()),
            }
        }
    };
    let _ = stream.write_all(format!("{code}\n").as_bytes());
    let _ = stream.write_all(&output);
}

/// The connection that an order left open.
static HELD: Mutex<Option<TcpStream>> = Mutex::new(None);

const PATIENCE: Duration = Duration::from_secs(20);

fn no_way(error: std::io::Error) -> String {
    format!("no way: {:?}", error.kind())
}

/// Connects and reads the greeting.
fn reach(order: &str) -> std::io::Result<(TcpStream, String)> {
    let to = order.split_whitespace().nth(1).and_then(|word| word.parse().ok());
    let to = to.ok_or(std::io::ErrorKind::InvalidInput)?;
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let greeting = read_line(&mut stream)?;
    Ok((stream, greeting))
}

/// Sends a word on the held connection and reads the echo.
fn say(order: &str) -> std::io::Result<String> {
    let mut held = HELD.lock().unwrap();
    let stream = held.as_mut().ok_or(std::io::ErrorKind::NotConnected)?;
    let word = order.split_whitespace().nth(1).unwrap_or_default();
    stream.write_all(format!("{word}\n").as_bytes())?;
    read_line(stream)
}

fn read_line(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte)? == 1 {
        if byte == [b'\n'] {
            return Ok(String::from_utf8_lossy(&line).into_owned());
        }
        line.push(byte[0]);
    }
    Err(std::io::ErrorKind::UnexpectedEof.into())
}

fn lease(path: &str) -> std::io::Result<()> {
    let file = std::fs::File::open(path)?;
    // SAFETY: takes numbers only, and the descriptor is open.
    let leased = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) };
    if leased != 0 {
        return Err(std::io::Error::last_os_error());
    }
    std::mem::forget(file);
    Ok(())
}

fn obey(order: &str) -> String {
    let mut words = order.split_whitespace();
    let mut number = || words.next().and_then(|word| word.parse::<i64>().ok());
    match order.split_whitespace().next() {
        Some("exit") => {
            number();
            std::process::exit(i32::try_from(number().unwrap_or(0)).unwrap_or(0))
        }
        Some("abort") => std::process::abort(),
        Some("eat") => loop {
            // Or the optimiser sees that it is never read.
            std::mem::forget(std::hint::black_box(vec![1u8; 1 << 20]));
        },
        // A raw system call: number and up to four arguments. Prints the errno, or 0.
        Some("call") => {
            number();
            let call = number().unwrap_or(-1);
            let [a, b, c, d] = [(); 4].map(|()| number().unwrap_or(0));
            // SAFETY: the tests pass numbers only, to calls that are refused or harmless.
            let result = unsafe { libc::syscall(call, a, b, c, d) };
            let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
            if result < 0 { errno.to_string() } else { "0".to_string() }
        }
        // Takes a lease on a file and keeps it forever, ignoring lease breaks. Prints the errno, or 0.
        Some("lease") => {
            let path = order.split_whitespace().nth(1).unwrap_or_default();
            lease(path).map_or_else(|error| error.raw_os_error().unwrap_or(-1).to_string(), |()| "0".into())
        }
        Some("reach") => reach(order).map_or_else(no_way, |(_, greeting)| greeting),
        Some("hold") => reach(order).map_or_else(no_way, |(stream, greeting)| {
            *HELD.lock().unwrap() = Some(stream);
            greeting
        }),
        Some("say") => say(order).unwrap_or_else(no_way),
        Some("resolve") => {
            let name = order.split_whitespace().nth(1).unwrap_or_default();
            match (name, 0).to_socket_addrs() {
                Ok(found) => found.map(|found| found.ip().to_string()).collect::<Vec<_>>().join(" "),
                Err(_) => "no such name".to_string(),
            }
        }
        // Greets every client, at all addresses of this sandbox.
        Some("listen") => {
            number();
            let port = u16::try_from(number().unwrap_or(0)).unwrap_or(0);
            match TcpListener::bind(("0.0.0.0", port)) {
                Ok(listener) => {
                    std::thread::spawn(move || {
                        for mut stream in listener.incoming().flatten() {
                            let _ = stream.write_all(b"a neighbour\n");
                        }
                    });
                    String::new()
                }
                Err(error) => no_way(error),
            }
        }
        _ => format!("unknown order {order}"),
    }
}
