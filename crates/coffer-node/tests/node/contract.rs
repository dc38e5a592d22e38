//! The contract that all engines keep, kept by a node.

use async_trait::async_trait;
use coffer_core::{Limits, SandboxId};
use coffer_engine::{Engine, Placement};
use coffer_testkit::engine_contract::{CASES, Subject};

use crate::harness::{Home, Sandbox, TestNode, small};

crate::tests![a_node_keeps_the_contract];

struct Node(TestNode);

#[async_trait]
impl Subject for Node {
    fn engine(&self) -> &dyn Engine {
        &self.0.engine
    }

    fn limits(&self) -> Limits {
        small()
    }

    async fn wait_until_ready(&self, placement: &Placement) {
        let sandbox = Sandbox { id: SandboxId::generate(), placement: placement.clone() };
        assert_eq!(sandbox.output("echo ready").await, "ready");
    }

    async fn end_first_process(&self, sandbox: SandboxId, placement: &Placement) {
        Sandbox { id: sandbox, placement: placement.clone() }.order("!exit 1");
    }
}

async fn a_node_keeps_the_contract() {
    for case in CASES {
        println!("{}", case.name);
        let home = Home::new();
        let node = Node(home.start().await);
        case.run(&node).await;
        node.0.stop().await;
        assert!(home.belongings().nothing(), "{}: {:?}", case.name, home.belongings());
    }
}
