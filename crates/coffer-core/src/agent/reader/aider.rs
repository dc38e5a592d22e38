//! Aider: plain text for people, with lines about its usage.

use super::plain::shortened;
use crate::agent::report::Tokens;
use crate::agent::transcript::{Scribe, cut};

const LONGEST_LINE: usize = 2000;
/// Lines about itself: its usage, and the price list that it could not get.
const NOTES: [&str; 3] = ["Tokens: ", "Cost: ", "HTTPSConnectionPool("];

/// What lines remember for later ones.
#[derive(Debug, Default)]
pub(super) struct Aider {
    /// The last error of its model: it exits with 0 after it. What it uses later is a success.
    error: Option<String>,
    /// Its lines are wrapped: whether the next one continues the error.
    is_open: bool,
}

impl Aider {
    pub(super) fn line(&mut self, line: &str, scribe: &mut Scribe) {
        let line = &*cut(line, LONGEST_LINE);
        let plain = line.trim();
        let continues =
            std::mem::take(&mut self.is_open) && !plain.is_empty() && !plain.starts_with("The API ");
        if let Some(told) = plain.strip_prefix("Tokens: ") {
            let (tokens, cost) = told.split_once(" Cost: ").unwrap_or((told, ""));
            scribe.used(used(tokens));
            scribe.cost(session(cost), false);
            self.error = None;
        } else if let Some(cost) = plain.strip_prefix("Cost: ") {
            scribe.cost(session(cost), false);
        } else if plain.starts_with("litellm.") && plain.contains("Error") {
            self.error = Some(reason(plain));
            self.is_open = true;
        } else if let Some(wait) = plain.strip_prefix("Retrying in ") {
            let why = self.error.clone().unwrap_or_else(|| "no answer".into());
            let seconds = wait.split(' ').next().and_then(|seconds| seconds.parse::<f64>().ok());
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it is within bounds"
            )]
            let wait = seconds.map(|seconds| (seconds.clamp(0.0, 1e9) * 1000.0) as u64);
            scribe.retries(&why, None, None, wait);
            return;
        } else if let Some(error) =
            self.error.as_mut().filter(|error| continues && error.len() < LONGEST_LINE)
        {
            error.push(' ');
            error.push_str(plain);
            self.is_open = true;
        }
        scribe.line(line);
        if !plain.is_empty() && !NOTES.iter().any(|note| plain.starts_with(note)) {
            // Without events the last line is the best summary.
            scribe.report.summary = Some(line.to_string());
        }
    }

    /// The end of its output.
    pub(super) fn end(&mut self, scribe: &mut Scribe) {
        if let Some(error) = self.error.take() {
            scribe.complained(&error);
        }
    }
}

/// `litellm.AuthenticationError: AuthenticationError: OpenAIException - the key is wrong`.
fn reason(line: &str) -> String {
    line.split_once(" - ").map_or(line, |(_, reason)| reason).trim().to_string()
}

/// `12k sent, 1.5k cache hit, 1,234 received.`: what was sent has hits and writes in it.
fn used(tokens: &str) -> Tokens {
    let mut used = Tokens::default();
    for part in tokens.trim_end_matches('.').split(", ") {
        let Some((number, what)) = part.trim().split_once(' ') else { continue };
        let number = shortened(number);
        match what {
            "sent" => used.input = number,
            "cache hit" => used.cached = number,
            "received" => used.output = number,
            _ => {}
        }
    }
    used.cached = used.cached.min(used.input);
    used
}

/// `$0.05 message, $0.12 session.`
fn session(cost: &str) -> Option<f64> {
    let session = cost.split(", ").find_map(|part| part.trim_end_matches('.').strip_suffix(" session"));
    session.and_then(|text| text.trim().strip_prefix('$')?.parse::<f64>().ok())
}

#[cfg(test)]
mod tests {
    use crate::agent::{AgentReader, OutputFormat};

    #[test]
    fn its_last_words_are_not_its_usage() {
        let mut reader = AgentReader::new(OutputFormat::Aider);
        let said = "ok\n\nTokens: 1.3k sent, 27 received. Cost: $0.01 message, $0.01 session.\n\
                    HTTPSConnectionPool(host='raw.githubusercontent.com', port=443): Max retries exceeded\n";
        reader.push(said.as_bytes(), &mut |_| ());
        assert_eq!(reader.finish(&mut |_| ()).summary.as_deref(), Some("ok"));
    }
}
