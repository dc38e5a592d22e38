//! Creates a sandbox: from a waiting slot, or from scratch.

use std::sync::Arc;

use coffer_wire::node::{CreateSandbox, NodeError};

use crate::journal::{Entry, Phase};
use crate::node::Node;
use crate::process::Alive;
use crate::warm::Shape;

use super::claim;
use super::prepare::Launch;
use super::provision::{self, Resume};
use super::remains::{Record, Remains};
use super::start;

/// Takes a slot that waits for this, or creates a new sandbox.
pub(super) async fn bring_up(node: &Arc<Node>, spec: &CreateSandbox) -> Result<(Entry, Alive), NodeError> {
    if let Some(claimed) = claim::claim(node, spec).await {
        return Ok(claimed);
    }
    let making = node.warm.making_cold();
    let made = create(node, spec).await;
    drop(making);
    if made.is_ok()
        && let Some(shape) = Shape::of(spec)
    {
        node.warm.learn(shape);
    }
    made
}

/// Creates a sandbox completely, or removes what it created so far.
async fn create(node: &Arc<Node>, spec: &CreateSandbox) -> Result<(Entry, Alive), NodeError> {
    let mut entry = provision::reserve(node, spec).await?;
    let started = async {
        provision::make_files(node, &entry).await?;
        start::begin(node, &entry, Resume::wanted(spec)).await
    };
    let made = match started.await {
        Ok(Launch { alive, process, listeners }) => {
            entry.phase = Phase::Running { process };
            match start::go_live(node, &entry, listeners).await {
                Ok(()) => Ok(alive),
                Err(error) => {
                    alive.end().await;
                    Err(error)
                }
            }
        }
        Err(error) => Err(error),
    };
    match made {
        Ok(alive) => Ok((entry, alive)),
        Err(error) => {
            Remains::of(node, &entry, Record::Removed).give_back_later().await;
            Err(error)
        }
    }
}
