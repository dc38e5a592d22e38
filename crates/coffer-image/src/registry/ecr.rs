//! Logins for ECR, Amazon's registry: an access key is exchanged for a password that is good for twelve hours.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use coffer_core::{Millis, clock};
use coffer_http::Address;
use http::{Method, StatusCode};
use ring::hmac;
use serde::Deserialize;

use crate::credentials::{AwsKey, Login};
use crate::digest::Digest;
use crate::error::ImageError;
use crate::registry::wire::{PATIENCE, Source, Wire, request};

const BODY: &[u8] = b"{}";
const CONTENT_TYPE: &str = "application/x-amz-json-1.1";
const TARGET: &str = "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken";
const SIGNED: &str = "content-type;host;x-amz-date;x-amz-target";
const LONGEST_ANSWER: usize = 64 << 10;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reply {
    authorization_data: Vec<Authorization>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Authorization {
    authorization_token: String,
}

/// The address that hands out logins for a registry, if AWS keys of this region are for it: they belong to no other host.
pub(super) fn endpoint(registry: &str, region: &str) -> Option<String> {
    let suffix = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    let account = registry.strip_suffix(&format!(".dkr.ecr.{region}.{suffix}"))?;
    let is_account = account.len() == 12 && account.bytes().all(|b| b.is_ascii_digit());
    is_account.then(|| format!("https://api.ecr.{region}.{suffix}/"))
}

/// Asks AWS for a login.
pub(super) async fn log_in(
    wire: &Wire,
    endpoint: &str,
    key: &AwsKey,
    source: &Source,
) -> Result<Login, ImageError> {
    let to = Address::parse(endpoint).map_err(|why| ImageError::invalid(endpoint, why.to_string()))?;
    let host = to.host_header();
    let (date, authorization) = authorization(key, host, clock::now_ms());
    let request = request(Method::POST, &to)
        .header("content-type", CONTENT_TYPE)
        .header("x-amz-date", date)
        .header("x-amz-target", TARGET)
        .header("authorization", authorization);
    let response = wire.send(&to, source, request, Bytes::from_static(BODY)).await?;
    let (head, body) = response.into_parts();
    let body = body.whole(LONGEST_ANSWER, PATIENCE).await;
    let body = body.map_err(|failure| ImageError::from_failure(host, failure, LONGEST_ANSWER))?;
    match head.status {
        StatusCode::OK => {
            read(&body).ok_or_else(|| ImageError::invalid(format!("`{host}`"), "sent no login"))
        }
        // AWS answers 400 to a key that it does not know.
        StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Err(ImageError::Unauthorized {
                host: host.into(),
                repository: source.repository.clone(),
                credentials_sent: true,
            })
        }
        status => {
            Err(ImageError::Status { host: host.into(), status: status.as_u16(), detail: String::new() })
        }
    }
}

fn read(body: &[u8]) -> Option<Login> {
    let reply: Reply = serde_json::from_slice(body).ok()?;
    let pair = STANDARD.decode(&reply.authorization_data.first()?.authorization_token).ok()?;
    let (username, password) = std::str::from_utf8(&pair).ok()?.split_once(':')?;
    Login::new(username, password).ok()
}

/// The headers `x-amz-date` and `authorization` of the request, by Signature Version 4.
fn authorization(key: &AwsKey, host: &str, now: Millis) -> (String, String) {
    let date = jiff::Timestamp::from_millisecond(now).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    let date = date.strftime("%Y%m%dT%H%M%SZ").to_string();
    let canonical = format!(
        "POST\n/\n\ncontent-type:{CONTENT_TYPE}\nhost:{host}\nx-amz-date:{date}\nx-amz-target:{TARGET}\n\n{SIGNED}\n{}",
        Digest::of(BODY).hex()
    );
    let (scope, signature) = sign(key, "ecr", &date, &canonical);
    let id = &key.id;
    (date, format!("AWS4-HMAC-SHA256 Credential={id}/{scope}, SignedHeaders={SIGNED}, Signature={signature}"))
}

fn sign(key: &AwsKey, service: &str, date: &str, canonical: &str) -> (String, String) {
    let day = &date[..8];
    let scope = format!("{day}/{}/{service}/aws4_request", key.region);
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", Digest::of(canonical.as_bytes()).hex());
    let mac = |key: &[u8], text: &str| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes());
    let mut signed = mac(format!("AWS4{}", key.secret.reveal()).as_bytes(), day);
    for part in [key.region.as_str(), service, "aws4_request", &text] {
        signed = mac(signed.as_ref(), part);
    }
    (scope, hex::encode(signed))
}

#[cfg(test)]
mod tests {
    use coffer_core::settings::SecretText;

    use super::*;

    /// The example of AWS's documentation.
    #[test]
    fn requests_are_signed_as_aws_documents_it() {
        let key = AwsKey {
            id: "AKIDEXAMPLE".into(),
            secret: SecretText::new("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
            region: "us-east-1".into(),
        };
        let canonical = "GET\n/\nAction=ListUsers&Version=2010-05-08\n\
            content-type:application/x-www-form-urlencoded; charset=utf-8\nhost:iam.amazonaws.com\n\
            x-amz-date:20150830T123600Z\n\ncontent-type;host;x-amz-date\n\
            e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let (scope, signature) = sign(&key, "iam", "20150830T123600Z", canonical);
        assert_eq!(scope, "20150830/us-east-1/iam/aws4_request");
        assert_eq!(signature, "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7");
        let (date, header) = authorization(&key, "api.ecr.us-east-1.amazonaws.com", 1_440_938_160_000);
        assert_eq!(date, "20150830T123600Z");
        assert!(
            header
                .starts_with("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/ecr/aws4_request, ")
        );
        assert!(!header.contains("EXAMPLEKEY"));
    }

    #[tokio::test]
    async fn a_key_is_exchanged_for_a_login() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let serve = |status: &'static str, body: String| {
            let listener = &listener;
            async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (mut request, mut piece) = (Vec::new(), [0; 4096]);
                while !request.ends_with(BODY) {
                    let read = stream.read(&mut piece).await.unwrap();
                    request.extend_from_slice(&piece[..read]);
                }
                let reply = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                stream.write_all(reply.as_bytes()).await.unwrap();
                String::from_utf8(request).unwrap()
            }
        };
        let hosts = coffer_http::PrivateHosts::parse([host.as_str()]).unwrap();
        let client = coffer_http::Client::new(None);
        let wire = Wire { client, private_hosts: hosts.clone(), plain_http: hosts };
        let (secret, region) = (SecretText::new("secret key"), "eu-west-1".into());
        let key = AwsKey { id: "AKIA0".into(), secret, region };
        let source = Source { host: "x".into(), repository: "a/b".into(), is_mirror: false };
        let endpoint = format!("http://{host}/");
        let token = STANDARD.encode("AWS:password");
        let good = format!(r#"{{"authorizationData":[{{"authorizationToken":"{token}"}}]}}"#);
        let (request, login) = tokio::join!(serve("200", good), log_in(&wire, &endpoint, &key, &source));
        assert_eq!(login.unwrap().basic().to_str().unwrap(), format!("Basic {token}"));
        let has = |part: &str| request.to_ascii_lowercase().contains(&part.to_ascii_lowercase());
        assert!(request.starts_with("POST / HTTP/1.1\r\n") && has(&format!("x-amz-target: {TARGET}\r\n")));
        assert!(
            has(&format!("host: {host}\r\n")) && has("authorization: AWS4-HMAC-SHA256 Credential=AKIA0/")
        );
        assert!(has(CONTENT_TYPE) && !has("secret key"), "{request}");
        let bad = r#"{"__type":"UnrecognizedClientException"}"#.to_string();
        let (_, refused) = tokio::join!(serve("400", bad), log_in(&wire, &endpoint, &key, &source));
        assert!(matches!(refused, Err(ImageError::Unauthorized { credentials_sent: true, .. })));
        let (_, failed) = tokio::join!(serve("503", String::new()), log_in(&wire, &endpoint, &key, &source));
        assert!(failed.is_err_and(|error| error.is_transient()));
    }

    #[test]
    fn keys_are_for_registries_of_their_region_alone() {
        let of = |registry| endpoint(registry, "eu-west-1");
        let address = Some("https://api.ecr.eu-west-1.amazonaws.com/".to_string());
        assert_eq!(of("123456789012.dkr.ecr.eu-west-1.amazonaws.com"), address);
        for other in [
            "docker.io",
            "evil.com",
            "123456789012.dkr.ecr.us-east-1.amazonaws.com",
            "123456789012.dkr.ecr.eu-west-1.amazonaws.com.evil.com",
            "123456789012.dkr.ecr.eu-west-1.amazonaws.com:444",
            "evil.com.dkr.ecr.eu-west-1.amazonaws.com",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
        let china = endpoint("123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn", "cn-north-1");
        assert_eq!(china.as_deref(), Some("https://api.ecr.cn-north-1.amazonaws.com.cn/"));
    }

    #[test]
    fn the_login_is_in_the_reply() {
        let token = STANDARD.encode("AWS:pass:word");
        let reply =
            format!(r#"{{"authorizationData":[{{"authorizationToken":"{token}","expiresAt":1.5E9}}]}}"#);
        let login = read(reply.as_bytes()).unwrap();
        assert_eq!(login.basic().to_str().unwrap(), format!("Basic {token}"));
        for bad in
            ["", "{}", r#"{"authorizationData":[]}"#, r#"{"authorizationData":[{"authorizationToken":"%"}]}"#]
        {
            assert!(read(bad.as_bytes()).is_none(), "{bad}");
        }
    }
}
