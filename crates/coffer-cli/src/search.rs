//! `search`: records of the project by words.

use clap::Args;
use coffer_api_types::search::SearchQuery;

use crate::context::Context;
use crate::failure::Outcome;

/// Find tasks, repositories, pull requests, sandboxes, agents and lines of logs
#[derive(Debug, Args)]
pub struct Search {
    /// Words that a record must all have, also as parts of words; logs must contain the text as it is written
    #[arg(required = true, value_name = "WORD")]
    words: Vec<String>,
    /// Only this kind; may be repeated
    #[arg(long, value_name = "KIND", value_parser = ["task", "repository", "pull", "sandbox", "agent", "log"])]
    kind: Vec<String>,
    /// At most this many of each kind
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 8)]
    limit: u32,
}

impl Search {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let query = SearchQuery { q: Some(self.words.join(" ")), kinds: self.kind, limit: Some(self.limit) };
        let found = context.client.search(&query).await?;
        context.printer.list(&found.items, &["kind", "id", "number", "title", "about", "state"])?;
        Ok(0)
    }
}
