//! The exchange of keys (RFC 4253, section 7; RFC 8731): Curve25519 signed with an Ed25519 host key.

use bytes::Bytes;
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::digest::{Context, SHA256};
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::error::Error;
use crate::keys::{KIND, KeyPair};
use crate::message::{DEBUG, ECDH_INIT, ECDH_REPLY, IGNORE, KEXINIT, NEWKEYS};
use crate::packet::{Reader, Secret, Writer};
use crate::text::{Append as _, Fields};

const EXCHANGES: [&str; 2] = ["curve25519-sha256", "curve25519-sha256@libssh.org"];
const CIPHER: &str = "chacha20-poly1305@openssh.com";
/// Named because the list may not be empty; the cipher has its own.
const MAC: &str = "hmac-sha2-256";
/// Both count packets anew with new keys, and nothing else may come in between (OpenSSH's answer to "Terrapin").
const STRICT_SERVER: &str = "kex-strict-s-v00@openssh.com";
const STRICT_CLIENT: &str = "kex-strict-c-v00@openssh.com";
/// The cookie of the first message.
const COOKIE: usize = 16;
const LISTS: usize = 10;

/// What stays the same from one exchange to the next.
pub(crate) struct Parties {
    pub(crate) client: String,
    pub(crate) server: String,
    pub(crate) host_key: KeyPair,
    /// Known after the first exchange.
    pub(crate) session: Option<[u8; 32]>,
    strict: bool,
}

impl Parties {
    pub(crate) fn new(client: String, server: String, host_key: KeyPair) -> Self {
        Self { client, server, host_key, session: None, strict: false }
    }

    /// Exchanges keys, beginning with the client's first message. Nothing else may be sent meanwhile.
    pub(crate) async fn exchange(
        &mut self,
        theirs: Bytes,
        reader: &mut Reader,
        writer: &mut Writer,
    ) -> Result<(), Error> {
        let ours = our_offer()?;
        writer.send(&ours).await?;
        let offer = Offer::read(&theirs)?;
        if self.session.is_none() {
            self.strict = offer.is_strict;
        }
        if offer.guessed_wrong {
            self.next(reader).await?;
        }
        let request = self.next(reader).await?;
        let mut fields = Fields::of(&request);
        if fields.byte()? != ECDH_INIT {
            return Err(Error::Protocol("a message amid an exchange of keys"));
        }
        let their_point = fields.string()?;
        let own = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).map_err(no_random)?;
        let our_point = own.compute_public_key().map_err(no_random)?;
        let peer = UnparsedPublicKey::new(&X25519, their_point);
        let shared = agree_ephemeral(own, &peer, <[u8]>::to_vec);
        let shared = shared.map_err(|_| Error::Protocol("a key that is no point"))?;
        let mut secret = Vec::new();
        secret.big(&shared);

        let host_key = self.host_key.public().blob();
        let mut hashed = Vec::new();
        for part in [self.client.as_bytes(), self.server.as_bytes(), &theirs, &ours, &host_key, their_point] {
            hashed.string(part);
        }
        hashed.string(our_point.as_ref());
        hashed.extend_from_slice(&secret);
        let hash = sha256(&[&hashed]);
        let mut reply = vec![ECDH_REPLY];
        reply.string(&host_key);
        reply.string(our_point.as_ref());
        reply.string(&self.host_key.sign(&hash));
        writer.send(&reply).await?;
        let session = *self.session.get_or_insert(hash);
        let derive = |letter: u8| derive(&secret, &hash, letter, &session);
        writer.send(&[NEWKEYS]).await?;
        writer.rekey(&derive(b'D'), self.strict);
        if *self.next(reader).await? != [NEWKEYS] {
            return Err(Error::Protocol("a message amid an exchange of keys"));
        }
        reader.rekey(&derive(b'C'), self.strict);
        Ok(())
    }

    /// The next message that is not noise.
    async fn next(&self, reader: &mut Reader) -> Result<Bytes, Error> {
        loop {
            let message = reader.next().await?;
            match message[0] {
                IGNORE | DEBUG if self.session.is_some() || !self.strict => {}
                _ => return Ok(message),
            }
        }
    }
}

fn no_random(_: ring::error::Unspecified) -> Error {
    Error::Io(std::io::Error::other("the system has no random numbers"))
}

fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(part);
    }
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}

/// Two rounds of the standard's function, which are as much as the cipher takes.
fn derive(secret: &[u8], hash: &[u8; 32], letter: u8, session: &[u8; 32]) -> Secret {
    let first = sha256(&[secret, hash, &[letter], session]);
    let second = sha256(&[secret, hash, &first]);
    let mut key = [0; 64];
    key[..32].copy_from_slice(&first);
    key[32..].copy_from_slice(&second);
    key
}

fn our_offer() -> Result<Vec<u8>, Error> {
    let mut cookie = [0; COOKIE];
    SystemRandom::new().fill(&mut cookie).map_err(no_random)?;
    let mut offer = vec![KEXINIT];
    offer.extend_from_slice(&cookie);
    let exchanges = format!("{},{STRICT_SERVER}", EXCHANGES.join(","));
    for list in [exchanges.as_str(), KIND, CIPHER, CIPHER, MAC, MAC, "none", "none", "", ""] {
        offer.string(list.as_bytes());
    }
    // No guess follows; and four bytes for later standards.
    offer.extend_from_slice(&[0; 5]);
    Ok(offer)
}

/// What matters of the client's lists.
#[derive(Debug)]
struct Offer {
    is_strict: bool,
    /// It sent the next message already, for another exchange than ours.
    guessed_wrong: bool,
}

impl Offer {
    fn read(message: &[u8]) -> Result<Self, Error> {
        let mut fields = Fields::of(message);
        fields.skip(1 + COOKIE)?;
        let mut lists = [""; LISTS];
        for list in &mut lists {
            *list = fields.text()?;
        }
        let has = |list: usize, name: &str| lists[list].split(',').any(|one| one == name);
        let need = |what, list: usize, names: &[&str], needed| match names.iter().any(|name| has(list, name))
        {
            true => Ok(()),
            false => Err(Error::NoCommon { what, needed }),
        };
        need("key exchange", 0, &EXCHANGES, EXCHANGES[0])?;
        need("kind of host key", 1, &[KIND], KIND)?;
        need("cipher", 2, &[CIPHER], CIPHER)?;
        need("cipher", 3, &[CIPHER], CIPHER)?;
        need("compression", 6, &["none"], "none")?;
        need("compression", 7, &["none"], "none")?;
        let first = |list: usize| lists[list].split(',').next().unwrap_or_default();
        let guessed_wrong = fields.flag()? && !(EXCHANGES.contains(&first(0)) && first(1) == KIND);
        Ok(Self { is_strict: has(0, STRICT_CLIENT), guessed_wrong })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(lists: [&str; LISTS], follows: u8) -> Vec<u8> {
        let mut offer = vec![KEXINIT];
        offer.extend_from_slice(&[0; COOKIE]);
        lists.iter().for_each(|list| offer.string(list.as_bytes()));
        offer.extend_from_slice(&[follows, 0, 0, 0, 0]);
        offer
    }

    #[test]
    fn a_client_without_our_algorithms_is_told_what_it_needs() {
        let good = ["x,curve25519-sha256", KIND, CIPHER, CIPHER, "", "", "none", "none", "", ""];
        assert!(Offer::read(&offer(good, 0)).is_ok_and(|offer| !offer.is_strict && !offer.guessed_wrong));
        assert!(Offer::read(&offer(good, 1)).is_ok_and(|offer| offer.guessed_wrong));
        let mut old = good;
        old[2] = "aes128-cbc";
        let said = Offer::read(&offer(old, 0)).unwrap_err().to_string();
        assert!(said.contains("cipher") && said.contains(CIPHER), "{said}");
        assert!(Offer::read(&offer(good, 0)[..40]).is_err());
    }

    #[test]
    fn our_own_offer_can_be_read() {
        assert!(Offer::read(&our_offer().unwrap()).is_ok());
    }
}
