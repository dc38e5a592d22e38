//! What a call can cost, before it is sent.

use coffer_core::model::{Asked, Call, Prices};
use coffer_store::Worth;

/// The shortest answer that a call is limited to near the end of a budget.
const SHORTEST_ANSWER: u64 = 512;

/// What a call can cost.
pub(super) fn worth(prices: &Prices, call: &Call, asked: &Asked) -> Worth {
    let Some(price) = prices.of(&asked.model).filter(|_| asked.foreign_tool.is_none()) else {
        return Worth::Unknown;
    };
    let output = price.answer(asked);
    // An answer must have room for the thinking that the request asks for.
    let least = match asked.thinking {
        0 => SHORTEST_ANSWER,
        thinking => thinking.saturating_add(SHORTEST_ANSWER),
    };
    let most = |output| prices.most(call.provider, asked, output);
    match (most(output), most(least.min(output))) {
        (Some(most), Some(least)) => Worth::Between { least, most },
        _ => Worth::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_model_or_tool_has_no_worth() {
        let prices = Prices::built_in();
        let of = |body: &str| {
            let call = Call::read("POST", "/anthropic/v1/messages", None).unwrap();
            worth(&prices, &call, &Asked::read(&call, body.as_bytes()).unwrap())
        };
        let Worth::Between { least, most } = of(r#"{"model":"claude-haiku-4-5","max_tokens":64000}"#) else {
            panic!("it has a price")
        };
        assert!(least < most);
        let thinks = r#"{"model":"claude-haiku-4-5","max_tokens":64000,"thinking":{"budget_tokens":32000}}"#;
        assert!(matches!(of(thinks), Worth::Between { least: more, .. } if more > least));
        assert_eq!(of(r#"{"model":"gpt-unknown"}"#), Worth::Unknown);
        assert_eq!(
            of(r#"{"model":"claude-haiku-4-5","tools":[{"type":"code_execution_1"}]}"#),
            Worth::Unknown
        );
    }
}
