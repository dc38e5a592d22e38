//! Sandboxes reach what their policy allows, through egress and no other way, whichever process dies.

use std::time::{Duration, Instant};

use coffer_core::Boot;
use coffer_core::network::{Base, Policy, RefusedKind};
use coffer_engine::{Engine as _, NodeEngine};
use coffer_node::WarmChoice;
use coffer_wire::node::CreateSandbox;

use crate::harness::{Home, Sandbox, TestNode, small, spec};
use crate::way_out::{EXAMPLE, HOST, Internet};

crate::tests![
    a_policy_opens_and_closes_the_way,
    names_are_answered_as_the_policy_allows,
    neither_the_host_nor_a_neighbour_is_reached,
    root_inside_cannot_open_another_way,
    a_killed_egress_is_followed_by_another,
    a_killed_node_leaves_connections_open,
    both_die_and_the_way_comes_back,
    a_claimed_slot_has_its_policy_from_the_first_moment,
    a_stopped_sandbox_has_its_way_when_started,
    nothing_of_the_network_is_left_behind,
    without_egress_there_is_no_way,
];

const PUBLIC: Policy = Policy::of(Base::Public);
const NOTHING: Policy = Policy::of(Base::None);

fn only(allowed: &[&str]) -> Policy {
    Policy::new(Base::None, allowed.iter().map(|entry| entry.parse().unwrap()).collect(), vec![]).unwrap()
}

async fn create(engine: &NodeEngine, network: Policy) -> Sandbox {
    let spec = CreateSandbox { network, ..spec(small()) };
    Sandbox { id: spec.sandbox, placement: engine.create(&spec).await.unwrap() }
}

/// The greeting that a sandbox reads when it connects to that address.
async fn reach(sandbox: &Sandbox, address: &str) -> String {
    sandbox.output(&format!("!reach {address}")).await
}

fn greeting(address: &str) -> String {
    format!("this is {address}")
}

/// A sandbox can reach that address soon: egress may need the policy first.
async fn reaches(sandbox: &Sandbox, address: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let heard = reach(sandbox, address).await;
        if heard == greeting(address) {
            return;
        }
        assert!(Instant::now() < deadline, "{heard}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

const SITE: &str = "93.184.216.34:80";
const SITE_V6: &str = "[2606:2800:220:1::1]:443";

async fn a_policy_opens_and_closes_the_way() {
    let home = Home::new();
    let internet = Internet::open().await;
    let _egress = internet.start_egress(home.run_dir());
    let node = home.start().await;
    assert!(node.engine.info().await.unwrap().capabilities.network, "this test needs nf_tables");
    let sandbox = create(&node.engine, NOTHING).await;
    connected(&node, &sandbox).await;
    let heard = reach(&sandbox, SITE).await;
    assert!(heard.starts_with("no way"), "{heard}");
    let refusals = node.engine.refusals(sandbox.id, 0).await.unwrap();
    let refusal = &refusals.refusals[0];
    assert_eq!((refusal.kind, refusal.rule.as_str()), (RefusedKind::Connection, "base:none"));
    assert_eq!((refusal.address, refusal.port), (EXAMPLE.parse().ok(), Some(80)));
    assert_eq!(internet.reached(), [""; 0]);

    node.engine.set_network(sandbox.id, &PUBLIC).await.unwrap();
    for site in [SITE, SITE_V6, "8.8.8.8:853"] {
        assert_eq!(reach(&sandbox, site).await, greeting(site));
    }
    assert_eq!(sandbox.output(&format!("!hold {SITE}")).await, greeting(SITE));
    assert_eq!(sandbox.output("!say hello").await, "hello");
    let sample = node.engine.stats().await.unwrap().pop().unwrap();
    assert!(sample.traffic.received_bytes > 0 && sample.traffic.sent_bytes >= 6, "{sample:?}");
    assert_eq!((sample.traffic.open, sample.traffic.refused), (1, 1), "{sample:?}");

    // Another address may stay, this one may not: it is cut before the answer comes.
    node.engine.set_network(sandbox.id, &only(&["8.8.8.8"])).await.unwrap();
    let heard = sandbox.output("!say again").await;
    assert!(heard.starts_with("no way"), "{heard}");
    assert_eq!(reach(&sandbox, "8.8.8.8:853").await, greeting("8.8.8.8:853"));
    assert!(reach(&sandbox, SITE).await.starts_with("no way"));
    let cut = node.engine.refusals(sandbox.id, refusals.total).await.unwrap();
    assert_eq!(cut.refusals[0].kind, RefusedKind::Cut);
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

/// Waits until the node is connected to egress.
async fn connected(node: &TestNode, sandbox: &Sandbox) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while let Err(error) = node.engine.refusals(sandbox.id, 0).await {
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn names_are_answered_as_the_policy_allows() {
    let home = Home::new();
    let internet = Internet::open().await;
    let _egress = internet.start_egress(home.run_dir());
    let node = home.start().await;
    let open = create(&node.engine, PUBLIC).await;
    reaches(&open, SITE).await;
    assert_eq!(open.output("!resolve example.com").await, EXAMPLE);
    assert_eq!(open.output("!resolve nowhere.example.com").await, "no such name");
    assert_eq!(open.output("!resolve inner.example.com").await, "no such name", "an inner address is none");
    let resolver = open.output("cat /etc/resolv.conf").await;
    assert!(resolver.starts_with("nameserver 192.0.2.53\n"), "{resolver}");
    let closed = create(&node.engine, only(&["other.example.com"])).await;
    assert_eq!(closed.output("!resolve example.com").await, "no such name");
    let refused = node.engine.refusals(closed.id, 0).await.unwrap().refusals;
    assert!(refused.iter().any(|refusal| refusal.kind == RefusedKind::Question), "{refused:?}");
    node.stop().await;
}

async fn neither_the_host_nor_a_neighbour_is_reached() {
    let home = Home::new();
    let internet = Internet::open().await;
    let _egress = internet.start_egress(home.run_dir());
    let node = home.start().await;
    let (sandbox, neighbour) = tokio::join!(create(&node.engine, PUBLIC), create(&node.engine, PUBLIC));
    reaches(&sandbox, SITE).await;
    let before = internet.reached().len();
    assert_eq!(neighbour.output("!listen 9000").await, "");
    assert_eq!(reach(&neighbour, "192.0.2.1:9000").await, "a neighbour", "its own it reaches");
    let port = internet.address.port();
    let everywhere = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let open = everywhere.local_addr().unwrap().port();
    let lan = own_address();
    let mut attempts = vec![
        // This sandbox's own, where no process listens.
        format!("127.0.0.1:{port}"),
        format!("127.0.0.1:{open}"),
        "192.0.2.1:9000".into(),
        "[::1]:9000".into(),
        "[2001:db8::1]:9000".into(),
        // The sockets that lead out, without having been redirected there.
        "127.0.0.1:64443".into(),
        "[::1]:64443".into(),
    ];
    let walled =
        ["10.0.0.1", "172.17.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", HOST, &lan];
    attempts.extend(walled.map(|address| format!("{address}:{open}")));
    let walled = ["::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe", "fd00::1", "fe80::1", "2002:7f00:1::", "ff02::1"];
    attempts.extend(walled.map(|address| format!("[{address}]:{open}")));
    for attempt in &attempts {
        let heard = reach(&sandbox, attempt).await;
        assert!(heard.starts_with("no way"), "{attempt}: {heard}");
    }
    assert_eq!(internet.reached().len(), before, "egress dialled nothing of it");
    everywhere.set_nonblocking(true).unwrap();
    assert_eq!(everywhere.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    let refused = node.engine.refusals(sandbox.id, 0).await.unwrap().refusals;
    assert!(refused.iter().any(|refusal| refusal.rule == "never:private"), "{refused:?}");
    node.stop().await;
}

/// An address of the host on another interface than `lo`, if it has one.
fn own_address() -> String {
    let probe = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    match probe.connect("9.9.9.9:9").and_then(|()| probe.local_addr()) {
        Ok(address) => address.ip().to_string(),
        Err(_) => "10.255.255.1".into(),
    }
}

async fn root_inside_cannot_open_another_way() {
    let home = Home::new();
    let internet = Internet::open().await;
    let _egress = internet.start_egress(home.run_dir());
    let node = home.start().await;
    let sandbox = create(&node.engine, only(&[EXAMPLE])).await;
    reaches(&sandbox, SITE).await;
    let mut tried = 0;
    for attack in [
        "nft flush ruleset",
        "nft add table inet mine",
        "ip route del default",
        "ip route add 10.0.0.0/8 via 192.0.2.1",
        "ip address add 10.0.0.2/8 dev lo",
        "ip link add d0 type veth",
        "ip netns add other",
        "ss -K dst 93.184.216.34",
        "sysctl -w net.ipv4.ip_forward=1",
    ] {
        let (code, said) = sandbox.script(attack).await;
        // Some of these programs may be missing.
        tried += usize::from(code != 127);
        assert!(code != 0 || attack.starts_with("ss"), "{attack}: {said}");
    }
    assert!(tried >= 4, "only {tried} of the attacks could be tried");
    assert_eq!(reach(&sandbox, SITE).await, greeting(SITE), "the way is as it was");
    assert!(reach(&sandbox, "8.8.8.8:853").await.starts_with("no way"));
    assert_eq!(internet.reached().iter().filter(|reached| *reached != SITE).count(), 0);
    node.stop().await;
}

async fn a_killed_egress_is_followed_by_another() {
    let home = Home::new();
    let internet = Internet::open().await;
    let egress = internet.start_egress(home.run_dir());
    let node = home.start().await;
    let sandbox = create(&node.engine, PUBLIC).await;
    reaches(&sandbox, SITE).await;
    assert_eq!(sandbox.output(&format!("!hold {SITE}")).await, greeting(SITE));
    let before = node.engine.stats().await.unwrap()[0].traffic;
    egress.kill();
    let heard = sandbox.output("!say hello").await;
    assert!(heard.starts_with("no way"), "its connections end: {heard}");
    // Policies can change and sandboxes be created while there is no egress; nothing is open then.
    let closed = create(&node.engine, PUBLIC).await;
    node.engine.set_network(closed.id, &NOTHING).await.unwrap();
    assert!(node.engine.refusals(closed.id, 0).await.is_err(), "egress is down");
    // This one waits at the listener that the node kept.
    let waiting = tokio::spawn({
        let socket = sandbox.placement.clone();
        let sandbox = Sandbox { id: sandbox.id, placement: socket };
        async move { reach(&sandbox, SITE).await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished());
    let _egress = internet.start_egress(home.run_dir());
    assert_eq!(waiting.await.unwrap(), greeting(SITE));
    assert!(reach(&closed, SITE).await.starts_with("no way"));
    let after = node.engine.stats().await.unwrap();
    let after = after.iter().find(|sample| sample.sandbox == sandbox.id).unwrap().traffic;
    assert!(after.received_bytes > before.received_bytes, "what the first counted is not lost");
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn a_killed_node_leaves_connections_open() {
    let home = Home::new();
    let internet = Internet::open().await;
    let egress = internet.start_egress(home.run_dir());
    let (mut process, engine, stop_client) = home.start_process().await;
    let (sandbox, doomed) = (create(&engine, PUBLIC).await, create(&engine, PUBLIC).await);
    reaches(&sandbox, SITE).await;
    assert_eq!(sandbox.output(&format!("!hold {SITE}")).await, greeting(SITE));
    process.kill().unwrap();
    process.wait().unwrap();
    stop_client.cancel();
    assert_eq!(sandbox.output("!say still").await, "still");
    assert_eq!(reach(&sandbox, SITE_V6).await, greeting(SITE_V6), "no node is needed");
    doomed.order("!exit 0");

    let node = home.start().await;
    connected(&node, &sandbox).await;
    assert_eq!(sandbox.output("!say there").await, "there");
    // The new node's word counts.
    node.engine.set_network(sandbox.id, &only(&[SITE])).await.unwrap();
    assert_eq!(sandbox.output("!say allowed").await, "allowed");
    assert!(reach(&sandbox, SITE_V6).await.starts_with("no way"));
    // It has no copies of the sockets. It reopens them, with the policy from the journal.
    egress.kill();
    let _egress = internet.start_egress(home.run_dir());
    reaches(&sandbox, SITE).await;
    assert!(reach(&sandbox, SITE_V6).await.starts_with("no way"));
    node.stop().await;
    home.reap_orphans();
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn both_die_and_the_way_comes_back() {
    let home = Home::new();
    let internet = Internet::open().await;
    let egress = internet.start_egress(home.run_dir());
    let (mut process, engine, stop_client) = home.start_process().await;
    let sandbox = create(&engine, NOTHING).await;
    let frozen = create(&engine, PUBLIC).await;
    reaches(&frozen, SITE).await;
    engine.set_network(sandbox.id, &PUBLIC).await.unwrap();
    engine.freeze(frozen.id).await.unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    stop_client.cancel();
    egress.kill();
    assert_eq!(reach(&sandbox, SITE).await, "no way: ConnectionRefused");

    let node = home.start().await;
    let _egress = internet.start_egress(home.run_dir());
    reaches(&sandbox, SITE).await;
    node.engine.thaw(frozen.id).await.unwrap();
    assert_eq!(reach(&frozen, SITE).await, greeting(SITE));
    node.stop().await;
    home.reap_orphans();
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn a_claimed_slot_has_its_policy_from_the_first_moment() {
    let mut home = Home::new();
    home.warm = WarmChoice::up_to(2);
    let internet = Internet::open().await;
    let egress = internet.start_egress(home.run_dir());
    let node = home.start().await;
    let first = create(&node.engine, PUBLIC).await;
    reaches(&first, SITE).await;
    let alone = egress.descriptors();
    let mut claimed = 0;
    let deadline = Instant::now() + Duration::from_secs(60);
    while claimed < 4 {
        assert!(Instant::now() < deadline, "{claimed} slots were claimed");
        let (open, closed) =
            (create(&node.engine, PUBLIC).await, create(&node.engine, only(&["8.8.8.8"])).await);
        assert_eq!(reach(&open, SITE).await, greeting(SITE));
        assert!(reach(&closed, SITE).await.starts_with("no way"));
        assert_eq!(reach(&closed, "8.8.8.8:853").await, greeting("8.8.8.8:853"));
        assert_eq!(node.engine.refusals(closed.id, 0).await.unwrap().total, 1);
        for sandbox in [open, closed] {
            let name = sandbox.placement.socket.file_stem().unwrap().to_string_lossy().into_owned();
            claimed += usize::from(name != sandbox.id.to_string());
            node.engine.destroy(sandbox.id).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Egress does not have the waiting slots.
    settled(|| egress.descriptors(), alone).await;
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

/// Waits until a count is back to its earlier value.
async fn settled(count: impl Fn() -> usize, expected: usize) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while count() > expected {
        assert!(Instant::now() < deadline, "{} of {expected}", count());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn a_stopped_sandbox_has_its_way_when_started() {
    let home = Home::new();
    let internet = Internet::open().await;
    let egress = internet.start_egress(home.run_dir());
    let node = home.start().await;
    let witness = create(&node.engine, PUBLIC).await;
    reaches(&witness, SITE).await;
    let alone = egress.descriptors();
    let sandbox = create(&node.engine, PUBLIC).await;
    node.engine.stop(sandbox.id).await.unwrap();
    settled(|| egress.descriptors(), alone).await;
    node.engine.set_network(sandbox.id, &only(&[EXAMPLE])).await.unwrap();
    assert_eq!(node.engine.refusals(sandbox.id, 0).await.unwrap().total, 0);
    node.engine.start(sandbox.id, Boot::AsPaused).await.unwrap();
    assert_eq!(reach(&sandbox, SITE).await, greeting(SITE));
    assert!(reach(&sandbox, SITE_V6).await.starts_with("no way"));
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn nothing_of_the_network_is_left_behind() {
    let home = Home::new();
    let internet = Internet::open().await;
    let egress = internet.start_egress(home.run_dir());
    let mut node = home.start().await;
    let witness = create(&node.engine, PUBLIC).await;
    reaches(&witness, SITE).await;
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let (ours, theirs) = (open(), egress.descriptors());
    for round in 0..3 {
        let many = futures_util::future::join_all((0..6).map(|_| create(&node.engine, PUBLIC))).await;
        assert!(egress.descriptors() >= theirs + 6 * 3);
        for (number, sandbox) in many.iter().enumerate() {
            assert_eq!(sandbox.output(&format!("!hold {SITE}")).await, greeting(SITE));
            if number == round {
                sandbox.order("!exit 0");
                assert_eq!(node.death(Duration::from_secs(10)).await.0, sandbox.id);
            }
            node.engine.destroy(sandbox.id).await.unwrap();
        }
    }
    settled(|| egress.descriptors(), theirs).await;
    settled(open, ours + 4).await;
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn without_egress_there_is_no_way() {
    let home = Home::new();
    let node = home.start().await;
    let sandbox = create(&node.engine, PUBLIC).await;
    node.engine.set_network(sandbox.id, &NOTHING).await.unwrap();
    let recorded = std::fs::read_to_string(home.data_dir().join(format!("sandboxes/{}.json", sandbox.id)));
    assert!(recorded.unwrap().contains(r#""network":{"base":"none"}"#));
    assert_eq!(sandbox.output("ip route get 1.1.1.1 | head -1 | cut -d' ' -f3").await, "lo");
    node.engine.destroy(sandbox.id).await.unwrap();
    let gone = node.engine.set_network(sandbox.id, &PUBLIC).await.unwrap_err();
    assert!(matches!(gone, coffer_engine::EngineError::UnknownSandbox), "{gone}");
    node.stop().await;
}
