//! Network policies of sandboxes.
//!
//! A [`Policy`] is a base (nothing, web, everything public) with lists of exceptions. [`decide()`] is the
//! only function that allows or denies, and a denial always names its [`Rule`]. Below every policy are the
//! [`Walls`]: addresses that no policy opens, in any notation.

mod address;
mod block;
mod decide;
mod e2b;
mod e2b_settings;
mod entry;
mod git;
mod header;
mod mirror;
mod model;
mod name;
mod policy;
mod proxy;
mod report;
mod settings;
mod walls;

pub use address::{Class, classify, normalise, parse_address, pass_on_site};
pub use block::{BadBlock, Block};
pub use decide::{Decision, Destination, Rule, decide, may_ask, may_ask_mirror, needs_name};
pub use e2b::{BadE2bNetwork, E2bNetwork, policy_from_e2b};
pub use e2b_settings::{
    BadE2bSettings, E2B_SECRET_REFERENCE, E2bProxy, E2bProxyTls, E2bRule, E2bSettings, E2bTransform,
};
pub use entry::{BadEntry, Entry, Ports, Target};
pub use git::{
    BadGitRoute, GATE_ADDRESS, GATE_NAME, GATE_PORT, GitHost, GitObject, GitReference, GitRoute, GitSlug,
    GitUpstream, PushWindow,
};
pub use header::{
    BadHeader, BadHeaderHost, HeaderHost, HeaderName, HeaderRule, HeaderText, Opened, SECRET_REFERENCE,
};
pub use mirror::{Mirror, Mirrors, TooManyMirrors};
pub use model::{MODEL_ADDRESS, MODEL_PORT, ModelRoute};
pub use name::{BadName, HostName, NamePattern};
pub use policy::{BadPolicy, Base, Policy};
pub use proxy::{BadProxy, Login, Proxy, ProxyHost};
pub use report::{Refusal, Refusals, RefusedKind, Traffic};
pub use settings::{BadNetworkSettings, Inbound, NetworkSettings};
pub use walls::{Walls, pass_as_mirror};
