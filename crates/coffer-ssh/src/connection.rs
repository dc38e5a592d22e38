//! A connection: from the greeting to the last channel.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coffer_core::sync::Mutex;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::task::JoinSet;

use crate::auth::{Answer, Door};
use crate::channel::{Channel, Line, PIECE, Shared, WINDOW};
use crate::error::Error;
use crate::exchange::Parties;
use crate::keys::{KeyPair, PublicKey};
use crate::message::{
    BY_APPLICATION, CHANNEL_CLOSE, CHANNEL_DATA, CHANNEL_EOF, CHANNEL_EXTENDED_DATA, CHANNEL_FAILURE,
    CHANNEL_OPEN, CHANNEL_OPEN_CONFIRMATION, CHANNEL_OPEN_FAILURE, CHANNEL_REQUEST, CHANNEL_SUCCESS,
    CHANNEL_WINDOW_ADJUST, CONNECT_FAILED, DEBUG, DISCONNECT, EXT_INFO, GLOBAL_REQUEST, IGNORE, KEXINIT,
    NO_ROOM, PROHIBITED, REQUEST_FAILURE, REQUEST_SUCCESS, UNIMPLEMENTED, UNKNOWN_TYPE,
};
use crate::packet::{Reader, Writer};
use crate::session::{Draft, Step};
pub use crate::session::{Start, Terminal};
use crate::text::{Append as _, Fields};

const GREETING: &str = concat!("SSH-2.0-Cofferdam_", env!("CARGO_PKG_VERSION"));
const MOST_CHANNELS: usize = 512;
/// How long what the client left behind may take to end.
const WIND_DOWN: Duration = Duration::from_secs(5);
/// How long a client may take to be let in: it may ask for nothing, its key has no password.
const LET_IN_WITHIN: Duration = Duration::from_secs(120);
const READ_AHEAD: usize = 256 << 10;

/// Where a forwarded connection goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Tcp {
        host: String,
        port: u16,
    },
    /// A socket in the file system.
    Unix(String),
}

/// Carries a forwarded connection.
pub type Tunnel = Box<dyn FnOnce(Channel) -> BoxFuture<'static, ()> + Send>;

/// What is behind the connection.
pub trait Host: Send + Sync {
    /// Runs a program until it ends; the channel then closes. `user` is whom the client asked to be.
    fn run(
        &self,
        user: &str,
        start: Start,
        terminal: Option<Terminal>,
        env: Vec<(String, String)>,
        channel: Channel,
    ) -> BoxFuture<'static, ()>;

    /// Connects, or says why not.
    fn connect(&self, user: &str, target: Target) -> BoxFuture<'static, Result<Tunnel, String>>;
}

/// Serves one client until it goes. It must have the key `known`.
pub async fn serve(
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
    host_key: KeyPair,
    known: PublicKey,
    host: Arc<dyn Host>,
) -> Result<(), Error> {
    let mut reader = Reader::new(Box::new(BufReader::with_capacity(READ_AHEAD, input)));
    let line: Line = Arc::new(tokio::sync::Mutex::new(Writer::new(Box::new(output))));
    let let_in = greet_and_let_in(&mut reader, &line, host_key, known);
    let let_in = tokio::time::timeout(LET_IN_WITHIN, let_in).await.map_err(|_| Error::NotAllowed)?;
    let (parties, user) = match let_in {
        Ok(let_in) => let_in,
        Err(error) => {
            say_goodbye(&line, &error).await;
            return Err(error);
        }
    };
    let channels = Arc::default();
    let jobs = JoinSet::new();
    let mut connection = Connection { reader, line, parties, user, host, channels, next: 0, jobs };
    let ended = connection.read().await;
    connection.wind_down().await;
    match ended {
        // How most clients leave.
        Err(Error::Io(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(()),
        Err(error) => {
            say_goodbye(&connection.line, &error).await;
            Err(error)
        }
        ended => ended,
    }
}

async fn greet_and_let_in(
    reader: &mut Reader,
    line: &Line,
    host_key: KeyPair,
    known: PublicKey,
) -> Result<(Parties, String), Error> {
    let mut writer = line.lock().await;
    writer.greet(GREETING).await?;
    let client = reader.greeting().await?;
    if !client.starts_with("SSH-2.0-") {
        return Err(Error::Protocol("no SSH greeting"));
    }
    let mut parties = Parties::new(client, GREETING.to_string(), host_key);
    let first = reader.next().await?;
    if first[0] != KEXINIT {
        return Err(Error::Protocol("no offer of algorithms"));
    }
    parties.exchange(first, reader, &mut writer).await?;
    let session = parties.session.ok_or(Error::Protocol("no exchange of keys"))?;
    let mut door = Door::new(session, known);
    loop {
        let message = reader.next().await?;
        match message[0] {
            IGNORE | DEBUG | EXT_INFO => {}
            DISCONNECT => return Err(Error::NotAllowed),
            KEXINIT => parties.exchange(message, reader, &mut writer).await?,
            _ => match door.answer(&message)? {
                Answer::Say(said) => writer.send(&said).await?,
                Answer::Welcome(said, user) => {
                    writer.send(&said).await?;
                    return Ok((parties, user));
                }
            },
        }
    }
}

async fn say_goodbye(line: &Line, error: &Error) {
    let mut message = vec![DISCONNECT];
    message.number(BY_APPLICATION);
    message.string(error.to_string().as_bytes());
    message.string(b"");
    let _gone = line.lock().await.send(&message).await;
}

/// Channels by our number of them.
type Channels = Arc<Mutex<HashMap<u32, Open>>>;

struct Open {
    channel: Arc<Shared>,
    /// Of a session whose program has not been named yet.
    draft: Option<Draft>,
    /// Whether we closed it; it is forgotten when both have.
    closed_here: bool,
    closed_there: bool,
}

struct Connection {
    reader: Reader,
    line: Line,
    parties: Parties,
    user: String,
    host: Arc<dyn Host>,
    channels: Channels,
    next: u32,
    jobs: JoinSet<()>,
}

impl Connection {
    async fn read(&mut self) -> Result<(), Error> {
        loop {
            let message = self.reader.next().await?;
            while self.jobs.try_join_next().is_some() {}
            match message[0] {
                IGNORE | DEBUG | EXT_INFO | UNIMPLEMENTED | REQUEST_SUCCESS | REQUEST_FAILURE => {}
                CHANNEL_SUCCESS | CHANNEL_FAILURE => {}
                DISCONNECT => return Ok(()),
                KEXINIT => {
                    let mut writer = self.line.lock().await;
                    self.parties.exchange(message, &mut self.reader, &mut writer).await?;
                }
                GLOBAL_REQUEST => {
                    // Listening in the sandbox for the client is not offered; keepalives want any answer.
                    let mut fields = Fields::of(&message[1..]);
                    fields.string()?;
                    if fields.flag()? {
                        self.say(&[REQUEST_FAILURE]).await?;
                    }
                }
                CHANNEL_OPEN => self.open(&message).await?,
                CHANNEL_DATA..=CHANNEL_REQUEST | CHANNEL_WINDOW_ADJUST => self.pass_on(&message).await?,
                _ => {
                    let mut unknown = vec![UNIMPLEMENTED];
                    unknown.number(self.reader.last());
                    self.say(&unknown).await?;
                }
            }
        }
    }

    async fn say(&self, message: &[u8]) -> Result<(), Error> {
        self.line.lock().await.send(message).await
    }

    async fn open(&mut self, message: &Bytes) -> Result<(), Error> {
        let mut fields = Fields::of(&message[1..]);
        let kind = fields.text()?;
        let (theirs, window, piece) = (fields.number()?, fields.number()?, fields.number()?);
        if self.channels.lock().len() >= MOST_CHANNELS {
            return self.say(&refused(theirs, NO_ROOM, "too many channels")).await;
        }
        let channel = Shared::new(theirs, window, piece, self.line.clone());
        match kind {
            "session" => {
                let ours = self.enter(channel, Some(Draft::default()));
                self.say(&confirmed(theirs, ours)).await
            }
            "direct-tcpip" => {
                let (host, port) = (fields.text()?.to_string(), fields.number()?);
                match u16::try_from(port) {
                    Ok(port) => self.connect(channel, theirs, Target::Tcp { host, port }),
                    Err(_) => self.say(&refused(theirs, CONNECT_FAILED, "there is no such port")).await?,
                }
                Ok(())
            }
            "direct-streamlocal@openssh.com" => {
                let path = fields.text()?.to_string();
                self.connect(channel, theirs, Target::Unix(path));
                Ok(())
            }
            "x11" | "auth-agent@openssh.com" | "forwarded-tcpip" => {
                self.say(&refused(theirs, PROHIBITED, "not from a client")).await
            }
            _ => self.say(&refused(theirs, UNKNOWN_TYPE, "unknown kind of channel")).await,
        }
    }

    fn enter(&mut self, channel: Arc<Shared>, draft: Option<Draft>) -> u32 {
        let ours = self.next;
        self.next = self.next.wrapping_add(1);
        self.channels.lock().insert(ours, Open { channel, draft, closed_here: false, closed_there: false });
        ours
    }

    /// Connects in the background, and answers when that is done.
    fn connect(&mut self, channel: Arc<Shared>, theirs: u32, target: Target) {
        let connecting = self.host.connect(&self.user, target);
        // Known from now on, so that the number is taken; the client learns it later.
        let ours = self.enter(channel.clone(), None);
        let channels = self.channels.clone();
        self.jobs.spawn(async move {
            match connecting.await {
                Ok(tunnel) => {
                    if channel.send(&confirmed(theirs, ours)).await.is_ok() {
                        tunnel(Channel(channel.clone())).await;
                        close(&channels, ours, &channel).await;
                    }
                }
                Err(reason) => {
                    channels.lock().remove(&ours);
                    let _gone = channel.send(&refused(theirs, CONNECT_FAILED, &reason)).await;
                }
            }
        });
    }

    /// Passes a message on to its channel.
    async fn pass_on(&mut self, message: &Bytes) -> Result<(), Error> {
        let mut fields = Fields::of(&message[1..]);
        let ours = fields.number()?;
        let found = self.channels.lock().get(&ours).map(|open| open.channel.clone());
        let channel = found.ok_or(Error::Protocol("a message for a channel that is not open"))?;
        match message[0] {
            CHANNEL_WINDOW_ADJUST => channel.opened_wider(fields.number()?)?,
            CHANNEL_DATA => channel.received(message.slice_ref(fields.string()?))?,
            // Clients have one stream only.
            CHANNEL_EXTENDED_DATA => {}
            CHANNEL_EOF => channel.input_ended(),
            CHANNEL_CLOSE => self.closed_there(ours, &channel).await,
            CHANNEL_REQUEST => self.request(ours, &channel, fields).await?,
            _ => {}
        }
        Ok(())
    }

    async fn closed_there(&self, ours: u32, channel: &Arc<Shared>) {
        channel.closed();
        let close_now = {
            let mut channels = self.channels.lock();
            let Some(open) = channels.get_mut(&ours) else { return };
            open.closed_there = true;
            let never_began = open.draft.is_some();
            if open.closed_here || never_began {
                channels.remove(&ours);
            }
            never_began
        };
        if close_now {
            channel.close().await;
        }
    }

    async fn request(
        &mut self,
        ours: u32,
        channel: &Arc<Shared>,
        mut fields: Fields<'_>,
    ) -> Result<(), Error> {
        let kind = fields.text()?;
        let wants_answer = fields.flag()?;
        let step = match kind {
            "window-change" => {
                channel.resized(fields.number()?, fields.number()?);
                Step::Noted
            }
            "signal" => {
                channel.signalled(fields.text()?);
                Step::Noted
            }
            _ => match self.channels.lock().get_mut(&ours).and_then(|open| open.draft.as_mut()) {
                Some(draft) => draft.request(kind, fields)?,
                None => Step::Refused,
            },
        };
        if wants_answer {
            let answer = if step == Step::Refused { CHANNEL_FAILURE } else { CHANNEL_SUCCESS };
            channel.send(&channel.message(answer)).await?;
        }
        if let Step::Begin(start) = step {
            let draft = self.channels.lock().get_mut(&ours).and_then(|open| open.draft.take());
            let Draft { terminal, env } = draft.unwrap_or_default();
            let running = self.host.run(&self.user, start, terminal, env, Channel(channel.clone()));
            let (channels, channel) = (self.channels.clone(), channel.clone());
            self.jobs.spawn(async move {
                running.await;
                close(&channels, ours, &channel).await;
            });
        }
        Ok(())
    }

    /// Tells everything that runs that the client is gone, and waits a while for it.
    async fn wind_down(&mut self) {
        for open in self.channels.lock().values() {
            open.channel.closed();
        }
        let all = async { while self.jobs.join_next().await.is_some() {} };
        let _slow = tokio::time::timeout(WIND_DOWN, all).await;
    }
}

/// Closes a channel on our side.
async fn close(channels: &Channels, ours: u32, channel: &Arc<Shared>) {
    {
        let mut channels = channels.lock();
        if let Some(open) = channels.get_mut(&ours) {
            open.closed_here = true;
            if open.closed_there {
                channels.remove(&ours);
            }
        }
    }
    channel.close().await;
}

fn confirmed(theirs: u32, ours: u32) -> Vec<u8> {
    let mut message = vec![CHANNEL_OPEN_CONFIRMATION];
    for number in [theirs, ours, WINDOW, PIECE] {
        message.number(number);
    }
    message
}

fn refused(theirs: u32, reason: u32, words: &str) -> Vec<u8> {
    let mut message = vec![CHANNEL_OPEN_FAILURE];
    message.number(theirs);
    message.number(reason);
    message.string(words.as_bytes());
    message.string(b"");
    message
}
