//! The privileged host daemon: it creates sandboxes on this machine and releases all their resources.
//!
//! The node knows sandboxes, templates, layers, control groups and uid ranges, and nothing of projects or the
//! database. It parses only frames from the server and its own files, never data from a sandbox: the server
//! talks to a sandbox's agentd directly, over a socket that the node created.
//!
//! - [`run`] serves `run_dir/node.sock` until it is stopped ([`NodeConfig`] has all paths).
//! - [`Spawner`] is the small process that clones; [`spawner_main`] its entry.
//! - [`layers_in_use`] lists the builds that the template store must keep.
//!
//! Inside, each sandbox has one task that owns it (`sandbox`), which others reach through the `registry`; the
//! `journal` records it across restarts, `adopt` takes it over after one, and the `reaper` releases its
//! resources. `warm` keeps some ready, `snapshots` stores snapshots, `network` connects each sandbox to
//! egress, its only way out.
//!
//! From the top down: `daemon` starts and stops, `rpc` and `answer` serve, `adopt` and `sandbox` work on what `node`
//! holds together; below are `warm`, `registry`, `memory`, `snapshots`, `files`, then `spawner`, `pool`, `cgroup`,
//! `network`, `journal`, which know nothing of each other's use. `scripts/module-graph` draws it and checks
//! it.
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

mod adopt;
mod answer;
mod cgroup;
mod config;
mod daemon;
pub mod features;
mod files;
mod journal;
mod memory;
mod network;
mod node;
mod page;
mod pool;
mod process;
mod processors;
mod reaper;
mod registry;
mod rpc;
mod sandbox;
mod scarcity;
mod snapshots;
mod spawner;
mod strays;
mod trust;
mod uids;
mod volumes;
mod warm;

pub use cgroup::{cgroup_name, enter_git_cgroup};
pub use config::{NodeConfig, PoolChoice, WarmChoice};
pub use daemon::{NodeFailure, run};
pub use journal::{files as files_in_journal, layers as layers_in_use};
pub use memory::lacks as memory_lacks;
pub use pool::mounted_pools;
pub use spawner::{Spawner, spawner_main};
