//! A client of Cofferdam's own API (`/api/v1`), typed by [`coffer_api_types`].
//!
//! [`Client`] has one method for each route, grouped by subject in `api`. Lists are [`Pages`]; streams of events are
//! [`Follow`], which reconnects where it was; [`Guest`] runs commands in a sandbox with stdin, signals and terminals, and
//! survives lost connections. Files are streamed both ways.
//!
//! ```no_run
//! # async fn example() -> Result<(), coffer_client::Error> {
//! use coffer_client::{Client, Command, Output};
//!
//! let client = Client::new("http://127.0.0.1:3000", Some("e2b_…"))?;
//! let sandbox = client.create_sandbox(&Default::default(), None).await?;
//! let mut process = client.guest(&sandbox.id).await?.start(&Command::shell("make test")).await?;
//! while let Some(output) = process.next().await? {
//!     match output {
//!         Output::Stdout(bytes) => println!("{} bytes", bytes.len()),
//!         Output::Ended(end) => println!("{}", end.status),
//!         _ => {}
//!     }
//! }
//! client.destroy_sandbox(&sandbox.id).await
//! # }
//! ```
//!
//! Everything that a server or a sandbox sends is bounded in size, and nothing here prints or logs. The client follows
//! no redirect, so a key is sent to one host only. It has no code of the server and compiles for macOS and Windows.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

mod answer;
mod api;
mod client;
mod code;
mod connection;
mod error;
mod follow;
mod pages;
mod process;
mod run;
mod wire;

pub use api::{FileContent, FileKind, Upload};
pub use client::Client;
pub use code::{CodeRun, CodeStep};
pub use connection::{Body, Flow, Transport, empty, full};
pub use error::{Error, Refusal};
pub use follow::{Follow, Message};
pub use pages::Pages;
pub use process::{Command, End, Guest, Handle, Input, Output, Process, Signal, TerminalSize};
pub use run::{Run, RunEnd, RunStep};
