//! The control plane: E2B's REST API, the owner of every sandbox's record, and the proxy of
//! sandbox traffic, all on one port.
#![forbid(unsafe_code)]

mod proxy;
mod routing;
