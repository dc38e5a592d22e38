//! HTTPS: the certificate, its names, its time and its issuer.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use coffer_core::clock::now_ms;
use coffer_server::Certificate;

use super::finding::Finding;
use crate::config::Settings;
use crate::roots::roots;
use crate::tls::CertificateFiles;

const DAY_S: i64 = 86_400;
/// Programs that renew certificates do so 30 days before their end.
const SOON_S: i64 = 14 * DAY_S;

pub(super) fn check(settings: &Settings) -> Vec<Finding> {
    let Some(files) = CertificateFiles::of(settings) else { return without(settings) };
    let certificate = match files.read().and_then(|text| files.check(&text)) {
        Ok(certificate) => certificate,
        Err(error) => {
            return vec![
                Finding::fail("certificate", format!("{error:#}"))
                    .matters("`coffer up` does not start; a running one keeps its previous certificate")
                    .fix("name the PEM files of one certificate in `tls.cert` and `tls.key`"),
            ];
        }
    };
    let trusted = roots(settings.network.extra_roots.as_deref()).unwrap_or_default();
    let mut findings = vec![time(&certificate, now_ms() / 1000)];
    findings.push(names(&certificate, settings.domain.as_deref()));
    findings.push(issuer(&certificate, &trusted));
    findings.extend(open_key(&files.key));
    findings
}

/// HTTPS may be another program's.
fn without(settings: &Settings) -> Vec<Finding> {
    if settings.listen.ip().is_loopback() || !settings.trusted_proxies.is_empty() {
        return Vec::new();
    }
    let found = format!("there is none: other machines use plain HTTP at {}", settings.listen);
    vec![
        Finding::warn("certificate", found)
            .matters("keys and code can be read and changed on the way")
            .fix("set `tls.cert` and `tls.key`, or name the reverse proxy in `trusted_proxies`"),
    ]
}

fn time(certificate: &Certificate, now_s: i64) -> Finding {
    let left_s = certificate.not_after_s() - now_s;
    let finding = if certificate.not_before_s() > now_s {
        let days = (certificate.not_before_s() - now_s) / DAY_S;
        Finding::fail("certificate.time", format!("it begins to be valid in {days} days"))
    } else if left_s < 0 {
        Finding::fail("certificate.time", format!("it ended {} days ago", -left_s / DAY_S))
    } else if left_s < SOON_S {
        Finding::warn("certificate.time", format!("it ends in {} days", left_s / DAY_S))
    } else {
        return Finding::ok("certificate.time", format!("valid for {} more days", left_s / DAY_S));
    };
    finding
        .matters("clients refuse a certificate out of its time")
        .fix("renew it, and look at the program that should; the server notices new files by itself")
}

fn names(certificate: &Certificate, domain: Option<&str>) -> Finding {
    let check = "certificate.names";
    let Some(domain) = domain else {
        return Finding::skipped(check, "no `domain` is set, so it is not known what clients ask for");
    };
    let name = domain.split(':').next().unwrap_or(domain);
    let needed = [
        (name.to_string(), name.to_string()),
        (format!("api.{name}"), format!("*.{name}")),
        (format!("49983-doctor.{name}"), format!("*.{name}")),
    ];
    let mut missing: Vec<String> =
        needed.into_iter().filter(|(asked, _)| !certificate.covers(asked)).map(|(_, entry)| entry).collect();
    missing.dedup();
    if missing.is_empty() {
        return Finding::ok(check, format!("valid for {name} and *.{name}"));
    }
    Finding::fail(check, format!("not valid for {}", missing.join(" and ")))
        .matters("clients refuse to talk to the API or to ports of sandboxes by these names")
        .fix(format!(
            "get a certificate for {name} and *.{name}; authorities want a DNS challenge for the second"
        ))
}

/// Whether programs on this machine believe it. Others may know another authority.
fn issuer(certificate: &Certificate, trusted: &str) -> Finding {
    let check = "certificate.issuer";
    // Its time has a check of its own.
    match certificate.is_trusted(trusted, certificate.not_after_s() - 1) {
        Ok(()) => Finding::ok(check, "an authority that this machine trusts"),
        Err(why) => Finding::warn(check, format!("this machine does not trust it: {why}"))
            .matters("so do clients that do not know its authority")
            .fix(
                "put the certificates between it and the authority into `tls.cert` (`fullchain.pem`); for an authority \
                 of your own, install its certificate on clients, or set SSL_CERT_FILE there",
            ),
    }
}

fn open_key(path: &Path) -> Option<Finding> {
    let about = std::fs::metadata(path).ok()?;
    let finding = Finding::warn("certificate.key", format!("others can read `{}`", path.display()));
    (about.mode() & 0o004 != 0).then(|| {
        finding
            .matters("with the key they can pretend to be this server")
            .fix(format!("chmod 600 {}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::*;
    use coffer_egress::AuthorityText;
    use coffer_server::CertificateText;

    /// An authority's own certificate: it has no names, and nothing knows its issuer.
    fn authority() -> CertificateText {
        let made = AuthorityText::generate().unwrap();
        CertificateText { certificates: made.certificate, key: made.key }
    }

    fn certificate() -> Certificate {
        Certificate::parse(&authority()).unwrap()
    }

    #[test]
    fn a_certificate_fails_outside_its_time_and_warns_before_its_end() {
        let certificate = certificate();
        let at = |now_s| time(&certificate, now_s).status;
        let end = certificate.not_after_s();
        assert_eq!(at(certificate.not_before_s() - 1), Status::Fail);
        assert_eq!(at(end - SOON_S), Status::Ok);
        assert_eq!(at(end - SOON_S + 1), Status::Warn);
        assert_eq!(at(end + 1), Status::Fail);
        assert!(time(&certificate, end + 3 * DAY_S).found.contains("3 days ago"));
    }

    #[test]
    fn names_that_clients_use_must_be_in_it() {
        let missing = names(&certificate(), Some("coffer.test:8443"));
        assert_eq!(missing.status, Status::Fail);
        assert_eq!(missing.found, "not valid for coffer.test and *.coffer.test");
        assert_eq!(names(&certificate(), None).status, Status::Skipped);
    }

    #[test]
    fn an_unknown_issuer_and_a_readable_key_are_warnings() {
        assert_eq!(issuer(&certificate(), "").status, Status::Warn);
        let temp = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(open_key(temp.path()), None);
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(open_key(temp.path()).unwrap().status, Status::Warn);
    }

    #[test]
    fn plain_http_for_other_machines_is_pointed_out() {
        let listening = |listen: &str| Settings { listen: listen.parse().unwrap(), ..Settings::default() };
        assert_eq!(check(&listening("127.0.0.1:3000")), []);
        assert_eq!(check(&listening("0.0.0.0:3000"))[0].status, Status::Warn);
        let behind = Settings { trusted_proxies: vec!["10.0.0.1".into()], ..listening("0.0.0.0:3000") };
        assert_eq!(check(&behind), []);
    }

    #[test]
    fn files_that_are_no_pair_fail_and_say_why() {
        let temp = tempfile::tempdir().unwrap();
        let (cert, key) = (temp.path().join("cert.pem"), temp.path().join("key.pem"));
        std::fs::write(&cert, authority().certificates).unwrap();
        std::fs::write(&key, authority().key).unwrap();
        let mut settings = Settings::default();
        settings.tls.cert = Some(cert);
        settings.tls.key = Some(key);
        let findings = check(&settings);
        assert_eq!(findings[0].status, Status::Fail);
        assert!(
            findings[0].found.ends_with("the key belongs to another certificate"),
            "{}",
            findings[0].found
        );
    }
}
