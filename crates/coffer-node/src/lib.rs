//! The privileged host daemon: it makes sandboxes on this machine and gives everything back.
//!
//! The node knows sandboxes, templates, layers, control groups and uid ranges, and nothing of
//! projects or the database. It parses only frames from the server and its own files, never what a
//! sandbox sends: the server talks to a sandbox's agentd directly, over a socket that the node made.
//!
//! - [`run`] serves `run_dir/node.sock` until told to stop ([`NodeConfig`] says where everything is).
//! - [`Spawner`] is the small process that clones; [`spawner_main`] its entry.
//! - [`layers_in_use`] tells the template store which builds must stay.
//!
//! Inside, each sandbox has one task that owns it (`sandbox`), which others reach by the `registry`; the `journal`
//! remembers it across restarts, `adopt` takes it up again, and the `reaper` gives back what it used. `warm` keeps some
//! ready, `snapshots` keeps what others start from, `network` gives each what egress needs to be its only way out.
//!
//! From the top down: `daemon` starts and stops, `rpc` and `answer` serve, `adopt` and `sandbox` work on what `node`
//! holds together; below are `warm`, `registry`, `memory`, `snapshots`, `files`, then `spawner`, `pool`, `cgroup`,
//! `network`, `journal`, which know nothing of each other's use. `scripts/module-graph` draws it and keeps it so.

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
mod warm;

pub use cgroup::enter_git_cgroup;
pub use config::{NodeConfig, PoolChoice, WarmChoice};
pub use daemon::{NodeFailure, run};
pub use journal::layers as layers_in_use;
pub use pool::mounted_pools;
pub use spawner::{Spawner, spawner_main};
