//! Search over the records of a project.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// What to look for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct SearchQuery {
    /// Words that a record must all have, in any case and order, also as parts of words. Lines of logs must contain the
    /// whole text as it is written here. Without it, the newest records.
    pub q: Option<String>,
    /// Only these kinds, separated by commas: `task`, `repository`, `pull`, `sandbox`, `agent`, `log`. All by default.
    #[param(value_type = Option<String>)]
    #[serde(default)]
    pub kinds: Vec<String>,
    /// How many of each kind at most, 1 to 50; 8 by default.
    #[param(minimum = 1, maximum = 50)]
    pub limit: Option<u32>,
}

/// A record that was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SearchHit {
    /// `task`, `repository`, `pull`, `sandbox`, `agent` or `log`.
    #[schema(example = "task")]
    pub kind: String,
    /// Its id; of a pull request, that of its repository; of a line of a log, that of its sandbox.
    pub id: String,
    /// Its title or name; of a line of a log, the line, cut to 300 bytes.
    pub title: String,
    /// The repository of a task or pull request, the template of a sandbox, the source of a line.
    pub about: Option<String>,
    pub state: Option<String>,
    /// Of a pull request.
    pub number: Option<i64>,
    pub at: String,
}

/// What a search found: by kind, in each the best first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SearchResults {
    pub items: Vec<SearchHit>,
}
