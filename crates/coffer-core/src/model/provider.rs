//! The providers that the gateway speaks for, and the variables that usually have their keys.

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

use super::MODEL_NAME;

/// A provider of models, by its API.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    EnumString,
    IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", const_into_str)]
pub enum Provider {
    Anthropic,
    OpenAi,
    Gemini,
}

names!(Provider);

impl Provider {
    /// Where its API is, unless the operator names another place.
    pub const fn usual_url(self) -> &'static str {
        match self {
            Self::Anthropic => "https://api.anthropic.com",
            Self::OpenAi => "https://api.openai.com",
            Self::Gemini => "https://generativelanguage.googleapis.com",
        }
    }

    /// Its URL for programs in a sandbox. Some clients add the API's version themselves.
    pub fn url_inside(self) -> String {
        format!("http://{MODEL_NAME}/{}", self.as_str())
    }

    /// What programs in a sandbox have instead of its key.
    pub const fn dummy_key(self) -> &'static str {
        match self {
            Self::Anthropic => "sk-ant-kept-outside-the-sandbox",
            Self::OpenAi => "sk-kept-outside-the-sandbox",
            Self::Gemini => "kept-outside-the-sandbox",
        }
    }
}

/// The header that has a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyHeader {
    /// `Authorization: Bearer`.
    Bearer,
    /// `x-api-key`, for API keys of Anthropic.
    ApiKey,
    /// `x-goog-api-key`.
    GoogApiKey,
}

/// The variables that usually have a key, with the provider and the header that it goes to.
pub const fn keys() -> &'static [(&'static str, Provider, KeyHeader)] {
    &[
        ("ANTHROPIC_API_KEY", Provider::Anthropic, KeyHeader::ApiKey),
        ("ANTHROPIC_AUTH_TOKEN", Provider::Anthropic, KeyHeader::Bearer),
        ("CLAUDE_CODE_OAUTH_TOKEN", Provider::Anthropic, KeyHeader::Bearer),
        ("CODEX_API_KEY", Provider::OpenAi, KeyHeader::Bearer),
        ("GEMINI_API_KEY", Provider::Gemini, KeyHeader::GoogApiKey),
        ("GOOGLE_API_KEY", Provider::Gemini, KeyHeader::GoogApiKey),
        ("GOOGLE_GENERATIVE_AI_API_KEY", Provider::Gemini, KeyHeader::GoogApiKey),
        ("OPENAI_API_KEY", Provider::OpenAi, KeyHeader::Bearer),
    ]
}

/// The provider and the header of a variable, if it usually has a key.
pub fn key_of(variable: &str) -> Option<(Provider, KeyHeader)> {
    let found = keys().iter().find(|(name, _, _)| *name == variable);
    found.map(|(_, provider, header)| (*provider, *header))
}
