//! Checks the server's output before root writes it: the server has fewer rights, and root's shell reads one
//! of these files.

use std::net::SocketAddr;

use crate::server::Ready;

/// Our keys and tokens are shorter.
const LONGEST: usize = 256;

/// Refuses text that is not a key or token, and another address than the server was started with.
pub(super) fn check(ready: &Ready, listen: SocketAddr) -> anyhow::Result<()> {
    let Ready { listen: told, https: _, api_key, operator_key, link } = ready;
    // Port 0 lets the system choose one.
    if told.ip() != listen.ip() || (listen.port() != 0 && told.port() != listen.port()) {
        anyhow::bail!("the server listens at {told}, not at {listen}");
    }
    for (what, text) in [("API key", api_key), ("operator's key", operator_key), ("sign-in token", link)] {
        if text.as_deref().is_some_and(|text| !is_word(text)) {
            anyhow::bail!(
                "the {what} from the server has characters other than letters, digits, `_` and `-`"
            );
        }
    }
    Ok(())
}

fn is_word(text: &str) -> bool {
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    (1..=LONGEST).contains(&text.len()) && text.bytes().all(letters)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(listen: &str, key: &str) -> Ready {
        let listen = listen.parse().unwrap();
        Ready {
            listen,
            https: None,
            api_key: Some(key.into()),
            operator_key: None,
            link: Some("a-b_C1".into()),
        }
    }

    #[test]
    fn what_a_shell_would_run_is_not_written() {
        let listen = "127.0.0.1:3000".parse().unwrap();
        check(&ready("127.0.0.1:3000", "e2b_0123456789abcdef"), listen).unwrap();
        let long = "a".repeat(LONGEST + 1);
        for key in ["x;reboot", "$(id)", "`id`", "a b", "a\nPATH=/tmp", "", "é", "'", long.as_str()] {
            let refused = check(&ready("127.0.0.1:3000", key), listen).unwrap_err().to_string();
            assert!(refused.contains("API key") && !refused.contains("reboot"), "{refused}");
            let operator =
                Ready { api_key: None, operator_key: Some(key.into()), ..ready("127.0.0.1:3000", "x") };
            assert!(check(&operator, listen).is_err(), "{key}");
            let link = Ready { api_key: None, link: Some(key.into()), ..ready("127.0.0.1:3000", "x") };
            assert!(check(&link, listen).is_err(), "{key}");
        }
    }

    #[test]
    fn clients_are_sent_nowhere_else() {
        let listen = "127.0.0.1:3000".parse().unwrap();
        for told in ["192.0.2.1:3000", "127.0.0.1:3001"] {
            assert!(check(&ready(told, "e2b_1"), listen).is_err(), "{told}");
        }
        check(&ready("127.0.0.1:3001", "e2b_1"), "127.0.0.1:0".parse().unwrap()).unwrap();
    }
}
