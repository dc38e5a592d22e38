//! The client against a fake egress.

use std::os::fd::OwnedFd;

use coffer_core::network::Base;
use coffer_wire::egress::receive;
use coffer_wire::node::write_frame;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

use super::*;
use crate::network::{INBOX, Network};

static PUBLIC: Policy = Policy::of(Base::Public);
static WEB: Policy = Policy::of(Base::Web);

struct Stage {
    directory: TempDir,
    network: Arc<Network>,
    client: JoinHandle<()>,
}

impl Stage {
    fn set() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (asks, inbox) = mpsc::channel(INBOX);
        let families = Some(Families::V4);
        let client = Client::new(directory.path().join("egress.sock"), families, inbox);
        let (all_adopted, adopted) = oneshot::channel();
        all_adopted.send(()).unwrap();
        let client = tokio::spawn(client.run(adopted));
        Self { directory, network: Arc::new(Network { families, asks }), client }
    }

    fn listen(&self) -> UnixListener {
        let path = self.directory.path().join("egress.sock");
        let _ = std::fs::remove_file(&path);
        UnixListener::bind(path).unwrap()
    }

    /// Requests another policy, in a separate task.
    fn replace(&self, sandbox: SandboxId, policy: &'static Policy) -> JoinHandle<Result<(), NodeError>> {
        let network = self.network.clone();
        tokio::spawn(async move { network.replace(sandbox, policy).await })
    }

    async fn end(self) {
        drop(self.network);
        timeout(Duration::from_secs(10), self.client).await.unwrap().unwrap();
    }
}

/// Any socket; the fake egress does not inspect it.
fn listeners() -> Option<Listeners> {
    let sockets: Vec<OwnedFd> = (0..3).map(|_| std::io::pipe().unwrap().0.into()).collect();
    Listeners::of(sockets)
}

/// One connection from the client.
struct Played(UnixStream);

impl Played {
    async fn accept(listener: &UnixListener) -> Self {
        Self::accept_within(listener, Duration::from_secs(10)).await
    }

    async fn accept_within(listener: &UnixListener, patience: Duration) -> Self {
        Self(timeout(patience, listener.accept()).await.unwrap().unwrap().0)
    }

    async fn hear(&mut self) -> (u64, Request, usize) {
        let heard = timeout(Duration::from_secs(10), receive::<ToEgress>(&self.0)).await.unwrap();
        let (ToEgress { id, request }, descriptors) = heard.unwrap().unwrap();
        (id, request, descriptors.len())
    }

    async fn answer(&mut self, id: u64, result: Result<Reply, EgressError>) {
        write_frame(&mut self.0, &FromEgress { id, result }).await.unwrap();
    }

    /// Greets, and serves these already.
    async fn greet(&mut self, served: &[SandboxId]) {
        let (id, hello, _) = self.hear().await;
        assert_eq!(hello, Request::Hello { protocol: PROTOCOL });
        self.answer(id, Ok(Reply::Hello { protocol: PROTOCOL })).await;
        let (id, traffic, _) = self.hear().await;
        assert_eq!(traffic, Request::Traffic);
        let sandboxes = served.iter().map(|&sandbox| (sandbox, Traffic::default())).collect();
        self.answer(id, Ok(Reply::Traffic { sandboxes })).await;
    }

    /// Expects this request and answers it.
    async fn expect(&mut self, expected: Request) -> usize {
        let (id, request, descriptors) = self.hear().await;
        assert_eq!(request, expected);
        self.answer(id, Ok(Reply::Done)).await;
        descriptors
    }
}

fn added(sandbox: SandboxId) -> Request {
    Request::Add { sandbox, policy: PUBLIC.clone(), tcp: 1, dns_udp: 1, dns_tcp: 1 }
}

#[tokio::test]
async fn an_egress_that_comes_late_is_told_everything() {
    let stage = Stage::set();
    let (first, second, gone) = (SandboxId::generate(), SandboxId::generate(), SandboxId::generate());
    for sandbox in [first, second, gone] {
        stage.network.serve(sandbox, &PUBLIC, listeners()).in_force().await.unwrap();
    }
    stage.network.replace(second, &WEB).await.unwrap();
    stage.network.end(gone).await;
    assert_eq!(stage.network.refusals(first, 0).await.unwrap_err().code, NodeErrorCode::Unavailable);

    let listener = stage.listen();
    let mut egress = Played::accept(&listener).await;
    let stranger = SandboxId::generate();
    egress.greet(&[stranger]).await;
    egress.expect(Request::Remove { sandbox: stranger }).await;
    let mut told = HashMap::new();
    for _ in 0..2 {
        let (id, request, descriptors) = egress.hear().await;
        let Request::Add { sandbox, policy, .. } = request else { panic!("{request:?}") };
        assert_eq!(descriptors, 3);
        told.insert(sandbox, policy);
        egress.answer(id, Ok(Reply::Done)).await;
    }
    assert_eq!(told, HashMap::from([(first, PUBLIC.clone()), (second, WEB.clone())]));
    stage.network.end(first).await;
    egress.expect(Request::Remove { sandbox: first }).await;
    stage.end().await;
}

#[tokio::test]
async fn a_policy_counts_when_egress_says_so() {
    let stage = Stage::set();
    let listener = stage.listen();
    let mut egress = Played::accept(&listener).await;
    egress.greet(&[]).await;
    let sandbox = SandboxId::generate();
    let serving = stage.network.serve(sandbox, &PUBLIC, listeners());
    assert_eq!(egress.expect(added(sandbox)).await, 3);
    serving.in_force().await.unwrap();

    let replacing = stage.replace(sandbox, &WEB);
    let (id, _, _) = egress.hear().await;
    sleep(Duration::from_millis(50)).await;
    assert!(!replacing.is_finished(), "egress has not confirmed it");
    egress.answer(id, Ok(Reply::Replaced { cut: 0 })).await;
    replacing.await.unwrap().unwrap();

    // The connection breaks in the middle, and egress is still there: it may have the old policy.
    let replacing = stage.replace(sandbox, &PUBLIC);
    egress.hear().await;
    drop(egress);
    let mut egress = Played::accept(&listener).await;
    egress.greet(&[sandbox]).await;
    // It was given these sockets before: they are not sent again, and its connections live on.
    let (id, request, _) = egress.hear().await;
    assert_eq!(request, Request::ReplacePolicy { sandbox, policy: PUBLIC.clone() });
    assert!(!replacing.is_finished(), "egress has not confirmed it");
    egress.answer(id, Ok(Reply::Replaced { cut: 0 })).await;
    replacing.await.unwrap().unwrap();

    // The connection breaks and no process listens: nothing is open.
    let replacing = stage.replace(sandbox, &WEB);
    egress.hear().await;
    drop((egress, listener));
    replacing.await.unwrap().unwrap();
    stage.end().await;
}

#[tokio::test]
async fn a_sandbox_started_anew_gets_its_new_sockets_there() {
    let stage = Stage::set();
    let listener = stage.listen();
    let mut egress = Played::accept(&listener).await;
    egress.greet(&[]).await;
    let sandbox = SandboxId::generate();
    let serving = stage.network.serve(sandbox, &PUBLIC, listeners());
    egress.expect(added(sandbox)).await;
    serving.in_force().await.unwrap();
    drop(egress);
    // Restarted while the connection is down. Egress still has the sockets of a namespace that is gone.
    stage.network.end(sandbox).await;
    stage.network.serve(sandbox, &PUBLIC, listeners()).in_force().await.unwrap();
    let mut egress = Played::accept(&listener).await;
    egress.greet(&[sandbox]).await;
    egress.expect(Request::Remove { sandbox }).await;
    assert_eq!(egress.expect(added(sandbox)).await, 3);
    stage.end().await;
}

#[tokio::test]
async fn refusals_of_egress_are_told() {
    let stage = Stage::set();
    let listener = stage.listen();
    let mut egress = Played::accept(&listener).await;
    egress.greet(&[]).await;
    let sandbox = SandboxId::generate();
    let refuse = |code| Err(EgressError { code, message: "no".into() });
    let serving = stage.network.serve(sandbox, &PUBLIC, listeners());
    let (id, _, _) = egress.hear().await;
    egress.answer(id, refuse(EgressErrorCode::NoCapacity)).await;
    assert_eq!(serving.in_force().await.unwrap_err().code, NodeErrorCode::NoCapacity);
    // Egress refuses nothing to a sandbox that it does not have.
    let (refusals, ()) = tokio::join!(stage.network.refusals(sandbox, 3), async {
        let (id, request, _) = egress.hear().await;
        assert_eq!(request, Request::Refusals { sandbox, after: 3 });
        egress.answer(id, refuse(EgressErrorCode::UnknownSandbox)).await;
    });
    assert_eq!(refusals.unwrap(), Refusals::default());
    // An egress of another protocol is retried.
    drop(egress);
    let mut egress = Played::accept(&listener).await;
    let (id, _, _) = egress.hear().await;
    egress.answer(id, refuse(EgressErrorCode::ProtocolMismatch)).await;
    Played::accept(&listener).await.greet(&[]).await;
    stage.end().await;
}

#[tokio::test]
async fn a_silent_egress_holds_nobody_up_for_long() {
    let stage = Stage::set();
    let _silent = stage.listen();
    let sandbox = SandboxId::generate();
    let (served, replaced) = tokio::join!(
        stage.network.serve(sandbox, &PUBLIC, listeners()).in_force(),
        stage.network.replace(sandbox, &WEB),
    );
    served.unwrap();
    assert_eq!(replaced.unwrap_err().code, NodeErrorCode::Unavailable, "the old policy may be in force");
    assert!(stage.network.traffic().await.is_empty(), "egress reports nothing");
    stage.client.abort();
}

#[tokio::test(start_paused = true)]
async fn a_full_inbox_refuses_what_is_new_and_takes_what_ends() {
    let (asks, mut inbox) = mpsc::channel(1);
    let network = Arc::new(Network { families: Some(Families::V4), asks });
    let (first, second) = (SandboxId::generate(), SandboxId::generate());
    let serving = network.serve(first, &PUBLIC, listeners());
    let refused = network.serve(second, &PUBLIC, listeners()).in_force().await;
    assert_eq!(refused.unwrap_err().code, NodeErrorCode::Unavailable);
    assert_eq!(network.replace(first, &WEB).await.unwrap_err().code, NodeErrorCode::Unavailable);
    assert_eq!(network.refusals(first, 0).await.unwrap_err().code, NodeErrorCode::Unavailable);
    assert!(network.traffic().await.is_empty());
    let ending = tokio::spawn({
        let network = network.clone();
        async move { network.end(first).await }
    });
    // Far longer than any timeout: an end keeps waiting.
    sleep(Duration::from_secs(60)).await;
    assert!(!ending.is_finished());
    // Refused requests are not sent later.
    let served = inbox.recv().await.unwrap();
    assert!(matches!(served, Ask::Serve { sandbox, .. } if sandbox == first), "{served:?}");
    ending.await.unwrap();
    let ended = inbox.recv().await.unwrap();
    assert!(matches!(ended, Ask::End { sandbox } if sandbox == first), "{ended:?}");
    assert!(inbox.try_recv().is_err());
    drop(serving);
}

#[tokio::test]
async fn room_that_comes_in_time_is_used() {
    let (asks, mut inbox) = mpsc::channel(1);
    let network = Network { families: Some(Families::V4), asks };
    let sandboxes = [SandboxId::generate(), SandboxId::generate()];
    let [first, second] = sandboxes.map(|sandbox| network.serve(sandbox, &PUBLIC, listeners()));
    let client = async {
        for _ in sandboxes {
            let Some(Ask::Serve { done: Some(done), .. }) = inbox.recv().await else { panic!("no request") };
            tell_done(done);
        }
    };
    let (first, second, ()) = tokio::join!(first.in_force(), second.in_force(), client);
    first.unwrap();
    second.unwrap();
}

#[tokio::test]
async fn any_number_of_requests_passes_while_egress_is_away() {
    let stage = Stage::set();
    for _ in 0..10_000 {
        let sandbox = SandboxId::generate();
        stage.network.serve(sandbox, &PUBLIC, listeners()).in_force().await.unwrap();
        stage.network.end(sandbox).await;
    }
    // All at once, ten times what the inbox holds.
    let mut replacing = tokio::task::JoinSet::new();
    for _ in 0..10 * INBOX {
        let network = stage.network.clone();
        replacing.spawn(async move { network.replace(SandboxId::generate(), &WEB).await });
    }
    while let Some(replaced) = replacing.join_next().await {
        replaced.unwrap().unwrap();
    }
    drop(replacing);
    stage.end().await;
}

#[tokio::test]
async fn an_egress_that_stalls_with_all_requests_under_way_is_dropped() {
    let stage = Stage::set();
    let listener = stage.listen();
    let mut egress = Played::accept(&listener).await;
    egress.greet(&[]).await;
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..2 * UNDER_WAY {
        let network = stage.network.clone();
        asking.spawn(async move { network.end(SandboxId::generate()).await });
    }
    // It reads all requests, and answers none.
    for _ in 0..UNDER_WAY {
        egress.hear().await;
    }
    tokio::time::pause();
    // Its timeout passes at once, because nothing else happens.
    let mut egress = Played::accept_within(&listener, 10 * PATIENCE).await;
    tokio::time::resume();
    egress.greet(&[]).await;
    while let Some(ended) = asking.join_next().await {
        ended.unwrap();
    }
    stage.end().await;
}
