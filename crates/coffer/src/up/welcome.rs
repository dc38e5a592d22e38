//! The text that `up` prints when it is ready. Keys and links are only shown on a terminal: elsewhere they
//! would end up in a journal that more people can read than may sign in.

use std::io::IsTerminal as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::config::Settings;
use crate::data_dir::DataDir;
use crate::printer;

/// Writes the files for clients and people, and prints what a terminal may show.
pub(super) fn welcome(
    dir: &DataDir,
    listen: SocketAddr,
    public: Option<&str>,
    key: &str,
    link: Option<&str>,
) -> anyhow::Result<()> {
    let link = link.map(|token| sign_in_link(listen, token));
    match &link {
        Some(link) => dir.write_sign_in(&format!("{link}\n"))?,
        None => dir.remove_sign_in(),
    }
    // Last: programs wait for this file.
    let env = env_text(listen, key);
    dir.write_env(&env)?;
    let (url, file, operator) = (url(listen), dir.env_file(), dir.operator_key_file());
    let (file, operator) = (file.display(), operator.display());
    let mut text = format!("\nCofferdam is ready at {url}\n");
    if let Some(public) = public {
        text.push_str(&format!("Other machines reach it at {public}\n"));
    }
    text.push('\n');
    if std::io::stdout().is_terminal() {
        text.push_str(&format!("{env}\nThe same is in {file}: `set -a; . {file}; set +a`\n"));
        text.push_str(&format!("The operator's key, which creates projects, is in {operator}.\n"));
        if let Some(link) = link {
            text.push_str(&format!("The web UI, signed in (once, within an hour): {link}\n"));
        }
    } else {
        text.push_str(&format!("The variables for clients are in {file}: `set -a; . {file}; set +a`\n"));
        text.push_str(&format!("The operator's key, which creates projects, is in {operator}.\n"));
        if link.is_some() {
            let sign_in = dir.sign_in_file();
            text.push_str(&format!(
                "A link that signs a browser in (once, within an hour) is in {}.\n",
                sign_in.display()
            ));
        }
    }
    printer::line(text);
    Ok(())
}

/// The variables for clients, as shell assignments.
fn env_text(listen: SocketAddr, key: &str) -> String {
    let url = url(listen);
    let lines = [
        ("E2B_API_URL", url.as_str()),
        ("E2B_SANDBOX_URL", &url),
        ("E2B_VOLUME_API_URL", &url),
        ("E2B_API_KEY", key),
        ("COFFER_URL", &url),
        ("COFFER_API_KEY", key),
    ];
    lines.iter().map(|(name, value)| format!("{name}={value}\n")).collect()
}

/// The link that signs in to the web UI. The token is behind `#`, which browsers do not send.
fn sign_in_link(listen: SocketAddr, token: &str) -> String {
    format!("{}/#token={token}", url(listen))
}

/// The URL that reaches a listener from this machine.
pub(super) fn url(listen: SocketAddr) -> String {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(ip, listen.port()))
}

/// The URL that other machines use, if the domain says it.
pub(super) fn public_url(settings: &Settings, https: SocketAddr) -> Option<String> {
    let name = settings.domain.as_deref()?.split(':').next()?;
    Some(match https.port() {
        443 => format!("https://{name}"),
        port => format!("https://{name}:{port}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_machines_use_the_domain_and_the_port_of_https() {
        let settings = Settings { domain: Some("coffer.test:8443".into()), ..Settings::default() };
        let url = |port| public_url(&settings, SocketAddr::from(([0, 0, 0, 0], port)));
        assert_eq!(url(443).unwrap(), "https://coffer.test");
        assert_eq!(url(8443).unwrap(), "https://coffer.test:8443");
        assert_eq!(public_url(&Settings::default(), SocketAddr::from(([0, 0, 0, 0], 443))), None);
    }

    #[test]
    fn a_wildcard_listener_is_reached_by_loopback() {
        assert_eq!(url("0.0.0.0:80".parse().unwrap()), "http://127.0.0.1:80");
        assert_eq!(url("[::]:80".parse().unwrap()), "http://[::1]:80");
        assert_eq!(url("10.0.0.1:80".parse().unwrap()), "http://10.0.0.1:80");
    }

    #[test]
    fn the_env_text_has_every_variable() {
        let text = env_text("127.0.0.1:3000".parse().unwrap(), "e2b_1");
        let names: Vec<_> = text.lines().map(|line| line.split_once('=').unwrap().0).collect();
        let expected = [
            "E2B_API_URL",
            "E2B_SANDBOX_URL",
            "E2B_VOLUME_API_URL",
            "E2B_API_KEY",
            "COFFER_URL",
            "COFFER_API_KEY",
        ];
        assert_eq!(names, expected);
    }
}
