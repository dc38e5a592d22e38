//! Follows the files of the certificate for the server, which must not read them: they are root's.

use std::time::Duration;

use coffer_server::CertificateText;
use tokio::sync::watch;

use crate::server::Told;
use crate::tls::CertificateFiles;

const EVERY: Duration = Duration::from_secs(2);

/// What the server is told, and told again when the files have another certificate that can be used.
pub(super) fn follow(mut told: Told, files: CertificateFiles) -> watch::Receiver<String> {
    let (sender, receiver) = watch::channel(line(&told));
    #[expect(clippy::disallowed_methods, reason = "ends with its last receiver")]
    tokio::spawn(async move {
        let mut pair = Pair { current: told.certificate.clone(), bad: None };
        while !sender.is_closed() {
            tokio::time::sleep(EVERY).await;
            match pair.look(&files) {
                Change::None => {}
                Change::New(certificate) => {
                    tracing::info!("certificate changed, new connections get it");
                    told.certificate = Some(certificate);
                    sender.send_replace(line(&told));
                }
                Change::Unusable(why) => {
                    tracing::error!("certificate changed, but the server keeps the previous one: {why}");
                }
            }
        }
    });
    receiver
}

fn line(told: &Told) -> String {
    serde_json::to_string(told).expect("plain values")
}

#[derive(Debug, PartialEq, Eq)]
enum Change {
    None,
    New(CertificateText),
    Unusable(String),
}

/// The certificate in use, and one that is not.
struct Pair {
    current: Option<CertificateText>,
    /// Why the files could not be used the last time, and whether that was reported.
    bad: Option<(String, bool)>,
}

impl Pair {
    fn look(&mut self, files: &CertificateFiles) -> Change {
        let read = files.read();
        if let Ok(text) = &read
            && self.current.as_ref() == Some(text)
        {
            self.bad = None;
            return Change::None;
        }
        match read.and_then(|text| files.check(&text).map(|_| text)) {
            Ok(text) => {
                self.bad = None;
                self.current = Some(text.clone());
                Change::New(text)
            }
            Err(error) => {
                let why = format!("{error:#}");
                match &mut self.bad {
                    Some((known, reported)) if *known == why => {
                        if std::mem::replace(reported, true) {
                            Change::None
                        } else {
                            Change::Unusable(why)
                        }
                    }
                    // Programs write two files, one after the other: the next look may find a pair.
                    _ => {
                        self.bad = Some((why, false));
                        Change::None
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coffer_egress::AuthorityText;

    #[test]
    fn a_pair_replaces_the_previous_one_and_a_bad_one_is_reported_once() {
        let temp = tempfile::tempdir().unwrap();
        let files = CertificateFiles { cert: temp.path().join("cert"), key: temp.path().join("key") };
        let (one, two) = (AuthorityText::generate().unwrap(), AuthorityText::generate().unwrap());
        let write = |cert: &str, key: &str| {
            std::fs::write(&files.cert, cert).unwrap();
            std::fs::write(&files.key, key).unwrap();
        };
        write(&one.certificate, &one.key);
        let mut pair = Pair { current: Some(files.load().unwrap()), bad: None };
        assert_eq!(pair.look(&files), Change::None);
        // Half of a renewal.
        write(&two.certificate, &one.key);
        assert_eq!(pair.look(&files), Change::None);
        write(&two.certificate, &two.key);
        let new = CertificateText { certificates: two.certificate.clone(), key: two.key.clone() };
        assert_eq!(pair.look(&files), Change::New(new));
        assert_eq!(pair.look(&files), Change::None);
        // A renewal that stays half done.
        write(&one.certificate, &two.key);
        assert_eq!(pair.look(&files), Change::None);
        let Change::Unusable(why) = pair.look(&files) else { panic!("it is reported") };
        assert!(why.contains("the key belongs to another certificate"), "{why}");
        assert_eq!(pair.look(&files), Change::None);
        // Back to the one in use, and bad again.
        write(&two.certificate, &two.key);
        assert_eq!(pair.look(&files), Change::None);
        std::fs::remove_file(&files.cert).unwrap();
        assert_eq!(pair.look(&files), Change::None);
        assert!(matches!(pair.look(&files), Change::Unusable(why) if why.contains("could not read")));
    }
}
