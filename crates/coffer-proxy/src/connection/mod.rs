//! A client's connection: its place on the port, its socket, and what requests on it may do to it.

mod buffers;
mod busy;
mod client;
mod drain;
mod seats;
mod socket;

pub(crate) use buffers::{Buffers, Share};
pub(crate) use busy::{Busy, Midway};
pub use client::Client;
pub(crate) use drain::{Drained, Drains};
pub use seats::Seats;
pub(crate) use seats::Taken;
pub(crate) use socket::{Socket, Wire};
