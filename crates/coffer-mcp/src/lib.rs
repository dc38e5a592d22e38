//! Cofferdam's tools for models, over the Model Context Protocol (MCP).
//!
//! Each tool is one or two requests to `/api/v1` with the key of whoever calls it, so what a key may do, limits and audit
//! are the API's own; nothing here decides. [`serve_stdio`] speaks with a program that started us; [`http`] is the
//! service that the server mounts at `/mcp`. [`install`] writes the configuration of well-known clients.
//!
//! `tool` has the table of tools and how a call runs, `tools` the tools by subject, `cut` and `plain` make output fit for
//! a model and a terminal. See `docs/design/0020-mcp.md`.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

mod caller;
mod cut;
pub mod http;
pub mod install;
mod plain;
mod resources;
mod server;
mod tool;
mod tools;

use rmcp::ServiceExt as _;

use crate::server::{Access, Server};

/// Why the conversation ended with an error.
#[derive(Debug, thiserror::Error)]
#[error("the MCP client did not keep to the protocol: {0}")]
pub struct ServeError(String);

/// Answers one client on stdin and stdout, until it closes stdin. Nothing else may write to stdout meanwhile.
pub async fn serve_stdio(client: coffer_client::Client) -> Result<(), ServeError> {
    serve(client, rmcp::transport::stdio()).await
}

/// Answers one client on a pair of streams.
pub async fn serve<R, W>(client: coffer_client::Client, streams: (R, W)) -> Result<(), ServeError>
where
    R: tokio::io::AsyncRead + Send + Unpin + 'static,
    W: tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    match Server::new(Access::Fixed(client)).serve(streams).await {
        Ok(running) => running.waiting().await.map(drop).map_err(|error| ServeError(error.to_string())),
        // A client that hangs up before it says anything.
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => Ok(()),
        Err(error) => Err(ServeError(error.to_string())),
    }
}

/// Names and descriptions of all tools, for the documentation.
pub fn tool_list() -> Vec<(String, String)> {
    let described =
        |tool: rmcp::model::Tool| (tool.name.into_owned(), tool.description.unwrap_or_default().into_owned());
    tools::all().iter().map(|tool| described(tool.description.clone())).collect()
}
