//! Turns a full pool into a refusal.

use coffer_core::{Code, Refusal};
use serde_json::json;

use crate::Full;

impl From<Full> for Refusal {
    fn from(full: Full) -> Self {
        let details = json!({
            "pool": full.pool.name, "places": full.total, "share": full.share, "held": full.held
        });
        Self::new(Code::PoolBusy, full.to_string())
            .details(details)
            .hint(full.hint())
            .retry_after(full.retry_after_s())
    }
}
