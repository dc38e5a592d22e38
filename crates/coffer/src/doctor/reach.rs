//! Addresses: the port, the server behind it, name servers, the domain, mirrors and registries.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs as _};
use std::time::Duration;

use coffer_core::network::HostName;
use coffer_egress::{Family, LookupError, Resolver as _, Upstream, nameservers};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::finding::Finding;
use crate::config::Settings;
use crate::data_dir::DataDir;

const PATIENCE: Duration = Duration::from_secs(3);
/// Every name server knows the servers of this name, or says that it does not exist.
const ANY_NAME: &str = "example.com";
/// The longest answer of `/health` that is read.
const MOST_HEALTH: u64 = 4096;
/// The same for `/metrics`.
const MOST_METRICS: u64 = 4 << 20;

pub(super) async fn check(settings: &Settings, running: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    if running {
        findings.push(server(settings.listen).await);
        findings.extend(breakers(settings).await);
    } else {
        findings.push(port("port", settings.listen, "--listen"));
        if settings.tls.cert.is_some() {
            findings.push(port("port.https", settings.tls.listen, "`tls.listen`"));
            findings.extend(settings.tls.redirect.map(|at| port("port.redirect", at, "`tls.redirect`")));
        }
    }
    if let Some(domain) = &settings.domain {
        findings.push(wildcard(domain, settings.listen));
    }
    findings
}

pub(super) async fn check_names_and_mirrors(settings: &Settings) -> Vec<Finding> {
    let mut findings = Vec::new();
    if settings.network.enabled {
        findings.extend(name_servers(settings).await);
    }
    for (check, host, port) in hosts(settings) {
        findings.push(connect(&check, &host, port).await);
    }
    findings
}

fn port(check: &str, listen: SocketAddr, setting: &str) -> Finding {
    match TcpListener::bind(listen) {
        Ok(_) => Finding::ok(check, format!("{listen} is free")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            let by = holder(listen.port())
                .map_or_else(String::new, |(pid, name)| format!(" by {name} (pid {pid})"));
            Finding::fail(check, format!("{listen} is taken{by}"))
                .matters("`coffer up` cannot serve there")
                .fix(format!("stop that program, or choose another port with {setting}"))
        }
        Err(error) => Finding::fail(check, format!("cannot listen on {listen}: {error}"))
            .fix(format!("choose an address of this machine with {setting}")),
    }
}

/// The process that listens on a port of this machine.
fn holder(port: u16) -> Option<(u32, String)> {
    // Fields of a line: number, local address, remote address, state, …; the tenth is the inode.
    let inode_of = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let local = fields.nth(1)?;
        let is_listening = fields.nth(1)? == "0A";
        let found = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()? == port && is_listening;
        found.then(|| fields.nth(5))?.map(str::to_string)
    };
    let tables =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| std::fs::read_to_string(table).unwrap_or_default());
    let inode = tables.iter().flat_map(|table| table.lines().skip(1)).find_map(inode_of)?;
    let link = format!("socket:[{inode}]");
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        let mut open = std::fs::read_dir(process.path().join("fd")).ok()?.flatten();
        open.find(|entry| {
            std::fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == link.as_str())
        })?;
        let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        Some((pid, name.trim().to_string()))
    })
}

async fn server(listen: SocketAddr) -> Finding {
    let ask = async {
        let answer = get(listen, "/health", None, MOST_HEALTH).await?;
        std::io::Result::Ok(answer.lines().next().unwrap_or_default().to_string())
    };
    match timeout(PATIENCE, ask).await {
        Ok(Ok(line)) if line.contains(" 200") || line.contains(" 204") => {
            Finding::ok("server", format!("answers on {listen}"))
        }
        Ok(Ok(line)) => Finding::fail("server", format!("answers `{line}` on {listen}"))
            .fix("look at its log: journalctl -u coffer, or the terminal of `coffer up`"),
        Ok(Err(error)) => {
            Finding::fail("server", format!("a `coffer up` runs, but {listen} does not answer: {error}"))
                .fix("is `listen` of that server another address? `coffer config show listen`")
        }
        Err(_) => Finding::fail("server", format!("a `coffer up` runs, but {listen} does not answer in 3 s"))
            .fix("look at its log: journalctl -u coffer, or the terminal of `coffer up`"),
    }
}

/// The server's circuit breakers; nothing if it does not tell.
async fn breakers(settings: &Settings) -> Option<Finding> {
    let key = DataDir::open(&settings.data_dir).ok()?.known_operator_key()?;
    let asked = get(settings.listen, "/metrics", Some(&key), MOST_METRICS);
    let metrics = timeout(PATIENCE, asked).await.ok()?.ok()?;
    metrics.lines().next()?.contains(" 200").then(|| super::pool::breakers(&metrics))
}

/// The head and body of an answer, of which at most so many bytes are read.
async fn get(listen: SocketAddr, path: &str, key: Option<&str>, most: u64) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(listen).await?;
    let key = key.map_or(String::new(), |key| format!("Authorization: Bearer {key}\r\n"));
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{key}\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(most).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Whether names of sandboxes lead here.
fn wildcard(domain: &str, listen: SocketAddr) -> Finding {
    let (name, port) = domain.rsplit_once(':').unwrap_or((domain, "80"));
    let asked = format!("49983-doctor.{name}");
    let record = format!("add a DNS record: *.{name} → the address of this server");
    let matters = "ports of sandboxes have no addresses of their own; E2B_SANDBOX_URL works without";
    match (asked.as_str(), port.parse().unwrap_or(80_u16)).to_socket_addrs() {
        Err(_) => Finding::fail("domain", format!("`{asked}` does not resolve")).matters(matters).fix(record),
        Ok(found) => {
            let found: Vec<IpAddr> = found.map(|address| address.ip()).collect();
            let own = own_addresses();
            let leads_here = found.iter().any(|ip| own.contains(ip) || *ip == listen.ip());
            let list = found.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
            if leads_here {
                return Finding::ok("domain", format!("`*.{name}` leads to this machine ({list})"));
            }
            Finding::warn(
                "domain",
                format!("`*.{name}` leads to {list}, which is not an address of this machine"),
            )
            .matters("that is right only behind a proxy or NAT")
            .fix(record)
        }
    }
}

fn own_addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let address = |interface: nix::ifaddrs::InterfaceAddress| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    };
    interfaces.filter_map(address).collect()
}

async fn name_servers(settings: &Settings) -> Vec<Finding> {
    let chosen = settings.nameservers().unwrap_or_default();
    let (servers, fix) = if chosen.is_empty() {
        let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        (nameservers(&text), "correct /etc/resolv.conf, or set `network.nameservers`")
    } else {
        (chosen, "correct `network.nameservers`")
    };
    let matters = "sandboxes cannot look up names, so they reach nothing by name";
    if servers.is_empty() {
        return vec![Finding::fail("dns", "no name server is configured").matters(matters).fix(fix)];
    }
    let Ok(name) = ANY_NAME.parse::<HostName>() else { return Vec::new() };
    let mut findings = Vec::new();
    for server in servers {
        let upstream = Upstream::new(vec![server]).patience(Duration::from_secs(1));
        findings.push(match upstream.addresses(&name, Family::V4).await {
            Ok(_) | Err(LookupError::NoSuchName) => {
                Finding::ok("dns", format!("name server {server} answers"))
            }
            Err(LookupError::Failed) => Finding::fail("dns", format!("name server {server} does not answer"))
                .matters(matters)
                .fix(fix),
        });
    }
    findings
}

/// Mirrors and registries that the settings name, with the port to try.
fn hosts(settings: &Settings) -> Vec<(String, String, u16)> {
    let mut hosts = Vec::new();
    if let Ok(mirrors) = settings.mirrors.resolve() {
        for mirror in mirrors.hosts().iter() {
            let host = mirror.address.map_or_else(|| mirror.name.to_string(), |address| address.to_string());
            hosts.extend(
                mirror.ports.iter().next().map(|&port| (format!("mirror.{}", mirror.name), host, port)),
            );
        }
    }
    let registries = &settings.registries;
    for text in registries.mirrors.values().flatten().chain(&registries.private_hosts) {
        let usual = if registries.plain_http.contains(text) { 80 } else { 443 };
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().unwrap_or(usual)),
            None => (text.as_str(), usual),
        };
        hosts.push((format!("registry.{text}"), host.to_string(), port));
    }
    hosts
}

async fn connect(check: &str, host: &str, port: u16) -> Finding {
    let failed = |why: String| {
        Finding::fail(check, format!("{host}:{port} cannot be reached: {why}"))
            .matters("builds and installs that use it fail")
            .fix("start it, or correct `mirrors` or `registries` in the settings")
    };
    match timeout(PATIENCE, TcpStream::connect((host, port))).await {
        Ok(Ok(_)) => Finding::ok(check, format!("{host}:{port} can be reached")),
        Ok(Err(error)) => failed(error.to_string()),
        Err(_) => failed("no answer in 3 s".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::*;

    #[test]
    fn a_taken_port_is_named_with_its_holder() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let finding = port("port", taken.local_addr().unwrap(), "--listen");
        assert_eq!(finding.status, Status::Fail);
        assert!(finding.found.contains(&format!("(pid {})", std::process::id())), "{}", finding.found);
    }

    #[test]
    fn a_domain_without_a_wildcard_fails_with_the_record_to_add() {
        let finding = wildcard("nothing.invalid", "127.0.0.1:3000".parse().unwrap());
        assert_eq!(finding.status, Status::Fail);
        assert_eq!(finding.fix.unwrap(), "add a DNS record: *.nothing.invalid → the address of this server");
    }

    #[tokio::test]
    async fn registries_and_mirrors_that_do_not_answer_fail() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(connect("mirror.x", "127.0.0.1", port).await.status, Status::Ok);
        drop(listener);
        assert_eq!(connect("mirror.x", "127.0.0.1", port).await.status, Status::Fail);
    }
}
