//! A context: a kernel with its directory, and whose turn it is.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use coffer_core::sync::Mutex;
use http::HeaderValue;
use tokio::sync::Mutex as Turn;
use tokio::time::Instant;
use uuid::Uuid;

use crate::envs::Envs;
use crate::kernel::{Arrived, Ended, Kernel};
use crate::language::{Language, Variables};
use crate::place::Place;
use crate::process::Process;
use crate::stream::Sink;
use crate::task;

/// A kernel that lived shorter than this counts as one that does not start.
const SOUND: Duration = Duration::from_secs(5);
/// After so many of them in a row only a call starts another one.
const FAILURES: u32 = 3;

/// How often a call tries to start a kernel: the first may be killed while it starts.
const STARTS: u32 = 3;

/// What all contexts share.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) place: Place,
    pub(crate) envs: Envs,
}

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) id: String,
    pub(crate) language: Language,
    pub(crate) directory: String,
    world: Arc<World>,
    /// Held by the call that runs. Those that wait get it in order.
    turn: Turn<Seat>,
    /// The process of the kernel, for those who do not wait for their turn.
    process: Mutex<Option<Arc<Process>>>,
    removed: AtomicBool,
}

#[derive(Debug, Default)]
struct Seat {
    kernel: Option<Kernel>,
    failures: u32,
}

/// What a client asks for.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) code: String,
    pub(crate) variables: Variables,
    pub(crate) token: Option<HeaderValue>,
}

impl Context {
    pub(crate) fn new(world: Arc<World>, language: Language, directory: Option<String>) -> Arc<Self> {
        let directory = directory.unwrap_or_else(|| world.place.work.display().to_string());
        Arc::new(Self {
            id: Uuid::new_v4().to_string(),
            language,
            directory,
            world,
            turn: Turn::default(),
            process: Mutex::new(None),
            removed: AtomicBool::new(false),
        })
    }

    /// Starts its kernel, if it has none.
    pub(crate) async fn open(self: &Arc<Self>) -> io::Result<()> {
        let mut seat = self.turn.lock().await;
        self.kernel(&mut seat).await.map(drop)
    }

    /// Replaces its kernel. A call that runs ends with an error.
    pub(crate) async fn restart(self: &Arc<Self>) -> io::Result<()> {
        let old = self.process.lock().clone();
        if let Some(old) = &old {
            old.kill();
        }
        let mut seat = self.turn.lock().await;
        // A call that waited may have started the next one already.
        let is_old = |kernel: &Kernel| old.as_ref().is_some_and(|old| Arc::ptr_eq(old, kernel.process()));
        if seat.kernel.as_ref().is_none_or(is_old) {
            seat.kernel = None;
            seat.failures = 0;
        }
        self.kernel(&mut seat).await.map(drop)
    }

    /// Ends its kernel for good.
    pub(crate) fn remove(&self) {
        self.removed.store(true, Ordering::Release);
        if let Some(process) = self.process.lock().take() {
            process.kill();
        }
    }

    /// Runs a call when it is its turn. The answer goes to the sink.
    pub(crate) async fn perform(self: Arc<Self>, call: Call, sink: Sink) {
        let mut seat = tokio::select! {
            seat = self.turn.lock() => seat,
            () = sink.abandoned() => return,
        };
        let identity = self.world.place.identity();
        let sandbox = self.world.envs.get(&self.world.place, &identity, call.token.as_ref()).await;
        let ended = match self.own_kernel(&mut seat, &identity, sandbox.as_deref()).await {
            Ok(Some(kernel)) => run(kernel, &call, &sink).await,
            Ok(None) => Ended::Died,
            Err(error) => {
                let why = format!("{} could not be started: {error}", self.language.name());
                sink.error("ContextStartFailed", &why);
                return sink.end();
            }
        };
        if ended == Ended::Died {
            seat.kernel = None;
            if self.removed.load(Ordering::Acquire) {
                sink.error("ContextRemoved", "Context was removed");
            } else {
                sink.error("ContextRestarting", "Context was restarted");
            }
            return sink.end();
        }
        seat.failures = 0;
        sink.end();
        // The client has its answer and does not wait for this.
        let reset = self.language.reset(&call.variables, sandbox.as_deref().unwrap_or(&Variables::new()));
        if let Some(kernel) = &mut seat.kernel
            && kernel.run_silent(&reset).await == Ended::Died
        {
            seat.kernel = None;
        }
    }

    /// The kernel as one of the sandbox that we are in. One of a memory image that cannot be made so is replaced: nobody
    /// has used it. Nothing if it died.
    async fn own_kernel<'a>(
        self: &Arc<Self>,
        seat: &'a mut Seat,
        identity: &str,
        variables: Option<&Variables>,
    ) -> io::Result<Option<&'a mut Kernel>> {
        let mut arrived = self.kernel(seat).await?.arrive(identity, variables).await;
        if arrived == Arrived::Foreign {
            seat.kernel = None;
            arrived = self.kernel(seat).await?.arrive(identity, variables).await;
        }
        Ok(seat.kernel.as_mut().filter(|_| arrived == Arrived::Ready))
    }

    /// The kernel, started if there is none that runs.
    async fn kernel<'a>(self: &Arc<Self>, seat: &'a mut Seat) -> io::Result<&'a mut Kernel> {
        if seat.kernel.as_ref().is_some_and(|kernel| kernel.process().has_ended()) {
            seat.kernel = None;
        }
        if seat.kernel.is_none() {
            let place = &self.world.place;
            let identity = place.identity();
            let known = self.world.envs.known(&identity);
            let mut left = STARTS;
            let kernel = loop {
                left -= 1;
                match Kernel::start(self.language, place, &self.directory, &identity, known.as_deref()).await
                {
                    Err(error) if left > 0 && may_pass(&error) => {}
                    started => break started?,
                }
            };
            let process = Arc::clone(kernel.process());
            *self.process.lock() = Some(Arc::clone(&process));
            if self.removed.load(Ordering::Acquire) {
                return Err(io::Error::other("the context was removed"));
            }
            task::spawn(Arc::clone(self).watch(process));
            seat.kernel = Some(kernel);
        }
        seat.kernel.as_mut().ok_or_else(|| io::Error::other("it has no kernel"))
    }

    /// Starts another kernel when this one has died. Boxed, because that leads to another watch.
    fn watch(self: Arc<Self>, process: Arc<Process>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let since = Instant::now();
            process.ended().await;
            if self.removed.load(Ordering::Acquire) {
                return;
            }
            let mut seat = self.turn.lock().await;
            seat.failures = if since.elapsed() < SOUND { seat.failures + 1 } else { 0 };
            if seat.failures < FAILURES && !self.removed.load(Ordering::Acquire) {
                // If it fails, the next call says why.
                let _failed = self.kernel(&mut seat).await.map(drop);
            }
        })
    }
}

/// Whether another try may succeed: what is missing stays so, and nobody waits twice for what does not answer.
fn may_pass(error: &io::Error) -> bool {
    !matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::TimedOut
    )
}

async fn run(kernel: &mut Kernel, call: &Call, sink: &Sink) -> Ended {
    if kernel.set(&call.variables).await == Ended::Died {
        return Ended::Died;
    }
    kernel.run(&call.code, sink).await
}
