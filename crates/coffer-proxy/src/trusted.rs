//! Reverse proxies in front of the server, and the clients they forward for.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use coffer_core::network::Block;
use http::{HeaderMap, HeaderName};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// How long the header of a connection may take. Proxies send it at once.
const HEADER_WITHIN: Duration = Duration::from_secs(5);
/// How much of a header is read: an address, and in version 2 some extensions, which are skipped.
const LONGEST_HEADER: usize = 2048;
/// A line of version 1, with its end.
const LONGEST_LINE: usize = 107;
/// How both versions begin; no request in HTTP does.
const V1: &[u8] = b"PROXY ";
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Hops of `X-Forwarded-For` that are looked at.
const MOST_HOPS: usize = 32;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The addresses of reverse proxies, which are trusted to name the client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustedProxies(Vec<Block>);

impl TrustedProxies {
    /// Parses addresses and CIDR blocks; the error is the text that is neither.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let blocks = texts.into_iter().map(|text| text.parse().map_err(|_| text.to_string()));
        Ok(Self(blocks.collect::<Result<_, _>>()?))
    }

    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|block| block.contains(address))
    }

    /// The sender of a request, by the hop that brought it: the last address in `X-Forwarded-For` that is not
    /// a trusted proxy. Entries further left came from that address, and may be forged.
    pub(crate) fn sender(&self, hop: IpAddr, headers: &HeaderMap) -> IpAddr {
        if !self.contains(hop) {
            return hop;
        }
        let values = headers.get_all(FORWARDED_FOR).iter().rev();
        let hops = values.flat_map(|value| value.as_bytes().rsplit(|byte| *byte == b','));
        let mut last = hop;
        for text in hops.take(MOST_HOPS) {
            // If a proxy sends no valid address, treat the proxy as the sender.
            let Some(address) = address(text) else { return last };
            last = address;
            if !self.contains(address) {
                break;
            }
        }
        last
    }
}

/// An address as proxies write it: some add the port.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let found = bare.parse::<IpAddr>().or_else(|_| text.parse::<SocketAddr>().map(|address| address.ip()));
    found.ok().map(|address| address.to_canonical())
}

/// Reads the PROXY protocol's header from a trusted proxy's connection, if there is one. Returns the client
/// it names; `None` if the proxy opened the connection for itself, for example for a health check.
pub(crate) async fn read_header(stream: &mut TcpStream) -> io::Result<Option<SocketAddr>> {
    let mut seen = 0;
    let read = async {
        let mut buffer = vec![0; LONGEST_HEADER];
        loop {
            let peeked = stream.peek(&mut buffer).await?;
            let begun = &buffer[..peeked];
            if !could_be(begun, V1) && !could_be(begun, V2) {
                return Ok(None);
            }
            if let Some(Header { length, source }) = header(begun)? {
                stream.read_exact(&mut buffer[..length]).await?;
                return Ok(source);
            }
            if peeked == 0 || peeked == LONGEST_HEADER {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if peeked == seen {
                // Peeking does not wait for more data.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            seen = peeked;
        }
    };
    match tokio::time::timeout(HEADER_WITHIN, read).await {
        Ok(read) => read,
        // Opened for a later request, by a proxy that does not use this protocol.
        Err(_) if seen == 0 => Ok(None),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Whether `begun` is, or may become, something that starts with `mark`.
fn could_be(begun: &[u8], mark: &[u8]) -> bool {
    let both = begun.len().min(mark.len());
    begun[..both] == mark[..both]
}

/// A header, and the address it names.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    length: usize,
    source: Option<SocketAddr>,
}

/// The header that `begun` starts with, once it is whole.
fn header(begun: &[u8]) -> io::Result<Option<Header>> {
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    if begun.starts_with(V2) {
        let Some((head, rest)) = begun.split_at(V2.len()).1.split_first_chunk::<4>() else { return Ok(None) };
        let [command, family, high, low] = *head;
        let length = usize::from(u16::from_be_bytes([high, low]));
        let total = V2.len() + head.len() + length;
        // Version 2, and either the proxy's own connection or a client's.
        if !matches!(command, 0x20 | 0x21) || total > LONGEST_HEADER {
            return Err(bad());
        }
        let Some(addresses) = rest.get(..length) else { return Ok(None) };
        let source = match (command, family) {
            (0x21, 0x11) => {
                let (ip, ports) = addresses.split_first_chunk::<4>().ok_or_else(bad)?;
                Some((IpAddr::from(*ip), *ports.get(4..).and_then(<[u8]>::first_chunk::<2>).ok_or_else(bad)?))
            }
            (0x21, 0x21) => {
                let (ip, ports) = addresses.split_first_chunk::<16>().ok_or_else(bad)?;
                Some((
                    IpAddr::from(*ip),
                    *ports.get(16..).and_then(<[u8]>::first_chunk::<2>).ok_or_else(bad)?,
                ))
            }
            _ => None,
        };
        let source = source.map(|(ip, port)| SocketAddr::new(ip.to_canonical(), u16::from_be_bytes(port)));
        return Ok(Some(Header { length: total, source }));
    }
    if !begun.starts_with(V1) {
        // Too short to tell, or version 2.
        return Ok(None);
    }
    let line = &begun[..begun.len().min(LONGEST_LINE)];
    let Some(end) = line.windows(2).position(|two| two == b"\r\n") else {
        return if line.len() == LONGEST_LINE { Err(bad()) } else { Ok(None) };
    };
    let text = std::str::from_utf8(&line[..end]).map_err(|_| bad())?;
    let words: Vec<&str> = text.split(' ').collect();
    let source = match words[..] {
        ["PROXY", "UNKNOWN", ..] => None,
        ["PROXY", family, source, _, port, _] => {
            let ip: IpAddr = source.parse().map_err(|_| bad())?;
            if family != if ip.is_ipv4() { "TCP4" } else { "TCP6" } {
                return Err(bad());
            }
            Some(SocketAddr::new(ip.to_canonical(), port.parse().map_err(|_| bad())?))
        }
        _ => return Err(bad()),
    };
    Ok(Some(Header { length: end + 2, source }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    fn proxies() -> TrustedProxies {
        TrustedProxies::parse(["10.0.0.0/8", "::1", "2001:db8:ffff::/48"]).unwrap()
    }

    #[test]
    fn the_last_hop_that_is_not_trusted_is_the_sender() {
        assert_eq!(TrustedProxies::parse(["10.0.0.0/8", "nonsense"]), Err("nonsense".to_string()));
        let sender = |hop: &str, lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(FORWARDED_FOR, line.parse().unwrap());
            }
            proxies().sender(hop.parse().unwrap(), &headers).to_string()
        };
        assert_eq!(sender("192.0.2.1", &["203.0.113.9"]), "192.0.2.1", "a stranger is believed nothing");
        assert_eq!(sender("10.1.2.3", &["203.0.113.9"]), "203.0.113.9");
        assert_eq!(
            sender("10.1.2.3", &["198.51.100.1, 203.0.113.9"]),
            "203.0.113.9",
            "entries on the left come from the client"
        );
        assert_eq!(sender("10.1.2.3", &["203.0.113.9, 10.9.9.9", "2001:db8:ffff::1"]), "203.0.113.9");
        assert_eq!(sender("10.1.2.3", &["203.0.113.9:4711"]), "203.0.113.9");
        assert_eq!(sender("::1", &["[2001:db8::7]:4711"]), "2001:db8::7");
        assert_eq!(sender("::1", &["::ffff:203.0.113.9"]), "203.0.113.9");
        assert_eq!(sender("10.1.2.3", &[]), "10.1.2.3");
        assert_eq!(sender("10.1.2.3", &["203.0.113.9, unknown"]), "10.1.2.3");
        assert_eq!(sender("10.1.2.3", &["10.0.0.5"]), "10.0.0.5");
        assert_eq!(
            sender("10.1.2.3", &[&"10.0.0.5,".repeat(1000)]),
            "10.1.2.3",
            "an empty hop is not an address"
        );
    }

    /// The parsed result of `bytes`, sent in two pieces, and the bytes left over.
    async fn read(bytes: &[u8], cut: usize) -> (io::Result<Option<SocketAddr>>, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        let (first, rest) = bytes.split_at(cut.min(bytes.len()));
        let (first, rest) = (first.to_vec(), rest.to_vec());
        let sent = tokio::spawn(async move {
            sender.write_all(&first).await.unwrap();
            tokio::time::sleep(Duration::from_millis(30)).await;
            sender.write_all(&rest).await.unwrap();
        });
        let header = read_header(&mut stream).await;
        sent.await.unwrap();
        let mut left = Vec::new();
        if header.is_ok() {
            stream.read_to_end(&mut left).await.unwrap();
        }
        (header, left)
    }

    #[tokio::test]
    async fn both_versions_are_read_in_pieces_and_nothing_after_them() {
        let get = b"GET / HTTP/1.1\r\n\r\n";
        let v1 = [&b"PROXY TCP4 203.0.113.9 192.0.2.1 4711 80\r\n"[..], get].concat();
        let v6 = [&b"PROXY TCP6 2001:db8::7 2001:db8::1 4711 80\r\n"[..], get].concat();
        let v2 = [V2, &[0x21, 0x11, 0, 12, 203, 0, 113, 9, 192, 0, 2, 1, 0x12, 0x67, 0, 80], get].concat();
        let local = [V2, &[0x20, 0, 0, 0], get].concat();
        for cut in [1, 5, 8, 14, 20, 4096] {
            for (bytes, expected) in [
                (&v1, Some("203.0.113.9:4711")),
                (&v6, Some("[2001:db8::7]:4711")),
                (&v2, Some("203.0.113.9:4711")),
                (&local, None),
                (&get.to_vec(), None),
            ] {
                let (header, left) = read(bytes, cut).await;
                assert_eq!(header.unwrap(), expected.map(|text| text.parse().unwrap()), "{cut}");
                assert_eq!(left, get, "{cut}");
            }
        }
        for bad in
            [&b"PROXY nonsense\r\n"[..], b"PROXY TCP4 203.0.113.9", &[V2, &[0x31, 0x11, 0, 0]].concat()]
        {
            assert!(read(bad, 4).await.0.is_err(), "{bad:?}");
        }
    }
}
