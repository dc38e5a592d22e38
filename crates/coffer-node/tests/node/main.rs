//! Real sandboxes on a real node. Needs root; skips loudly without.
//!
//! The one binary plays five parts: the tests, the spawner that the node starts from `/proc/self/exe`,
//! a node and an egress in processes of their own that can be killed, and process 1 of each sandbox,
//! where it runs on the libraries of the `host` template.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::exit,
    clippy::mem_forget,
    reason = "with its own `main` this is no test to clippy, which allows all of this there"
)]

mod agentd;
mod contract;
mod harness;
mod host_files;
mod inside;
mod isolation;
mod kernels;
mod leaks;
mod lifecycle;
mod limits;
mod memory;
mod memory_at_rest;
mod memory_checked;
mod network;
mod restart;
mod rollback;
mod snapshots;
mod snapshots_after;
mod unpack;
mod volumes;
mod warm;
mod warm_memory;
mod way_out;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    let mut arguments = std::env::args();
    if arguments.next().as_deref() == Some("agentd") {
        inside::run();
    }
    match arguments.next().as_deref() {
        Some("spawner") => return coffer_node::spawner_main(),
        Some("node") => return harness::run_node(&arguments.collect::<Vec<_>>()),
        Some("egress") => return way_out::run(&arguments.collect::<Vec<_>>()),
        _ => {}
    }
    let mut tests = Vec::new();
    for (name, test) in [
        contract::TESTS,
        lifecycle::TESTS,
        isolation::TESTS,
        host_files::TESTS,
        kernels::TESTS,
        limits::TESTS,
        restart::TESTS,
        snapshots::TESTS,
        snapshots_after::TESTS,
        rollback::TESTS,
        volumes::TESTS,
        leaks::TESTS,
        agentd::TESTS,
        unpack::TESTS,
        warm::TESTS,
        warm_memory::TESTS,
        network::TESTS,
        memory::TESTS,
        memory_at_rest::TESTS,
        memory_checked::TESTS,
    ]
    .concat()
    {
        tests.push(Trial::test(name, move || run(name, test)));
    }
    let mut arguments = Arguments::from_args();
    // They count open descriptors and mounts, also of this process: run one at a time.
    arguments.test_threads.get_or_insert(1);
    libtest_mimic::run(&arguments, tests).exit_code()
}

/// Creates a test's future for its own runtime.
type Test = fn() -> std::pin::Pin<Box<dyn Future<Output = ()>>>;

/// Lists tests by name.
#[macro_export]
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub(crate) const TESTS: &[(&str, $crate::Test)] =
            &[$((concat!(module_path!(), "::", stringify!($name)), || Box::pin($name()))),*];
    };
}

fn run(name: &str, test: Test) -> Result<(), Failed> {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: {name} needs root to make sandboxes");
        return Ok(());
    }
    let log = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr);
    let _ = log.try_init();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(test());
    Ok(())
}
