//! The service: its port, and its first kernels.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

use crate::context::World;
use crate::contexts::Contexts;
use crate::envs::Envs;
use crate::language::Language;
use crate::place::Place;
use crate::service::Service;
use crate::{route, task};

const PORT: u16 = 49999;
const CONNECTIONS: usize = 64;
/// How long a client may take to send a head, and may be idle between two requests.
const HEAD_TIME: Duration = Duration::from_secs(640);
/// Pause after a failed accept: descriptors have run out, and an immediate retry does not help.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

pub(crate) fn run() -> io::Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(serve())
}

async fn serve() -> io::Result<()> {
    // A signal that is ignored stays so in kernels, which could not be interrupted then; one that is handled does not.
    let mut interrupts = signal(SignalKind::interrupt())?;
    let place = Place::from_environment();
    place.prepare()?;
    let port = std::env::var("COFFER_CODE_PORT").ok().and_then(|port| port.parse().ok()).unwrap_or(PORT);
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await?;
    let world = Arc::new(World { place, envs: Envs::default() });
    let service = Arc::new(Service::new(Contexts::new(world)));
    task::spawn(warm(Arc::clone(&service)));
    // Callers inside may prefer IPv6; where there is none, they do without.
    let six = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
    let six = if port == 0 { None } else { TcpListener::bind(six).await.ok() };
    if let Some(six) = six {
        task::spawn(accept_all(Arc::clone(&service), six));
    }
    tokio::select! {
        () = accept_all(service, listener) => {}
        _ = interrupts.recv() => {}
    }
    Ok(())
}

/// Starts the kernels that most sandboxes use, before anybody asks.
async fn warm(service: Arc<Service>) {
    let chosen = std::env::var("COFFER_CODE_START").unwrap_or_else(|_| "python".to_string());
    for name in chosen.split(',').filter(|name| !name.trim().is_empty()) {
        let context = service
            .contexts
            .language(name)
            .and_then(|language: Language| service.contexts.default_of(language));
        match context {
            Ok(context) => {
                if let Err(error) = context.open().await {
                    eprintln!("coffer-code: {name} could not be started: {error}");
                }
            }
            Err(error) => eprintln!("coffer-code: {}", error.explain(&service.contexts.installed())),
        }
    }
    service.set_ready();
}

async fn accept_all(service: Arc<Service>, listener: TcpListener) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let service = Arc::clone(&service);
                task::spawn(async move {
                    connection(service, stream).await;
                    drop(place);
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn connection(service: Arc<Service>, stream: TcpStream) {
    // Without it, lines are only later.
    let _unset = stream.set_nodelay(true);
    let respond = service_fn(move |request| {
        let service = Arc::clone(&service);
        async move { Ok::<_, Infallible>(route::answer(service, request).await) }
    });
    // The client sees errors of its connection itself.
    let _ended = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .serve_connection(TokioIo::new(stream), respond)
        .await;
}
