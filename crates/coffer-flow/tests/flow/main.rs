//! Durable runs on both databases, with servers that die wherever they can.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod cancel;
mod compete;
mod kill;
mod logs;
mod outside;
mod queue;
mod retry;
mod ring;
mod servers;
mod shop;
mod stadium;
mod task;
mod waits;
mod world;
