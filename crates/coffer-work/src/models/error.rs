//! Why a call, or access to models, is refused.

use coffer_core::model::{BadCall, NotACall, Provider};
use coffer_fleet::FleetError;
use coffer_shares::Full;
use coffer_store::StoreError;

/// A refusal of the gateway.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("the pass of this sandbox is not valid: its turn has ended")]
    NoGrant,
    #[error(transparent)]
    NotACall(#[from] NotACall),
    #[error(transparent)]
    Bad(#[from] BadCall),
    #[error("compressed requests do not pass the model gateway; send them without Content-Encoding")]
    Compressed,
    #[error("the request's body did not arrive")]
    Unfinished,
    #[error("the request is longer than {} MiB", super::shapes::MOST_BODY >> 20)]
    TooLong,
    #[error("the request has too many values")]
    TooMany,
    #[error("the agent's definition has no key for {}; add one to its `secrets`", .0.as_str())]
    NoKey(Provider),
    #[error("the secret '{0}' of the agent's key is missing, or sealed under a missing master key")]
    NoSecret(String),
    #[error("the secret '{0}' is for other hosts than {1}; add {1} to its hosts")]
    OtherHost(String, String),
    #[error("the secret '{0}' is limited to hosts and would be sent in plain HTTP")]
    PlainHttp(String),
    #[error("the secret '{0}' is not a valid header value")]
    NoHeader(String),
    #[error("model '{0}' is not among the models that this project allows")]
    NotAllowed(String),
    #[error(
        "budget: model '{model}' has no price in this server's table, so {whose} budget cannot be kept; use another \
         model, or have the operator add it to the file of `models.prices`"
    )]
    NoPrice { model: String, whose: &'static str },
    #[error("budget: the price of '{tool}' is not known, so {whose} budget cannot be kept; leave it out")]
    NoToolPrice { tool: String, whose: &'static str },
    #[error(
        "budget: the call could cost more than the {left} {currency} that are left of {whose} budget of {amount} \
         {currency}; raise the budget and start again"
    )]
    OverBudget { left: String, amount: String, currency: String, whose: &'static str },
    #[error("budget: other calls in progress hold the rest of the budget; try again")]
    Held,
    #[error("too many calls at a time: {0}")]
    Busy(#[from] Full),
    #[error("too many calls in a short time")]
    TooFast,
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the way to the model gateway could not be opened")]
    Fleet(#[from] FleetError),
}

impl ModelError {
    /// The status of the answer to an agent. Clients retry 429 and 503 by themselves, and no other.
    pub const fn status(&self) -> u16 {
        match self {
            Self::NoGrant | Self::NoSecret(_) | Self::NoKey(_) => 401,
            Self::NotACall(_) => 404,
            Self::Bad(_) | Self::Unfinished => 400,
            Self::Compressed => 415,
            Self::TooLong | Self::TooMany => 413,
            Self::OtherHost(..) | Self::PlainHttp(_) | Self::NoHeader(_) | Self::NotAllowed(_) => 403,
            Self::NoPrice { .. } | Self::NoToolPrice { .. } | Self::OverBudget { .. } => 402,
            Self::Held | Self::Busy(_) | Self::TooFast => 429,
            Self::Store(_) | Self::Fleet(_) => 503,
        }
    }

    /// Whether a budget refuses it, so that the turn cannot go on.
    pub const fn is_budget(&self) -> bool {
        matches!(self, Self::NoPrice { .. } | Self::NoToolPrice { .. } | Self::OverBudget { .. })
    }

    /// What the agent is told. Errors of the server itself have no details.
    pub fn told(&self) -> String {
        match self {
            Self::Store(_) => "the model gateway cannot reach its records, try again".to_string(),
            other => other.to_string(),
        }
    }
}
