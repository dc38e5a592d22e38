//! The privileged host daemon: it makes sandboxes on this machine and gives everything back.
//!
//! The node knows sandboxes, templates, layers, control groups and uid ranges, and nothing of
//! projects or the database. It parses only frames from the server and its own files, never what a
//! sandbox sends: the server talks to a sandbox's agentd directly, over a socket that the node made.
//!
//! - [`run`] serves `run_dir/node.sock` until told to stop ([`NodeConfig`] says where everything is).
//! - [`Spawner`] is the small process that clones; [`spawner_main`] its entry.
//! - [`template`] keeps and builds what sandboxes are made of.
//!
//! Inside, each sandbox has one task that owns it (`sandbox`); the `journal` remembers it across
//! restarts, `adopt` takes it up again, and the `reaper` gives back what it used. `warm` keeps some ready,
//! `snapshots` keeps what others start from, `network` gives each what egress needs to be its only way out.

mod adopt;
mod cgroup;
mod config;
pub mod features;
mod files;
mod journal;
mod memory;
mod network;
mod node;
mod pool;
mod processors;
mod reaper;
mod rpc;
mod sandbox;
mod scarcity;
mod snapshots;
mod spawner;
mod strays;
pub mod template;
mod trust;
mod uids;
mod warm;

pub use cgroup::enter_git_cgroup;
pub use config::{NodeConfig, PoolChoice, WarmChoice};
pub use node::{NodeFailure, run};
pub use pool::mounted_pools;
pub use spawner::{Spawner, spawner_main};
