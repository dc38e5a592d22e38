//! An operator's settings of the model gateway.

use coffer_core::model::{Prices, Provider};
use coffer_core::settings::Period;
use coffer_http::{Address, PrivateHosts};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[models]`: the gateway through which agents call models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSettings {
    /// Let agents call models through the gateway. If not, agents get their keys in their environment.
    pub enabled: bool,
    /// Where Anthropic's API is, if not at the provider: a proxy of your own, for example. It may be at a private
    /// address and in plain HTTP.
    pub anthropic_url: Option<String>,
    /// Where OpenAI's API is.
    pub openai_url: Option<String>,
    /// Where Gemini's API is.
    pub gemini_url: Option<String>,
    /// A file with prices of models, as JSON; its entries win over those in the program.
    pub prices: Option<String>,
    /// Hosts of projects' fallbacks that may be at private addresses and in plain HTTP, as `proxy.example.com` or
    /// `10.0.0.7:8080`. All others must be public and HTTPS.
    pub private_hosts: Vec<String>,
    /// How long a provider may take to begin its answer, and may then be silent.
    pub timeout: Period,
}

impl Default for ModelSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            anthropic_url: None,
            openai_url: None,
            gemini_url: None,
            prices: None,
            private_hosts: Vec::new(),
            timeout: Period::secs(600),
        }
    }
}

impl ModelSettings {
    const fn url(&self, provider: Provider) -> Option<&String> {
        match provider {
            Provider::Anthropic => self.anthropic_url.as_ref(),
            Provider::OpenAi => self.openai_url.as_ref(),
            Provider::Gemini => self.gemini_url.as_ref(),
        }
    }

    /// The address of a provider, and whether the operator named it.
    pub(super) fn address(&self, provider: Provider) -> Option<(Address, bool)> {
        let own = self.url(provider);
        let address = Address::parse(own.map_or(provider.usual_url(), String::as_str)).ok()?;
        Some((address, own.is_some()))
    }

    /// The hosts that fallbacks may have besides public ones.
    pub(super) fn hosts(&self) -> PrivateHosts {
        PrivateHosts::parse(self.private_hosts.iter().map(String::as_str)).unwrap_or_default()
    }

    /// Checks the settings: the key that is wrong, and why.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        for (key, provider) in [
            ("models.anthropic_url", Provider::Anthropic),
            ("models.openai_url", Provider::OpenAi),
            ("models.gemini_url", Provider::Gemini),
        ] {
            let Some(url) = self.url(provider) else { continue };
            let fits = Address::parse(url).is_ok_and(|url| !url.has_query()) && !url.contains('@');
            if !fits {
                return Err((key, "must be a URL such as https://proxy.example.com/anthropic"));
            }
        }
        if PrivateHosts::parse(self.private_hosts.iter().map(String::as_str)).is_err() {
            return Err((
                "models.private_hosts",
                "must be names or addresses of hosts, with or without a port",
            ));
        }
        if self.timeout.is_zero() {
            return Err(("models.timeout", "must be more than 0"));
        }
        Ok(())
    }
}

/// The configuration of the gateway.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    pub settings: ModelSettings,
    pub prices: Prices,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self { settings: ModelSettings::default(), prices: Prices::built_in() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_the_providers_unless_the_operator_names_another() {
        let settings = ModelSettings {
            openai_url: Some("http://10.0.0.7:8080/openai".into()),
            ..ModelSettings::default()
        };
        settings.check().unwrap();
        let (address, own) = settings.address(Provider::OpenAi).unwrap();
        assert_eq!((address.host(), address.path(), own), ("10.0.0.7", "/openai", true));
        let (address, own) = settings.address(Provider::Anthropic).unwrap();
        assert_eq!((address.host(), own), ("api.anthropic.com", false));
        let settings = ModelSettings { private_hosts: vec!["a b".into()], ..ModelSettings::default() };
        assert_eq!(settings.check().unwrap_err().0, "models.private_hosts");
        for bad in ["", "api.openai.com", "ftp://a", "https://a/?b=c", "https://u:p@a"] {
            let settings = ModelSettings { gemini_url: Some(bad.into()), ..ModelSettings::default() };
            assert_eq!(settings.check().unwrap_err().0, "models.gemini_url", "{bad}");
        }
    }
}
